/*
 * owner.c: the owner's lock of a root without a store, see owner.h. The lock itself is fs.h's.
 */
#include "owner.h"

#include <errno.h>
#include <stdlib.h>

#include "fs.h"

static const char owner_lock[] = "owner.lock";

struct kvs_owner_lock {
    struct kvs_fs *fs;
    int root_fd, lock_fd;
};

static int root_open(const char *path, struct kvs_fs **fs)
{
    int error = kvs_fs_posix_open(fs);
    return error ? error : (*fs)->calls->open_root(*fs, path, 0);
}

static void root_close(struct kvs_fs *fs, int root_fd)
{
    fs->calls->close(fs, root_fd);
    kvs_fs_posix_close(fs);
}

int kvs_owner_of(const char *root_path, char *holder, uint32_t holder_bytes)
{
    struct kvs_fs *fs;
    int root_fd = root_open(root_path, &fs);
    if (root_fd < 0) {
        return root_fd;
    }
    int found = kvs_fs_posix_lock_holder(root_fd, owner_lock, holder, holder_bytes);
    root_close(fs, root_fd);
    return found;
}

int kvs_owner_lock_take(const char *root_path, char *holder, uint32_t holder_bytes,
                        struct kvs_owner_lock **out)
{
    struct kvs_owner_lock *lock = calloc(1, sizeof(*lock));
    if (!lock) {
        return -ENOMEM;
    }
    int error = lock->root_fd = root_open(root_path, &lock->fs);
    if (error < 0) {
        free(lock);
        return error;
    }
    error = lock->fs->calls->lock(lock->fs, lock->root_fd, owner_lock, holder, holder_bytes,
                                  &lock->lock_fd);
    if (error) {
        root_close(lock->fs, lock->root_fd);
        free(lock);
        return error;
    }
    *out = lock;
    return 0;
}

void kvs_owner_lock_give(struct kvs_owner_lock *lock)
{
    lock->fs->calls->unlock(lock->fs, lock->root_fd, owner_lock, lock->lock_fd);
    root_close(lock->fs, lock->root_fd);
    free(lock);
}
