/*
 * fs_posix_file.c: a file's way from temporary to linked, and reading and writing its few KiB.
 *
 * A file without a name (O_TMPFILE) leaves nothing behind when its process dies; where there is no
 * O_TMPFILE it has a name in a directory of its own, which cleaning up may empty.
 * Reads take any range on any descriptor: they go through an aligned buffer, rounded outwards.
 */
#define _GNU_SOURCE 1

#include "fs_posix.h"

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { PAGE = KVS_FS_PAGE_BYTES, BOUNCE_BYTES = 64 * PAGE };

/* A name nobody else uses: process, counter, and random digits for other hosts and lifetimes. */
static int fresh_name(struct kvs_fs *fs, const char *directory, char name[KVS_FS_NAME_BYTES])
{
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random) {
        return -EIO;
    }
    const int length =
        snprintf(name, KVS_FS_NAME_BYTES, "%s/kv-%d-%" PRIu64 "-%016" PRIx64 ".tmp",
                 kvs_fs_posix_path(directory), (int)getpid(), kvs_fs_posix_next_number(fs), random);
    return length > 0 && length < KVS_FS_NAME_BYTES ? 0 : -ENAMETOOLONG;
}

static int reopen(int root_fd, const char *path)
{
    const char *last;
    const int directory = kvs_fs_posix_enter(root_fd, path, &last);
    if (directory < 0) {
        return directory;
    }
    const int fd = openat(directory, last, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    const int rc = fd >= 0 ? fd : -errno;
    kvs_fs_posix_leave(root_fd, directory);
    return rc;
}

static int create_named(struct kvs_fs *fs, int root_fd, const char *directory,
                        struct kvs_fs_temp *out)
{
    uint32_t lost = 0;
    const int rc = fresh_name(fs, directory, out->name);
    if (rc != 0) {
        return rc;
    }
    int fd = kvs_fs_posix_open_direct(root_fd, out->name, O_RDWR | O_CREAT | O_EXCL, &lost);
    if (fd == -EEXIST && lost != 0) {
        /* Some file systems create the file before they refuse O_DIRECT. The name is ours. */
        fd = reopen(root_fd, out->name);
    }
    if (fd < 0) {
        return fd;
    }
    kvs_fs_posix_note_lost(fs, lost | KVS_FS_LOST_TMPFILE);
    out->fd = fd;
    return 0;
}

static int open_named_temp(struct kvs_fs *fs, int root_fd, const char *directory,
                           struct kvs_fs_temp *out)
{
    int rc = create_named(fs, root_fd, directory, out);
    if (rc == -ENOENT) {
        rc = kvs_fs_posix_make_directory(fs, root_fd, directory);
        rc = rc == 0 ? create_named(fs, root_fd, directory, out) : rc;
    }
    if (rc != 0) {
        out->name[0] = '\0';
    }
    return rc;
}

int kvs_fs_posix_open_temp(struct kvs_fs *fs, int root_fd, const char *directory,
                           const char *fallback_directory, struct kvs_fs_temp *out)
{
    uint32_t lost = 0;
    memset(out, 0, sizeof *out);
    out->fd = kvs_fs_posix_open_direct(root_fd, directory, O_TMPFILE | O_RDWR, &lost);
    if (out->fd >= 0) {
        kvs_fs_posix_note_lost(fs, lost);
        return 0;
    }
    const int rc = out->fd;
    out->fd = -1;
    /* EISDIR and EINVAL come from kernels and file systems that do not know the flag. */
    if (rc != -EOPNOTSUPP && rc != -EISDIR && rc != -EINVAL) {
        return rc;
    }
    return open_named_temp(fs, root_fd, fallback_directory, out);
}

/* Copy on write would scatter a file that is written once, and btrfs would checksum it again. */
static void avoid_copy_on_write(int fd)
{
    struct statfs space;
    int attributes = 0;
    if (fstatfs(fd, &space) == 0 && (uint32_t)space.f_type == KVS_FS_BTRFS_MAGIC &&
        ioctl(fd, FS_IOC_GETFLAGS, &attributes) == 0) {
        attributes |= FS_NOCOW_FL;
        ioctl(fd, FS_IOC_SETFLAGS, &attributes); /* refused: slower, still right */
    }
}

int kvs_fs_posix_allocate(struct kvs_fs *fs, int fd, uint64_t bytes)
{
    avoid_copy_on_write(fd);
    int rc;
    do {
        rc = kvs_fs_posix_result(fallocate(fd, 0, 0, (off_t)bytes));
    } while (rc == -EINTR);
    if (rc == -EOPNOTSUPP) {
        rc = kvs_fs_posix_result(ftruncate(fd, (off_t)bytes));
        if (rc == 0) {
            kvs_fs_posix_note_lost(fs, KVS_FS_LOST_ALLOCATE);
        }
    }
    return rc;
}

int kvs_fs_posix_direct_unit(struct kvs_fs *fs, int fd)
{
    (void)fs;
    const int flags = fcntl(fd, F_GETFL);
    if (flags < 0) {
        return -errno;
    }
    if (!(flags & O_DIRECT)) {
        return 0;
    }
#ifdef STATX_DIOALIGN /* 6.1; some file systems take the flag and mean nothing by it */
    struct statx file;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &file) == 0 &&
        file.stx_mask & STATX_DIOALIGN) {
        const uint32_t memory = file.stx_dio_mem_align, offset = file.stx_dio_offset_align;
        return (int)(offset == 0 || memory < offset ? offset : memory);
    }
#endif
    return PAGE;
}

static int link_into(int root_fd, const struct kvs_fs_temp *temp, int directory, const char *name)
{
    const char *last;
    if (temp->name[0] == '\0') {
        char by_fd[32];
        snprintf(by_fd, sizeof by_fd, "/proc/self/fd/%d", temp->fd);
        return kvs_fs_posix_result(linkat(AT_FDCWD, by_fd, directory, name, AT_SYMLINK_FOLLOW));
    }
    const int from = kvs_fs_posix_enter(root_fd, temp->name, &last);
    if (from < 0) {
        return from;
    }
    const int rc = kvs_fs_posix_result(linkat(from, last, directory, name, 0));
    if (rc == 0) {
        unlinkat(from, last, 0); /* failed: a second name, which cleaning up removes */
    }
    kvs_fs_posix_leave(root_fd, from);
    return rc;
}

int kvs_fs_posix_link(struct kvs_fs *fs, int root_fd, const struct kvs_fs_temp *temp,
                      const char *target)
{
    (void)fs;
    const char *last;
    const int directory = kvs_fs_posix_enter(root_fd, target, &last);
    if (directory < 0) {
        return directory;
    }
    const int rc = link_into(root_fd, temp, directory, last);
    kvs_fs_posix_leave(root_fd, directory);
    return rc;
}

static uint64_t page_down(uint64_t offset)
{
    return offset & ~(uint64_t)(PAGE - 1);
}

static uint64_t page_up(uint64_t offset)
{
    return page_down(offset + PAGE - 1);
}

/* An aligned buffer for a piece of `bytes`; longer ranges take several pieces. */
static char *bounce_buffer(uint64_t bytes, size_t *size)
{
    *size = bytes < BOUNCE_BYTES ? (size_t)page_up(bytes) : BOUNCE_BYTES;
    return aligned_alloc(PAGE, *size);
}

int kvs_fs_posix_read_at(struct kvs_fs *fs, int fd, void *buffer, uint32_t bytes, uint64_t offset)
{
    (void)fs;
    const uint64_t end = offset + bytes;
    size_t size;
    char *bounce = bounce_buffer((uint64_t)bytes + PAGE, &size); /* both ends may be inside pages */
    if (bounce == NULL) {
        return -ENOMEM;
    }
    int rc = 0;
    for (uint64_t at = offset; at < end && rc == 0;) {
        const uint64_t start = page_down(at);
        const uint64_t wanted = page_up(end) - start;
        const ssize_t got = pread(fd, bounce, wanted < size ? (size_t)wanted : size, (off_t)start);
        if (got < 0) {
            rc = errno == EINTR ? 0 : -errno;
        } else if (start + (uint64_t)got <= at) {
            rc = -ENODATA; /* nothing new: the end of the file */
        } else {
            const uint64_t reached = start + (uint64_t)got < end ? start + (uint64_t)got : end;
            memcpy((char *)buffer + (at - offset), bounce + (at - start), (size_t)(reached - at));
            at = reached;
        }
    }
    free(bounce);
    return rc;
}

int kvs_fs_posix_write_at(struct kvs_fs *fs, int fd, const void *buffer, uint32_t bytes,
                          uint64_t offset)
{
    (void)fs;
    const int flags = fcntl(fd, F_GETFL);
    if (flags < 0) {
        return -errno;
    }
    const int direct = (flags & O_DIRECT) != 0;
    assert(!direct || (offset % PAGE == 0 && bytes % PAGE == 0)); /* else the kernel's EINVAL */
    const int copied = direct && (uintptr_t)buffer % PAGE != 0;
    size_t size = bytes;
    char *bounce = copied ? bounce_buffer(bytes, &size) : NULL;
    if (copied && bounce == NULL) {
        return -ENOMEM;
    }
    int rc = 0;
    for (uint32_t done = 0; done < bytes && rc == 0;) {
        const char *from = (const char *)buffer + done;
        const size_t left = bytes - done < size ? bytes - done : size;
        if (copied) {
            memcpy(bounce, from, left);
        }
        const ssize_t put = pwrite(fd, copied ? bounce : from, left, (off_t)(offset + done));
        const uint64_t whole = put > 0 && direct ? page_down((uint64_t)put) : (uint64_t)put;
        if (put < 0) {
            rc = errno == EINTR ? 0 : -errno;
        } else if (whole == 0) {
            rc = -ENOSPC; /* the kernel took less than a page: it ran out of room in between */
        } else {
            done += (uint32_t)whole;
        }
    }
    free(bounce);
    return rc;
}
