/*
 * fs_watch.c: the store's own file system: passes every call on to the real one, and watches it.
 *
 * For calls that a file worker makes: notes when the call began, so that the keeper sees one that
 * does not come back; refuses calls on a root that is down without asking its device (-EHOSTDOWN);
 * counts errors of the device; and where descriptors have run out, closes cached files and tries
 * again. Other threads' calls (open and close of the store) are passed on as they are.
 *
 * Which root a call is for: the one whose directory it names, else the one of the worker's last
 * call, else what kvs_worker_at said.
 */
#include <errno.h>
#include <stdlib.h>

#include "store.h"

struct watch {
    struct kvs_fs base;
    struct kvs_store *store;
};

enum { NO_ROOT = -1, DESCRIPTOR_TRIES = 3 };

static struct kvs_fs *inner(struct kvs_fs *fs)
{
    return ((struct watch *)fs)->store->fs_inner;
}

/* -EHOSTDOWN: only `always` is the call made all the same. */
static int enter(struct kvs_fs *fs, int root_fd, int always)
{
    struct kvs_store *store = ((struct watch *)fs)->store;
    struct kvs_worker *worker = kvs_worker_self();
    if (!worker) {
        return 0;
    }
    kvs_lock(store);
    for (uint32_t i = 0; root_fd >= 0 && i < store->root_count; i++) {
        if (store->roots[i].fd == root_fd) {
            worker->at = &store->roots[i];
        }
    }
    int refused = !always && kvs_root_down_locked(worker->at) && !kvs_worker_probes();
    worker->since_ns = refused ? 0 : kvs_store_now_ns(store);
    worker->since_real_ns = kvs_clock_real_boot_ns(NULL);
    worker->rounds = worker->patient = 0;
    kvs_unlock(store);
    return refused ? -EHOSTDOWN : 0;
}

static int left(struct kvs_fs *fs, int result)
{
    struct watch *watch = (struct watch *)fs;
    struct kvs_worker *worker = kvs_worker_self();
    __atomic_fetch_or(&fs->lost, __atomic_load_n(&inner(fs)->lost, __ATOMIC_RELAXED),
                      __ATOMIC_RELAXED);
    if (worker) {
        kvs_lock(watch->store);
        worker->since_ns = 0;
        kvs_breaker_note_call_locked(worker->at, result);
        kvs_unlock(watch->store);
    }
    return result;
}

/* `call` when the root is not down; while descriptors are short and files can be closed, again. */
#define WATCHED(fs, root_fd, call)                                                                \
    do {                                                                                          \
        int result_ = enter(fs, root_fd, 0);                                                      \
        if (result_ == 0) {                                                                       \
            int tries_ = 0;                                                                       \
            do {                                                                                  \
                result_ = (call);                                                                 \
            } while ((result_ == -EMFILE || result_ == -ENFILE) && ++tries_ < DESCRIPTOR_TRIES && \
                     kvs_files_spare(((struct watch *)fs)->store));                               \
            result_ = left(fs, result_);                                                          \
        }                                                                                         \
        return result_;                                                                           \
    } while (0)

static int watch_open_root(struct kvs_fs *fs, const char *path, int create)
{
    WATCHED(fs, NO_ROOT, inner(fs)->calls->open_root(inner(fs), path, create));
}

static int watch_replace(struct kvs_fs *fs, int fd, int by_fd)
{
    WATCHED(fs, NO_ROOT, inner(fs)->calls->replace(inner(fs), fd, by_fd));
}

static int watch_make_directory(struct kvs_fs *fs, int root_fd, const char *path)
{
    WATCHED(fs, root_fd, inner(fs)->calls->make_directory(inner(fs), root_fd, path));
}

static int watch_open_read(struct kvs_fs *fs, int root_fd, const char *path)
{
    WATCHED(fs, root_fd, inner(fs)->calls->open_read(inner(fs), root_fd, path));
}

static int watch_open_temp(struct kvs_fs *fs, int root_fd, const char *directory,
                           const char *fallback, struct kvs_fs_temp *out)
{
    out->fd = -1;
    out->name[0] = 0;
    WATCHED(fs, root_fd, inner(fs)->calls->open_temp(inner(fs), root_fd, directory, fallback, out));
}

static int watch_direct_unit(struct kvs_fs *fs, int fd)
{
    WATCHED(fs, NO_ROOT, inner(fs)->calls->direct_unit(inner(fs), fd));
}

static int watch_allocate(struct kvs_fs *fs, int fd, uint64_t bytes)
{
    WATCHED(fs, NO_ROOT, inner(fs)->calls->allocate(inner(fs), fd, bytes));
}

static int watch_link(struct kvs_fs *fs, int root_fd, const struct kvs_fs_temp *temp,
                      const char *target)
{
    WATCHED(fs, root_fd, inner(fs)->calls->link(inner(fs), root_fd, temp, target));
}

static int watch_rename(struct kvs_fs *fs, int root_fd, const char *from, const char *to)
{
    WATCHED(fs, root_fd, inner(fs)->calls->rename(inner(fs), root_fd, from, to));
}

static int watch_unlink(struct kvs_fs *fs, int root_fd, const char *path)
{
    WATCHED(fs, root_fd, inner(fs)->calls->unlink(inner(fs), root_fd, path));
}

static int watch_remove_directory(struct kvs_fs *fs, int root_fd, const char *path)
{
    WATCHED(fs, root_fd, inner(fs)->calls->remove_directory(inner(fs), root_fd, path));
}

static int watch_set_times(struct kvs_fs *fs, int fd, int64_t atime_s, int64_t mtime_s)
{
    WATCHED(fs, NO_ROOT, inner(fs)->calls->set_times(inner(fs), fd, atime_s, mtime_s));
}

static int watch_stat_fd(struct kvs_fs *fs, int fd, struct kvs_fs_stat *out)
{
    WATCHED(fs, NO_ROOT, inner(fs)->calls->stat_fd(inner(fs), fd, out));
}

static int watch_stat_path(struct kvs_fs *fs, int root_fd, const char *path,
                           struct kvs_fs_stat *out)
{
    WATCHED(fs, root_fd, inner(fs)->calls->stat_path(inner(fs), root_fd, path, out));
}

static int watch_list(struct kvs_fs *fs, int root_fd, const char *path, kvs_fs_entry_fn entry,
                      void *arg)
{
    WATCHED(fs, root_fd, inner(fs)->calls->list(inner(fs), root_fd, path, entry, arg));
}

static int watch_space(struct kvs_fs *fs, int root_fd, struct kvs_fs_space *out)
{
    WATCHED(fs, root_fd, inner(fs)->calls->space(inner(fs), root_fd, out));
}

/* It writes what other programs have in memory: when that takes long its worker is replaced, no
 * more. */
static int watch_sync(struct kvs_fs *fs, int root_fd)
{
    struct kvs_worker *worker = kvs_worker_self();
    int refused = enter(fs, root_fd, 0);
    if (refused) {
        return refused;
    }
    if (worker) {
        kvs_lock(worker->at->store);
        worker->patient = 1;
        kvs_unlock(worker->at->store);
    }
    return left(fs, inner(fs)->calls->sync(inner(fs), root_fd));
}

static int watch_sync_file(struct kvs_fs *fs, int fd)
{
    WATCHED(fs, NO_ROOT, inner(fs)->calls->sync_file(inner(fs), fd));
}

static int watch_read_at(struct kvs_fs *fs, int fd, void *buffer, uint32_t bytes, uint64_t offset)
{
    WATCHED(fs, NO_ROOT, inner(fs)->calls->read_at(inner(fs), fd, buffer, bytes, offset));
}

static int watch_write_at(struct kvs_fs *fs, int fd, const void *buffer, uint32_t bytes,
                          uint64_t offset)
{
    WATCHED(fs, NO_ROOT, inner(fs)->calls->write_at(inner(fs), fd, buffer, bytes, offset));
}

/* Never refused: a descriptor that is not closed is lost. */
static int watch_close(struct kvs_fs *fs, int fd)
{
    enter(fs, NO_ROOT, 1);
    return left(fs, inner(fs)->calls->close(inner(fs), fd));
}

static int watch_lock(struct kvs_fs *fs, int root_fd, const char *path, char *holder,
                      uint32_t holder_bytes, int *lock_fd)
{
    WATCHED(fs, root_fd,
            inner(fs)->calls->lock(inner(fs), root_fd, path, holder, holder_bytes, lock_fd));
}

static void watch_unlock(struct kvs_fs *fs, int root_fd, const char *path, int lock_fd)
{
    inner(fs)->calls->unlock(inner(fs), root_fd, path, lock_fd);
}

static const struct kvs_fs_calls watch_calls = {
    .open_root = watch_open_root,
    .replace = watch_replace,
    .make_directory = watch_make_directory,
    .open_read = watch_open_read,
    .open_temp = watch_open_temp,
    .direct_unit = watch_direct_unit,
    .allocate = watch_allocate,
    .link = watch_link,
    .rename = watch_rename,
    .unlink = watch_unlink,
    .remove_directory = watch_remove_directory,
    .set_times = watch_set_times,
    .stat_fd = watch_stat_fd,
    .stat_path = watch_stat_path,
    .list = watch_list,
    .space = watch_space,
    .sync = watch_sync,
    .sync_file = watch_sync_file,
    .read_at = watch_read_at,
    .write_at = watch_write_at,
    .close = watch_close,
    .lock = watch_lock,
    .unlock = watch_unlock,
};

int kvs_fs_watch_open(struct kvs_store *store, struct kvs_fs **out)
{
    struct watch *watch = calloc(1, sizeof(*watch));
    if (!watch) {
        return -ENOMEM;
    }
    watch->base.calls = &watch_calls;
    watch->store = store;
    *out = &watch->base;
    return 0;
}

void kvs_fs_watch_close(struct kvs_fs *fs)
{
    free(fs);
}
