/*
 * engine_subject.h: an engine under the contract suite, chosen by name, and a thread asleep in it.
 *
 * The includer defines _GNU_SOURCE.
 */
#ifndef KVS_ENGINE_SUBJECT_H
#define KVS_ENGINE_SUBJECT_H

#include "io_test.h"
#include "testing/io_fault.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>

enum { DEPTH = 8 };

struct subject {
    const char *name;
    struct kvs_io_engine *engine;
    struct kvs_virtual_clock *clock; /* of the fault engine, else NULL */
    const struct test_file *file;
};

static inline int subject_open(struct subject *s, unsigned depth)
{
    s->clock = NULL;
    if (strcmp(s->name, "io_uring") == 0) {
        return kvs_io_uring_open(depth, &s->engine);
    }
    if (strcmp(s->name, "aio") == 0) {
        return kvs_io_aio_open(depth, &s->engine);
    }
    if (strcmp(s->name, "threads") == 0) {
        return kvs_io_threads_open(depth, 3, &s->engine);
    }
    CHECK_EQ(kvs_virtual_clock_open(1000, &s->clock), 0);
    struct kvs_fault_device device = {
        .bytes_per_second = 1000000000, .latency_ns = 50000, .depth = depth, .auto_advance = 1};
    int result = kvs_io_fault_open(s->clock, &device, &s->engine);
    if (result < 0) {
        kvs_virtual_clock_close(s->clock);
    }
    return result;
}

static inline void subject_close(struct subject *s)
{
    s->engine->calls->close(s->engine);
    if (s->clock != NULL) {
        kvs_virtual_clock_close(s->clock);
    }
}

static inline int open_file(const struct subject *s, int flags)
{
    int fd = open(s->file->path, flags | O_CLOEXEC);
    CHECK(fd >= 0);
    return fd;
}

static inline void wake(struct kvs_io_engine *engine)
{
    uint64_t one = 1;
    CHECK_EQ(write(engine->wake_fd, &one, sizeof one), sizeof one);
}

/* A thread that sits in one reap. */
struct sleeper {
    struct kvs_io_engine *engine;
    int64_t timeout_ns;
    int thread_id; /* atomic */
    int result;
};

static inline void *sleeper_run(void *arg)
{
    struct sleeper *sleeper = arg;
    struct kvs_io_op *done;
    __atomic_store_n(&sleeper->thread_id, (int)syscall(SYS_gettid), __ATOMIC_RELEASE);
    sleeper->result = sleeper->engine->calls->reap(sleeper->engine, &done, 1, sleeper->timeout_ns);
    return NULL;
}

/* Polls until the kernel says that the thread sleeps: the wake-up shall find it there. */
static inline void await_asleep(struct sleeper *sleeper)
{
    for (int tries = 0; tries < 1000000; tries++) {
        int thread_id = __atomic_load_n(&sleeper->thread_id, __ATOMIC_ACQUIRE);
        char path[64], line[256] = "";
        snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread_id);
        FILE *stat = thread_id > 0 ? fopen(path, "r") : NULL;
        if (stat != NULL) {
            char *read_line = fgets(line, sizeof line, stat);
            fclose(stat);
            char *state = read_line != NULL ? strrchr(line, ')') : NULL;
            if (state != NULL && state[1] != '\0' && state[2] == 'S') {
                return;
            }
        }
        sched_yield();
    }
    CHECK(!"the thread fell asleep in reap");
}

#endif
