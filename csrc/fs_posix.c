/*
 * fs_posix.c: fs.h on Linux, one system call or two per call. fs_posix.h says what is where.
 *
 * What a file system refuses (O_DIRECT, O_NOATIME, O_TMPFILE, fallocate) is tried again without,
 * and the loss is noted in `lost`. It never judges what it reads, and it retries nothing but EINTR.
 * Invariant: no call but open_root follows a symbolic link, in no component of a path, so nothing
 * outside the root is touched; and no file but a regular one is ever handed out.
 */
#define _GNU_SOURCE 1

#include "fs_posix.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

struct fs_posix {
    struct kvs_fs base;
    uint64_t next_number; /* of temporary names; atomic access */
};

static const struct {
    uint32_t magic;
    const char *name;
} file_systems[] = {
    {0xEF53u, "ext4"},      {0x58465342u, "xfs"},   {KVS_FS_BTRFS_MAGIC, "btrfs"},
    {0x01021994u, "tmpfs"}, {0x858458F6u, "ramfs"}, {0x794C7630u, "overlay"},
    {0xF2F52010u, "f2fs"},  {0x2FC12FC1u, "zfs"},   {0x6969u, "nfs"},
    {0x65735546u, "fuse"},  {0x00C36400u, "ceph"},  {0x0BD00BD0u, "lustre"},
    {0x01021997u, "9p"},    {0xFF534D42u, "cifs"},  {0xFE534D42u, "smb2"},
    {0x01161970u, "gfs2"},  {0x47504653u, "gpfs"},  {0xCA451A4Eu, "bcachefs"},
};

void kvs_fs_posix_note_lost(struct kvs_fs *fs, uint32_t bits)
{
    __atomic_fetch_or(&fs->lost, bits, __ATOMIC_RELAXED);
}

uint64_t kvs_fs_posix_next_number(struct kvs_fs *fs)
{
    return __atomic_fetch_add(&((struct fs_posix *)fs)->next_number, 1, __ATOMIC_RELAXED);
}

static int posix_open_root(struct kvs_fs *fs, const char *path, int create)
{
    (void)fs;
    if (create && mkdir(path, 0700) != 0 && errno != EEXIST) {
        return -errno;
    }
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd >= 0 ? fd : -errno;
}

/* A device is not opened even for a moment: that alone may do something. */
static int open_regular(int directory_fd, const char *name, uint32_t *lost)
{
    struct stat file;
    int rc = kvs_fs_posix_result(fstatat(directory_fd, name, &file, AT_SYMLINK_NOFOLLOW));
    if (rc == 0 && !S_ISREG(file.st_mode)) {
        rc = S_ISLNK(file.st_mode) ? -ELOOP : -EINVAL;
    }
    if (rc != 0) {
        return rc;
    }
    /* O_NONBLOCK is for a FIFO that came meanwhile; left on, io_uring may answer EAGAIN. */
    const int fd = kvs_fs_posix_open_in(directory_fd, name, O_RDONLY | O_NONBLOCK, 1, lost);
    if (fd < 0) {
        return fd;
    }
    rc = kvs_fs_posix_result(fstat(fd, &file));
    if (rc == 0 && !S_ISREG(file.st_mode)) {
        rc = -EINVAL;
    }
    const int flags = rc == 0 ? fcntl(fd, F_GETFL) : 0;
    if (rc == 0 && (flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) != 0)) {
        rc = -errno;
    }
    if (rc != 0) {
        close(fd);
        return rc;
    }
    return fd;
}

static int posix_open_read(struct kvs_fs *fs, int root_fd, const char *path)
{
    uint32_t lost = 0;
    const char *last;
    const int directory = kvs_fs_posix_enter(root_fd, path, &last);
    if (directory < 0) {
        return directory;
    }
    const int fd = open_regular(directory, last, &lost);
    kvs_fs_posix_leave(root_fd, directory);
    if (fd >= 0) {
        kvs_fs_posix_note_lost(fs, lost);
    }
    return fd;
}

static int posix_rename(struct kvs_fs *fs, int root_fd, const char *from, const char *to)
{
    (void)fs;
    const char *old, *new;
    const int source = kvs_fs_posix_enter(root_fd, from, &old);
    const int target = source >= 0 ? kvs_fs_posix_enter(root_fd, to, &new) : source;
    const int rc = target < 0 ? target : kvs_fs_posix_result(renameat(source, old, target, new));
    if (target >= 0) {
        kvs_fs_posix_leave(root_fd, target);
    }
    if (source >= 0) {
        kvs_fs_posix_leave(root_fd, source);
    }
    return rc;
}

static int remove_name(int root_fd, const char *path, int flags)
{
    const char *last;
    const int directory = kvs_fs_posix_enter(root_fd, path, &last);
    if (directory < 0) {
        return directory;
    }
    const int rc = kvs_fs_posix_result(unlinkat(directory, last, flags));
    kvs_fs_posix_leave(root_fd, directory);
    return rc;
}

static int posix_unlink(struct kvs_fs *fs, int root_fd, const char *path)
{
    (void)fs;
    return remove_name(root_fd, path, 0);
}

static int posix_remove_directory(struct kvs_fs *fs, int root_fd, const char *path)
{
    (void)fs;
    return remove_name(root_fd, path, AT_REMOVEDIR);
}

static int posix_set_times(struct kvs_fs *fs, int fd, int64_t atime_s, int64_t mtime_s)
{
    (void)fs;
    const struct timespec times[2] = {{.tv_sec = atime_s}, {.tv_sec = mtime_s}};
    return kvs_fs_posix_result(futimens(fd, times));
}

static int64_t bounded_s(int64_t time_s)
{
    const int64_t most_s = time_s < KVS_FS_TIME_MAX_S ? time_s : KVS_FS_TIME_MAX_S;
    return most_s > -KVS_FS_TIME_MAX_S ? most_s : -KVS_FS_TIME_MAX_S;
}

static void fill_stat(const struct stat *from, struct kvs_fs_stat *out)
{
    *out = (struct kvs_fs_stat){
        .bytes = (uint64_t)from->st_size,
        .physical_bytes = (uint64_t)from->st_blocks * 512,
        .mtime_s = bounded_s(from->st_mtim.tv_sec),
        .mtime_ns = from->st_mtim.tv_nsec,
        .atime_s = bounded_s(from->st_atim.tv_sec),
        .inode = from->st_ino,
        .device = from->st_dev,
        .is_regular = S_ISREG(from->st_mode),
        .is_directory = S_ISDIR(from->st_mode),
        .link_count = (uint32_t)from->st_nlink,
    };
}

static int posix_stat_fd(struct kvs_fs *fs, int fd, struct kvs_fs_stat *out)
{
    (void)fs;
    struct stat file;
    if (fstat(fd, &file) != 0) {
        return -errno;
    }
    fill_stat(&file, out);
    return 0;
}

static int posix_stat_path(struct kvs_fs *fs, int root_fd, const char *path,
                           struct kvs_fs_stat *out)
{
    (void)fs;
    struct stat file;
    const char *last;
    const int directory = kvs_fs_posix_enter(root_fd, path, &last);
    if (directory < 0) {
        return directory;
    }
    const int rc = kvs_fs_posix_result(fstatat(directory, last, &file, AT_SYMLINK_NOFOLLOW));
    kvs_fs_posix_leave(root_fd, directory);
    if (rc == 0) {
        fill_stat(&file, out);
    }
    return rc;
}

static int open_directory(int root_fd, const char *path)
{
    const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW;
    const char *last;
    const int parent = kvs_fs_posix_enter(root_fd, path, &last);
    if (parent < 0) {
        return parent;
    }
    const int fd = openat(parent, last, flags);
    const int rc = fd >= 0 ? fd : -errno;
    kvs_fs_posix_leave(root_fd, parent);
    return rc;
}

static uint8_t entry_is_directory(int directory_fd, const struct dirent *entry)
{
    struct stat file;
    if (entry->d_type != DT_UNKNOWN) {
        return entry->d_type == DT_DIR;
    }
    return fstatat(directory_fd, entry->d_name, &file, AT_SYMLINK_NOFOLLOW) == 0 &&
           S_ISDIR(file.st_mode);
}

static int posix_list(struct kvs_fs *fs, int root_fd, const char *path, kvs_fs_entry_fn entry,
                      void *arg)
{
    (void)fs;
    const int fd = open_directory(root_fd, path);
    if (fd < 0) {
        return fd;
    }
    DIR *directory = fdopendir(fd);
    if (directory == NULL) {
        const int rc = -errno;
        close(fd);
        return rc;
    }
    int rc = 0;
    while (rc == 0) {
        errno = 0;
        const struct dirent *found = readdir(directory);
        if (found == NULL) {
            rc = -errno;
            break;
        }
        if (strcmp(found->d_name, ".") != 0 && strcmp(found->d_name, "..") != 0) {
            rc = entry(arg, found->d_name, entry_is_directory(fd, found));
        }
    }
    closedir(directory);
    return rc < 0 ? rc : 0;
}

static int posix_space(struct kvs_fs *fs, int root_fd, struct kvs_fs_space *out)
{
    (void)fs;
    struct statfs space;
    if (fstatfs(root_fd, &space) != 0) {
        return -errno;
    }
    const uint64_t unit = (uint64_t)(space.f_frsize > 0 ? space.f_frsize : space.f_bsize);
    *out = (struct kvs_fs_space){
        .total_bytes = space.f_blocks * unit,
        .free_bytes = space.f_bavail * unit,
        .total_inodes = space.f_files,
        .free_inodes = space.f_ffree,
    };
    snprintf(out->type, sizeof out->type, "0x%08x", (uint32_t)space.f_type);
    for (size_t i = 0; i < sizeof file_systems / sizeof file_systems[0]; i++) {
        if (file_systems[i].magic == (uint32_t)space.f_type) {
            snprintf(out->type, sizeof out->type, "%s", file_systems[i].name);
        }
    }
    return 0;
}

static int posix_sync(struct kvs_fs *fs, int root_fd)
{
    (void)fs;
    return kvs_fs_posix_result(syncfs(root_fd));
}

static int posix_sync_file(struct kvs_fs *fs, int fd)
{
    (void)fs;
    return kvs_fs_posix_result(fsync(fd)); /* not fdatasync: the times matter too */
}

static int posix_close(struct kvs_fs *fs, int fd)
{
    (void)fs;
    const int rc = kvs_fs_posix_result(close(fd));
    return rc == -EINTR ? 0 : rc; /* on Linux the descriptor is gone either way */
}

static int posix_replace(struct kvs_fs *fs, int fd, int by_fd)
{
    (void)fs;
    const int source = by_fd >= 0 ? by_fd : open("/dev/null", O_RDONLY | O_CLOEXEC);
    const int rc = dup3(source, fd, O_CLOEXEC) < 0 ? -errno : 0;
    close(source);
    return rc;
}

static const struct kvs_fs_calls posix_calls = {
    .open_root = posix_open_root,
    .make_directory = kvs_fs_posix_make_directory,
    .open_read = posix_open_read,
    .open_temp = kvs_fs_posix_open_temp,
    .allocate = kvs_fs_posix_allocate,
    .direct_unit = kvs_fs_posix_direct_unit,
    .link = kvs_fs_posix_link,
    .rename = posix_rename,
    .unlink = posix_unlink,
    .remove_directory = posix_remove_directory,
    .set_times = posix_set_times,
    .stat_fd = posix_stat_fd,
    .stat_path = posix_stat_path,
    .list = posix_list,
    .space = posix_space,
    .sync = posix_sync,
    .sync_file = posix_sync_file,
    .read_at = kvs_fs_posix_read_at,
    .write_at = kvs_fs_posix_write_at,
    .close = posix_close,
    .lock = kvs_fs_posix_lock,
    .unlock = kvs_fs_posix_unlock,
    .replace = posix_replace,
};

int kvs_fs_posix_open(struct kvs_fs **out)
{
    struct fs_posix *posix = calloc(1, sizeof *posix);
    if (posix == NULL) {
        return -ENOMEM;
    }
    posix->base.calls = &posix_calls;
    kvs_fs_posix_lock_prepare();
    *out = &posix->base;
    return 0;
}

void kvs_fs_posix_close(struct kvs_fs *fs)
{
    free(fs); /* locks still held stay held */
}
