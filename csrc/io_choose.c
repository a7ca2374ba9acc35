/*
 * io_choose.c: the engines in order: io_uring, Linux AIO, threads. Registering memory with a ring
 * is the caller's next step and no choice: where it is refused the ring works without.
 */
#include "io_choose.h"

#include <stdio.h>
#include <string.h>

enum { WORKERS_MAX = 32 };

static void note(char why[KVS_ENGINE_WHY_BYTES], const char *what, const char *because)
{
    size_t length = strlen(why);
    snprintf(why + length, KVS_ENGINE_WHY_BYTES - length, "%s%s%s", length ? "; " : "", what,
             because);
}

static int try_uring(const struct kvs_io_wish *wish, struct kvs_io_engine **out, char *why)
{
    int error = kvs_io_uring_open(wish->depth, out);
    if (error) {
        note(why, "io_uring refused (seccomp, kernel.io_uring_disabled or an old kernel): ",
             strerror(-error));
    }
    return error;
}

static int try_aio(const struct kvs_io_wish *wish, struct kvs_io_engine **out, char *why)
{
    static const char waits[] = "Linux AIO waits for each read where there is no O_DIRECT";
    if (!wish->direct && wish->engine == KVS_ENGINE_AUTO) {
        note(why, waits, "");
        return -EOPNOTSUPP;
    }
    int error = kvs_io_aio_open(wish->depth, out);
    if (error) {
        note(why, "Linux AIO refused (seccomp or fs.aio-max-nr): ", strerror(-error));
    } else if (!wish->direct) {
        note(why, waits, "");
    }
    return error;
}

/* The kernel would copy in its own threads, or in submit: dearer than in ours. */
static int lives_in_memory(const char *file_system)
{
    return strcmp(file_system, "tmpfs") == 0 || strcmp(file_system, "ramfs") == 0;
}

int kvs_io_choose(const struct kvs_io_wish *wish, struct kvs_io_engine **out,
                  char why[KVS_ENGINE_WHY_BYTES])
{
    enum kvs_engine_choice engine = wish->engine;
    int any = engine == KVS_ENGINE_AUTO;
    int error = -EOPNOTSUPP;
    why[0] = '\0';
    if (any && lives_in_memory(wish->file_system)) {
        note(why, "io_uring and Linux AIO gain nothing on ", wish->file_system);
    } else {
        if (any || engine == KVS_ENGINE_URING || engine == KVS_ENGINE_URING_PLAIN) {
            error = try_uring(wish, out, why);
        }
        if (error && (any || engine == KVS_ENGINE_AIO)) {
            error = try_aio(wish, out, why);
        }
    }
    if (error && (any || engine == KVS_ENGINE_THREADS)) {
        error = kvs_io_threads_open(wish->depth,
                                    wish->depth < WORKERS_MAX ? wish->depth : WORKERS_MAX, out);
    }
    return error;
}
