/*
 * fs_posix_way.c: the way to a name below the root: entering directories, making them, and opening
 * a file in one.
 *
 * Invariant: no symbolic link is followed, in no component. openat() with a whole path would follow
 * those on the way, out of the root and to whatever lies there. A directory costs an open and a
 * close (under 1 us each once the kernel knows its name).
 */
#define _GNU_SOURCE 1

#include "fs_posix.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, NAME_BYTES = 256 };

int kvs_fs_posix_enter(int root_fd, const char *path, const char **last)
{
    int at = root_fd;
    const char *from = kvs_fs_posix_path(path);
    for (const char *slash = strchr(from, '/'); slash != NULL; slash = strchr(from, '/')) {
        char name[NAME_BYTES];
        const size_t length = (size_t)(slash - from);
        int next = -ENAMETOOLONG;
        if (length < sizeof name) {
            memcpy(name, from, length);
            name[length] = '\0';
            next = openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            next = next >= 0 ? next : -errno;
        }
        kvs_fs_posix_leave(root_fd, at);
        if (next < 0) {
            return next;
        }
        at = next;
        from = slash + 1;
    }
    *last = kvs_fs_posix_path(from);
    return at;
}

void kvs_fs_posix_leave(int root_fd, int directory_fd)
{
    if (directory_fd != root_fd) {
        close(directory_fd);
    }
}

static int make_one_directory(int root_fd, const char *path)
{
    struct stat there;
    if (mkdirat(root_fd, path, 0700) == 0) {
        return 0;
    }
    if (errno != EEXIST) {
        return -errno;
    }
    if (fstatat(root_fd, path, &there, AT_SYMLINK_NOFOLLOW) != 0) {
        return -errno;
    }
    return S_ISDIR(there.st_mode) ? 0 : -ENOTDIR;
}

int kvs_fs_posix_make_directory(struct kvs_fs *fs, int root_fd, const char *path)
{
    (void)fs;
    char prefix[PATH_BYTES];
    const size_t length = strlen(path);
    if (length == 0 || length >= sizeof prefix || path[0] == '/') {
        return length >= sizeof prefix ? -ENAMETOOLONG : -EINVAL;
    }
    memcpy(prefix, path, length + 1);
    for (char *slash = strchr(prefix, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        const int rc = make_one_directory(root_fd, prefix);
        if (rc != 0) {
            return rc;
        }
        *slash = '/';
    }
    return make_one_directory(root_fd, prefix);
}

int kvs_fs_posix_open_in(int directory_fd, const char *name, int flags, int noatime, uint32_t *lost)
{
    int extra = O_DIRECT | (noatime ? O_NOATIME : 0);
    for (;;) {
        const int fd = openat(directory_fd, name, flags | extra | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd >= 0) {
            return fd;
        }
        if (errno == EPERM && (extra & O_NOATIME) != 0) {
            extra &= ~O_NOATIME;
            *lost |= KVS_FS_LOST_NOATIME;
        } else if (errno == EINVAL && (extra & O_DIRECT) != 0) {
            extra &= ~O_DIRECT;
            *lost |= KVS_FS_LOST_DIRECT;
        } else {
            return -errno;
        }
    }
}

int kvs_fs_posix_open_direct(int root_fd, const char *path, int flags, uint32_t *lost)
{
    const char *last;
    const int directory = kvs_fs_posix_enter(root_fd, path, &last);
    if (directory < 0) {
        return directory;
    }
    const int fd = kvs_fs_posix_open_in(directory, last, flags, 0, lost);
    kvs_fs_posix_leave(root_fd, directory);
    return fd;
}
