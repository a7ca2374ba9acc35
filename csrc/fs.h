/*
 * fs.h: the metadata waist. Names, lengths, times and locks of files go through here and nowhere
 * else, so that the fault file system (testing/fs_fault.c) can cut, refuse, drop and reorder them.
 *
 * Implementations: fs_posix.c (Linux), testing/fs_fault.c (wraps another one).
 * Headers and layout files, a few KiB each, are read and written here too (read_at, write_at);
 * cells never are, they go through io.h.
 *
 * The contract:
 *   1. Every call may block: only housekeeping threads make them, never an I/O or event-loop
 *      thread. Calls on one kvs_fs may run on several threads at once.
 *   2. Paths are relative to the root's directory fd, use '/', and are never absolute; "" is the
 *      root itself. Only open_root takes any path.
 *   3. Results are 0 (or an fd / a count) or a negative errno, passed on unchanged.
 *   4. No call but open_root (whose path the operator chose) follows a symbolic link, in whatever
 *      component (on the way it is -ENOTDIR), and open_read never blocks on a FIFO: what is not a
 *      regular file is -EINVAL.
 *   5. Times are whole seconds of the wall clock; those of stat, which anybody may have set, are
 *      within KVS_FS_TIME_MAX_S of 1970: sums of a few of them do not overflow.
 */
#ifndef KVS_FS_H
#define KVS_FS_H

#include <stdint.h>

#define KVS_FS_TIME_MAX_S ((int64_t)1 << 60)

struct kvs_fs_stat {
    uint64_t bytes;          /* length */
    uint64_t physical_bytes; /* st_blocks * 512 */
    int64_t mtime_s;
    int64_t mtime_ns; /* of the second: tells whether a directory changed */
    int64_t atime_s;
    uint64_t inode;
    uint64_t device;
    uint32_t is_regular;
    uint32_t is_directory;
    uint32_t link_count;
};

struct kvs_fs_space {
    uint64_t total_bytes;
    uint64_t free_bytes; /* to an ordinary user */
    uint64_t total_inodes;
    uint64_t free_inodes;
    char type[16]; /* "ext4", "xfs", "btrfs", "tmpfs", ... or the magic in hex */
};

enum { KVS_FS_NAME_BYTES = 160 };

/* An open temporary file, not visible under any target name yet. */
struct kvs_fs_temp {
    int fd;                       /* O_RDWR, O_DIRECT where the file system takes it */
    char name[KVS_FS_NAME_BYTES]; /* "" for O_TMPFILE, else its path below the root */
};

/* What had to be given up; reported by info(). */
enum kvs_fs_lost {
    KVS_FS_LOST_DIRECT = 1,  /* no O_DIRECT: reads go through the page cache */
    KVS_FS_LOST_NOATIME = 2, /* not the owner of the file: atime may be rewritten on reads */
    KVS_FS_LOST_TMPFILE = 4, /* no O_TMPFILE: temporary names are used */
    KVS_FS_LOST_ALLOCATE = 8, /* no fallocate: space is not reserved up front */
    /* These two the store finds out by itself. */
    KVS_FS_LOST_ATIME = 16, /* atime is not kept: it is reckoned from mtime */
    KVS_FS_LOST_WRITE = 32  /* read-only */
};

/* Called for each entry; `name` is the bare name. A non-zero return ends the listing: list passes
 * a negative one on and returns 0 for a positive one. */
typedef int (*kvs_fs_entry_fn)(void *arg, const char *name, uint8_t is_directory);

struct kvs_fs;

struct kvs_fs_calls {
    /* fd. Creates the last component, 0700: a missing parent may be a disk not mounted. */
    int (*open_root)(struct kvs_fs *fs, const char *path, int create);
    /* 0700, parents too; 0 if there. */
    int (*make_directory)(struct kvs_fs *fs, int root_fd, const char *path);
    int (*open_read)(struct kvs_fs *fs, int root_fd, const char *path); /* regular file: fd */
    /* In the directory `directory`, else (no O_TMPFILE) a fresh name in `fallback_directory`, which
     * is created. 0600. Closing removes no name: one not linked is the caller's to unlink. */
    int (*open_temp)(struct kvs_fs *fs, int root_fd, const char *directory,
                     const char *fallback_directory, struct kvs_fs_temp *out);
    int (*allocate)(struct kvs_fs *fs, int fd, uint64_t bytes); /* to the final length, reserved */
    /* Bytes that transfers on the fd, their memory included, must be multiples of (4096 where the
     * file system does not say); 0: they go through the page cache, whatever was asked for. */
    int (*direct_unit)(struct kvs_fs *fs, int fd);
    /* The temporary name, if any, goes; after -EEXIST it stays, for another target. */
    int (*link)(struct kvs_fs *fs, int root_fd, const struct kvs_fs_temp *temp, const char *target);
    int (*rename)(struct kvs_fs *fs, int root_fd, const char *from, const char *to); /* replaces */
    int (*unlink)(struct kvs_fs *fs, int root_fd, const char *path);
    /* -ENOTEMPTY; -ENOTDIR: what is there is no directory, and stays. */
    int (*remove_directory)(struct kvs_fs *fs, int root_fd, const char *path);
    int (*set_times)(struct kvs_fs *fs, int fd, int64_t atime_s, int64_t mtime_s);
    int (*stat_fd)(struct kvs_fs *fs, int fd, struct kvs_fs_stat *out);
    int (*stat_path)(struct kvs_fs *fs, int root_fd, const char *path, struct kvs_fs_stat *out);
    int (*list)(struct kvs_fs *fs, int root_fd, const char *path, kvs_fs_entry_fn entry, void *arg);
    int (*space)(struct kvs_fs *fs, int root_fd, struct kvs_fs_space *out);
    /* All that was changed on the root's file system is on the medium, whoever changed it. */
    int (*sync)(struct kvs_fs *fs, int root_fd);
    int (*sync_file)(struct kvs_fs *fs, int fd);
    /* Whole or an error: a short transfer at end of file is -ENODATA. Any alignment is accepted,
     * save that writes to an O_DIRECT fd (open_temp's) cover whole multiples of 4096. */
    int (*read_at)(struct kvs_fs *fs, int fd, void *buffer, uint32_t bytes, uint64_t offset);
    int (*write_at)(struct kvs_fs *fs, int fd, const void *buffer, uint32_t bytes, uint64_t offset);
    int (*close)(struct kvs_fs *fs, int fd);
    /* An exclusive lock held by this process, not inherited by fork, gone when it dies. 0 and
     * *lock_fd, or -EBUSY with the holder's description (its pid and what it wrote) in `holder`. A
     * second lock of the same file by this process is -EBUSY too. The file is created, never
     * removed. */
    int (*lock)(struct kvs_fs *fs, int root_fd, const char *path, char *holder,
                uint32_t holder_bytes, int *lock_fd);
    void (*unlock)(struct kvs_fs *fs, int root_fd, const char *path, int lock_fd);
    /* From now on the descriptor `fd` means what `by_fd` meant, which is closed; by_fd < 0:
     * nothing, so that every path below it is -ENOTDIR. */
    int (*replace)(struct kvs_fs *fs, int fd, int by_fd);
};

struct kvs_fs {
    const struct kvs_fs_calls *calls;
    uint32_t lost; /* bits of kvs_fs_lost, only ever set; atomic access */
};

/* The real file system, shared by all roots of a store; its state is `lost`, a counter for
 * temporary names, and (process-wide, as the locks are) the table of locks held. */
int kvs_fs_posix_open(struct kvs_fs **out);
void kvs_fs_posix_close(struct kvs_fs *fs);
/* Whether anybody holds the lock `path`: 1 and its holder as lock() describes it, 0, or a negative
 * errno. Only looks: the file is neither made nor written, and a lock of this process stays. */
int kvs_fs_posix_lock_holder(int root_fd, const char *path, char *holder, uint32_t holder_bytes);

#endif
