/*
 * fs_posix.h: what the files of the Linux file system share.
 *
 *   fs_posix.c       names, stat, times, listing; the table of calls
 *   fs_posix_way.c   the way to a name: directories, and opening below them
 *   fs_posix_file.c  a file's way from temporary to linked, and its few KiB of reads and writes
 *   fs_posix_lock.c  the lock between processes
 */
#ifndef KVS_FS_POSIX_H
#define KVS_FS_POSIX_H

#include "fs.h"

#include <errno.h>

enum { KVS_FS_PAGE_BYTES = 4096 }; /* O_DIRECT's alignment, whatever the device */

#define KVS_FS_BTRFS_MAGIC 0x9123683Eu

/* fs_posix_way.c */
/* The directory in which a path's last component lies, and that component. Opened without following
 * a link, to be left again; the root's own descriptor where the path has one component. */
int kvs_fs_posix_enter(int root_fd, const char *path, const char **last);
void kvs_fs_posix_leave(int root_fd, int directory_fd);
int kvs_fs_posix_make_directory(struct kvs_fs *fs, int root_fd, const char *path);
/* openat with O_DIRECT, and O_NOATIME if `noatime`, dropping what is refused. Into *lost go bits of
 * kvs_fs_lost: what was dropped, to be noted when the open turns out well. */
int kvs_fs_posix_open_in(int directory_fd, const char *name, int flags, int noatime,
                         uint32_t *lost);
/* The same for a path, without O_NOATIME. */
int kvs_fs_posix_open_direct(int root_fd, const char *path, int flags, uint32_t *lost);

/* fs_posix.c */
void kvs_fs_posix_note_lost(struct kvs_fs *fs, uint32_t bits);
uint64_t kvs_fs_posix_next_number(struct kvs_fs *fs);

/* fs_posix_file.c */
int kvs_fs_posix_open_temp(struct kvs_fs *fs, int root_fd, const char *directory,
                           const char *fallback_directory, struct kvs_fs_temp *out);
int kvs_fs_posix_allocate(struct kvs_fs *fs, int fd, uint64_t bytes);
int kvs_fs_posix_direct_unit(struct kvs_fs *fs, int fd);
int kvs_fs_posix_link(struct kvs_fs *fs, int root_fd, const struct kvs_fs_temp *temp,
                      const char *target);
int kvs_fs_posix_read_at(struct kvs_fs *fs, int fd, void *buffer, uint32_t bytes, uint64_t offset);
int kvs_fs_posix_write_at(struct kvs_fs *fs, int fd, const void *buffer, uint32_t bytes,
                          uint64_t offset);

/* fs_posix_lock.c */
/* Once, before the first lock: makes fork safe while another thread is in a lock call. */
void kvs_fs_posix_lock_prepare(void);
int kvs_fs_posix_lock(struct kvs_fs *fs, int root_fd, const char *path, char *holder,
                      uint32_t holder_bytes, int *lock_fd);
void kvs_fs_posix_unlock(struct kvs_fs *fs, int root_fd, const char *path, int lock_fd);

static inline int kvs_fs_posix_result(int rc)
{
    return rc == 0 ? 0 : -errno;
}

/* The root itself is "" to callers, "." to the kernel. */
static inline const char *kvs_fs_posix_path(const char *path)
{
    return path[0] == '\0' ? "." : path;
}

#endif
