/*
 * fs_fault.c: the file system of fs_fault.h. It does nothing of its own but fail.
 *
 * What fails is planned in fs_plan.c. The mutex guards the pretended space; nothing is held across
 * a call to the inner file system, which may block.
 */
#define _GNU_SOURCE 1 /* O_DIRECT */
#include "fs_fault.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs_plan.h"

struct fs_fault {
    struct kvs_fs base;
    struct kvs_fs *inner;
    struct kvs_fs_plan plan;
    pthread_mutex_t mutex; /* of the pretended space */
    uint64_t total_bytes; /* 0: the real space */
    uint64_t free_bytes;
    struct kvs_history *history; /* NULL: none */
    int direct_unit; /* 0: the real one; atomic access, as the next */
    uint32_t poor;
};

static struct fs_fault *self(struct kvs_fs *fs)
{
    return (struct fs_fault *)fs;
}

static struct kvs_fs *inner(struct kvs_fs *fs)
{
    return self(fs)->inner;
}

/* PASS, DROP, or the negative errno to fail with. */
static int judge(struct kvs_fs *fs, enum kvs_fs_call call)
{
    return kvs_fs_plan_judge(&self(fs)->plan, call);
}

/* What the inner one had to give up, the wrapper's users have given up too. */
static int keep_lost(struct kvs_fs *fs, int rc)
{
    __atomic_fetch_or(&fs->lost, __atomic_load_n(&inner(fs)->lost, __ATOMIC_RELAXED),
                      __ATOMIC_RELAXED);
    return rc;
}

/* Passes a call on that changes something, and records the change. */
#define RECORDED(fs, passed_on, ...)                           \
    do {                                                       \
        kvs_history_begin(self(fs)->history);                  \
        const int result_ = (passed_on);                       \
        const struct kvs_change change_ = {__VA_ARGS__};       \
        kvs_history_end(self(fs)->history, result_, &change_); \
        return keep_lost(fs, result_);                         \
    } while (0)
static uint32_t poor(struct kvs_fs *fs)
{
    return __atomic_load_n(&self(fs)->poor, __ATOMIC_RELAXED);
}

/* As the real one does when O_DIRECT was answered with EINVAL: the file is open without. */
static int keep_direct(struct kvs_fs *fs, int fd)
{
    if (fd >= 0 && poor(fs) & KVS_FS_POOR_DIRECT) {
        const int flags = fcntl(fd, F_GETFL);
        if (flags < 0 || fcntl(fd, F_SETFL, flags & ~O_DIRECT) != 0) {
            const int rc = -errno;
            close(fd);
            return rc;
        }
        __atomic_fetch_or(&fs->lost, KVS_FS_LOST_DIRECT, __ATOMIC_RELAXED);
    }
    return fd;
}

static int keep_atime(struct kvs_fs *fs, int rc, struct kvs_fs_stat *stat)
{
    if (rc == 0 && poor(fs) & KVS_FS_POOR_ATIME_ZERO) {
        stat->atime_s = 0;
    } else if (rc == 0 && poor(fs) & KVS_FS_POOR_ATIME_MTIME) {
        stat->atime_s = stat->mtime_s;
    }
    return rc;
}

/* `return` the verdict unless the call is to be passed on. */
#define PASS_OR_RETURN(fs, call)              \
    do {                                      \
        const int verdict_ = judge(fs, call); \
        if (verdict_ != KVS_FS_PASS) {        \
            return verdict_;                  \
        }                                     \
    } while (0)

static int fault_open_root(struct kvs_fs *fs, const char *path, int create)
{
    PASS_OR_RETURN(fs, KVS_FS_OPEN_ROOT);
    return inner(fs)->calls->open_root(inner(fs), path, create);
}

static int fault_replace(struct kvs_fs *fs, int fd, int by_fd)
{
    PASS_OR_RETURN(fs, KVS_FS_REPLACE);
    return inner(fs)->calls->replace(inner(fs), fd, by_fd);
}

static int fault_make_directory(struct kvs_fs *fs, int root_fd, const char *path)
{
    PASS_OR_RETURN(fs, KVS_FS_MAKE_DIRECTORY);
    RECORDED(fs, inner(fs)->calls->make_directory(inner(fs), root_fd, path),
             .call = KVS_FS_MAKE_DIRECTORY, .fd = -1, .path = path);
}

static int fault_open_read(struct kvs_fs *fs, int root_fd, const char *path)
{
    PASS_OR_RETURN(fs, KVS_FS_OPEN_READ);
    return keep_direct(fs, keep_lost(fs, inner(fs)->calls->open_read(inner(fs), root_fd, path)));
}

static int fault_open_temp(struct kvs_fs *fs, int root_fd, const char *directory,
                           const char *fallback_directory, struct kvs_fs_temp *out)
{
    memset(out, 0, sizeof *out);
    out->fd = -1;
    PASS_OR_RETURN(fs, KVS_FS_OPEN_TEMP);
    kvs_history_begin(self(fs)->history);
    const int rc =
        inner(fs)->calls->open_temp(inner(fs), root_fd, directory, fallback_directory, out);
    const struct kvs_change change = {
        .call = KVS_FS_OPEN_TEMP, .fd = out->fd, .path = out->name, .target = fallback_directory};
    kvs_history_end(self(fs)->history, rc, &change);
    const int fd = keep_lost(fs, rc) == 0 ? keep_direct(fs, out->fd) : rc;
    return fd < 0 ? fd : 0;
}

static int fault_allocate(struct kvs_fs *fs, int fd, uint64_t bytes)
{
    PASS_OR_RETURN(fs, KVS_FS_ALLOCATE);
    RECORDED(fs, inner(fs)->calls->allocate(inner(fs), fd, bytes), .call = KVS_FS_ALLOCATE,
             .fd = fd, .offset = bytes);
}

static int fault_direct_unit(struct kvs_fs *fs, int fd)
{
    PASS_OR_RETURN(fs, KVS_FS_DIRECT_UNIT);
    const int unit = __atomic_load_n(&self(fs)->direct_unit, __ATOMIC_RELAXED);
    return unit > 0 ? unit : inner(fs)->calls->direct_unit(inner(fs), fd);
}

static int fault_link(struct kvs_fs *fs, int root_fd, const struct kvs_fs_temp *temp,
                      const char *target)
{
    PASS_OR_RETURN(fs, KVS_FS_LINK);
    RECORDED(fs, inner(fs)->calls->link(inner(fs), root_fd, temp, target), .call = KVS_FS_LINK,
             .fd = temp->fd, .path = temp->name, .target = target);
}

static int fault_rename(struct kvs_fs *fs, int root_fd, const char *from, const char *to)
{
    PASS_OR_RETURN(fs, KVS_FS_RENAME);
    RECORDED(fs, inner(fs)->calls->rename(inner(fs), root_fd, from, to), .call = KVS_FS_RENAME,
             .fd = -1, .path = from, .target = to);
}

static int fault_unlink(struct kvs_fs *fs, int root_fd, const char *path)
{
    PASS_OR_RETURN(fs, KVS_FS_UNLINK);
    RECORDED(fs, inner(fs)->calls->unlink(inner(fs), root_fd, path), .call = KVS_FS_UNLINK,
             .fd = -1, .path = path);
}

static int fault_remove_directory(struct kvs_fs *fs, int root_fd, const char *path)
{
    PASS_OR_RETURN(fs, KVS_FS_REMOVE_DIRECTORY);
    RECORDED(fs, inner(fs)->calls->remove_directory(inner(fs), root_fd, path),
             .call = KVS_FS_REMOVE_DIRECTORY, .fd = -1, .path = path);
}

static int fault_set_times(struct kvs_fs *fs, int fd, int64_t atime_s, int64_t mtime_s)
{
    PASS_OR_RETURN(fs, KVS_FS_SET_TIMES);
    RECORDED(fs, inner(fs)->calls->set_times(inner(fs), fd, atime_s, mtime_s),
             .call = KVS_FS_SET_TIMES, .fd = fd, .atime_s = atime_s, .mtime_s = mtime_s);
}

static int fault_stat_fd(struct kvs_fs *fs, int fd, struct kvs_fs_stat *out)
{
    memset(out, 0, sizeof *out);
    PASS_OR_RETURN(fs, KVS_FS_STAT_FD);
    return keep_atime(fs, inner(fs)->calls->stat_fd(inner(fs), fd, out), out);
}

static int fault_stat_path(struct kvs_fs *fs, int root_fd, const char *path,
                           struct kvs_fs_stat *out)
{
    memset(out, 0, sizeof *out);
    PASS_OR_RETURN(fs, KVS_FS_STAT_PATH);
    return keep_atime(fs, inner(fs)->calls->stat_path(inner(fs), root_fd, path, out), out);
}

static int fault_list(struct kvs_fs *fs, int root_fd, const char *path, kvs_fs_entry_fn entry,
                      void *arg)
{
    PASS_OR_RETURN(fs, KVS_FS_LIST);
    return inner(fs)->calls->list(inner(fs), root_fd, path, entry, arg);
}

static int fault_space(struct kvs_fs *fs, int root_fd, struct kvs_fs_space *out)
{
    struct fs_fault *fault_fs = self(fs);
    memset(out, 0, sizeof *out);
    PASS_OR_RETURN(fs, KVS_FS_SPACE);
    const int rc = inner(fs)->calls->space(inner(fs), root_fd, out);
    pthread_mutex_lock(&fault_fs->mutex);
    if (rc == 0 && fault_fs->total_bytes > 0) {
        out->total_bytes = fault_fs->total_bytes;
        out->free_bytes = fault_fs->free_bytes;
    }
    pthread_mutex_unlock(&fault_fs->mutex);
    return rc;
}

static int fault_sync(struct kvs_fs *fs, int root_fd)
{
    PASS_OR_RETURN(fs, KVS_FS_SYNC);
    RECORDED(fs, inner(fs)->calls->sync(inner(fs), root_fd), .call = KVS_FS_SYNC, .fd = -1);
}

static int fault_sync_file(struct kvs_fs *fs, int fd)
{
    PASS_OR_RETURN(fs, KVS_FS_SYNC_FILE);
    RECORDED(fs, inner(fs)->calls->sync_file(inner(fs), fd), .call = KVS_FS_SYNC_FILE, .fd = fd);
}

static int fault_read_at(struct kvs_fs *fs, int fd, void *buffer, uint32_t bytes, uint64_t offset)
{
    PASS_OR_RETURN(fs, KVS_FS_READ_AT);
    return inner(fs)->calls->read_at(inner(fs), fd, buffer, bytes, offset);
}

static int fault_write_at(struct kvs_fs *fs, int fd, const void *buffer, uint32_t bytes,
                          uint64_t offset)
{
    PASS_OR_RETURN(fs, KVS_FS_WRITE_AT);
    RECORDED(fs, inner(fs)->calls->write_at(inner(fs), fd, buffer, bytes, offset),
             .call = KVS_FS_WRITE_AT, .fd = fd, .data = buffer, .data_bytes = bytes,
             .offset = offset);
}

static int fault_close(struct kvs_fs *fs, int fd)
{
    const int verdict = judge(fs, KVS_FS_CLOSE);
    if (verdict == KVS_FS_DROP) {
        return 0;
    }
    /* As in the kernel, a close that fails has closed. */
    const int rc = inner(fs)->calls->close(inner(fs), fd);
    return verdict == KVS_FS_PASS ? rc : verdict;
}

static int fault_lock(struct kvs_fs *fs, int root_fd, const char *path, char *holder,
                      uint32_t holder_bytes, int *lock_fd)
{
    if (holder_bytes > 0) {
        holder[0] = '\0';
    }
    PASS_OR_RETURN(fs, KVS_FS_LOCK);
    return inner(fs)->calls->lock(inner(fs), root_fd, path, holder, holder_bytes, lock_fd);
}

static void fault_unlock(struct kvs_fs *fs, int root_fd, const char *path, int lock_fd)
{
    inner(fs)->calls->unlock(inner(fs), root_fd, path, lock_fd);
}

static const struct kvs_fs_calls fault_calls = {
    .open_root = fault_open_root,
    .make_directory = fault_make_directory,
    .open_read = fault_open_read,
    .open_temp = fault_open_temp,
    .allocate = fault_allocate,
    .direct_unit = fault_direct_unit,
    .link = fault_link,
    .rename = fault_rename,
    .unlink = fault_unlink,
    .remove_directory = fault_remove_directory,
    .set_times = fault_set_times,
    .stat_fd = fault_stat_fd,
    .stat_path = fault_stat_path,
    .list = fault_list,
    .space = fault_space,
    .sync = fault_sync,
    .sync_file = fault_sync_file,
    .read_at = fault_read_at,
    .write_at = fault_write_at,
    .close = fault_close,
    .lock = fault_lock,
    .unlock = fault_unlock,
    .replace = fault_replace,
};

int kvs_fs_fault_open(struct kvs_fs *inner_fs, struct kvs_fs **out)
{
    struct fs_fault *fault_fs = calloc(1, sizeof *fault_fs);
    if (fault_fs == NULL) {
        return -ENOMEM;
    }
    fault_fs->base.calls = &fault_calls;
    fault_fs->inner = inner_fs;
    pthread_mutex_init(&fault_fs->mutex, NULL);
    kvs_fs_plan_init(&fault_fs->plan);
    *out = &fault_fs->base;
    return 0;
}

void kvs_fs_fault_close(struct kvs_fs *fs)
{
    if (fs != NULL) {
        kvs_fs_plan_end(&self(fs)->plan);
        pthread_mutex_destroy(&self(fs)->mutex);
        free(self(fs));
    }
}

void kvs_fs_fault_add(struct kvs_fs *fs, const struct kvs_fs_fault *fault)
{
    kvs_fs_plan_add(&self(fs)->plan, fault);
}

void kvs_fs_fault_clear(struct kvs_fs *fs)
{
    kvs_fs_plan_clear(&self(fs)->plan);
}

void kvs_fs_fault_release_stalled(struct kvs_fs *fs)
{
    kvs_fs_plan_release(&self(fs)->plan);
}

unsigned kvs_fs_fault_stalled(struct kvs_fs *fs)
{
    return kvs_fs_plan_stalled(&self(fs)->plan);
}

uint64_t kvs_fs_fault_calls(struct kvs_fs *fs, enum kvs_fs_call call)
{
    return kvs_fs_plan_calls(&self(fs)->plan, call);
}

void kvs_fs_fault_set_space(struct kvs_fs *fs, uint64_t total_bytes, uint64_t free_bytes)
{
    struct fs_fault *fault_fs = self(fs);
    pthread_mutex_lock(&fault_fs->mutex);
    fault_fs->total_bytes = total_bytes;
    fault_fs->free_bytes = free_bytes;
    pthread_mutex_unlock(&fault_fs->mutex);
}

void kvs_fs_fault_set_history(struct kvs_fs *fs, struct kvs_history *history)
{
    self(fs)->history = history;
}

void kvs_fs_fault_set_poor(struct kvs_fs *fs, uint32_t bits)
{
    __atomic_store_n(&self(fs)->poor, bits, __ATOMIC_RELAXED);
}

void kvs_fs_fault_set_direct_unit(struct kvs_fs *fs, int bytes)
{
    __atomic_store_n(&self(fs)->direct_unit, bytes, __ATOMIC_RELAXED);
}
