/*
 * probe.c: what a root's directory cannot do, found out by trying when it is opened, on one page of
 * a file that never gets a name. So the engine is chosen, and info() tells, before the first put.
 *
 * Sets root->lost and root->direct. Refuses a directory only where a store could not work: an owner
 * that may not write, direct I/O in units larger than the format's alignment.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store.h"

enum { PAGE = KVS_FORMAT_PAGE_BYTES, DAY_S = 86400 };

static int unit_check(struct kvs_root *root, int unit, char *message, uint32_t message_bytes)
{
    if (unit <= PAGE) {
        root->direct = unit != 0; /* an error says nothing: as usual then */
        root->lost |= unit == 0 ? KVS_FS_LOST_DIRECT : 0;
        return 0;
    }
    snprintf(message, message_bytes,
             "%s: direct I/O there needs multiples of %d bytes, extents are aligned to %d; name a "
             "directory on a device with smaller sectors",
             root->path, unit, PAGE);
    return -EINVAL;
}

/* The file system may know better than it says: one page is really written. */
static int page_write(struct kvs_root *root, int fd, char *message, uint32_t message_bytes)
{
    struct kvs_fs *fs = root->store->fs;
    static const char page[PAGE];
    int error = fs->calls->write_at(fs, fd, page, PAGE, 0);
    if (error != -EINVAL || !root->direct) {
        return 0; /* a full disk or a bad one shows when it counts */
    }
    snprintf(message, message_bytes,
             "%s: a direct write of %d bytes is refused (%s): sectors or blocks are larger than "
             "extents are aligned to; name a directory on another device",
             root->path, PAGE, strerror(-error));
    return error;
}

/* Even seconds of yesterday: some file systems count in steps of two. */
static void times_try(struct kvs_root *root, int fd)
{
    struct kvs_fs *fs = root->store->fs;
    struct kvs_fs_stat stat;
    int64_t until_s = kvs_store_now_s(root->store) / 2 * 2, used_s = until_s - DAY_S;
    if (fs->calls->set_times(fs, fd, used_s, until_s) == 0 &&
        fs->calls->stat_fd(fs, fd, &stat) == 0 && stat.atime_s != used_s) {
        root->lost |= KVS_FS_LOST_ATIME;
    }
}

static int is_refusal(int error)
{
    return error == -EROFS || error == -EACCES || error == -EPERM;
}

/* Nothing can be written here: what reads need shows on the file that every owner leaves. */
static int probe_by_reading(struct kvs_root *root, char *message, uint32_t message_bytes)
{
    struct kvs_fs *fs = root->store->fs;
    root->lost |= KVS_FS_LOST_WRITE;
    int fd = fs->calls->open_read(fs, root->fd, "root.json");
    if (fd < 0) {
        return 0;
    }
    int error = unit_check(root, fs->calls->direct_unit(fs, fd), message, message_bytes);
    fs->calls->close(fs, fd);
    return error;
}

int kvs_root_probe(struct kvs_root *root, char *message, uint32_t message_bytes)
{
    struct kvs_fs *fs = root->store->fs;
    struct kvs_fs_temp temp;
    root->direct = 1;
    int error = fs->calls->open_temp(fs, root->fd, "", "tmp", &temp);
    if (is_refusal(error) && root->is_owner) {
        snprintf(message, message_bytes,
                 "cannot write in %s: %s; the owner needs to write this directory, role=\"peer\" "
                 "does not",
                 root->path, strerror(-error));
        return error;
    }
    if (error) {
        return is_refusal(error) ? probe_by_reading(root, message, message_bytes) : 0;
    }
    fs->calls->allocate(fs, temp.fd, PAGE); /* what it gives up is noted by the file system */
    error = unit_check(root, fs->calls->direct_unit(fs, temp.fd), message, message_bytes);
    error = error ? error : page_write(root, temp.fd, message, message_bytes);
    times_try(root, temp.fd);
    fs->calls->close(fs, temp.fd);
    if (temp.name[0]) {
        fs->calls->unlink(fs, root->fd, temp.name);
    }
    return error;
}
