/*
 * fs_posix_lock.c: exclusive locks between processes, by POSIX record locks (fcntl F_SETLK).
 *
 * Record locks belong to the process: a forked child does not have them, and they are gone when
 * their process dies, even if children live on with the descriptor. (flock and open-file locks
 * are shared with children.) Their price: a second lock by the same process succeeds, and closing
 * *any* descriptor of the file drops the lock. So the files locked by this process are kept in a
 * table, by device and inode, and a file in it is never opened again.
 *
 * The table is the one piece of process-wide state here, because the locks are process-wide. Its
 * entries carry the process they belong to: a child inherits the table, not the locks.
 *
 * The lock file is never removed: whoever unlinks it invites two holders of two files of one name.
 */
#define _GNU_SOURCE 1

#include "fs_posix.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_LOCKS = 64, TEXT_BYTES = 256, REPLACED_RETRIES = 8 };

struct held_lock {
    pid_t process; /* 0: free entry */
    int fd;
    dev_t device;
    ino_t inode;
};

static struct {
    pthread_mutex_t mutex;
    struct held_lock held[MAX_LOCKS];
} table = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void lock_table(void)
{
    pthread_mutex_lock(&table.mutex);
}

static void unlock_table(void)
{
    pthread_mutex_unlock(&table.mutex);
}

static void register_fork_handlers(void)
{
    pthread_atfork(lock_table, unlock_table, unlock_table);
}

void kvs_fs_posix_lock_prepare(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_fork_handlers);
}

static struct held_lock *find_held(const struct stat *file)
{
    const pid_t self = getpid();
    for (int i = 0; i < MAX_LOCKS; i++) {
        struct held_lock *held = &table.held[i];
        if (held->process == self && held->device == file->st_dev && held->inode == file->st_ino) {
            return held;
        }
    }
    return NULL;
}

static struct held_lock *find_held_fd(int fd)
{
    const pid_t self = getpid();
    for (int i = 0; i < MAX_LOCKS; i++) {
        if (table.held[i].process == self && table.held[i].fd == fd) {
            return &table.held[i];
        }
    }
    return NULL;
}

/* An entry that no lock of this process uses; those of a parent are free in the child. */
static struct held_lock *find_free(void)
{
    const pid_t self = getpid();
    for (int i = 0; i < MAX_LOCKS; i++) {
        if (table.held[i].process != self) {
            return &table.held[i];
        }
    }
    return NULL;
}

static int set_record_lock(int fd)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(fd, F_SETLK, &lock) == 0) {
        return 0;
    }
    return errno == EACCES || errno == EAGAIN ? -EBUSY : -errno;
}

/* What the holder wrote, one line, printable. */
static void read_text(int fd, char text[TEXT_BYTES])
{
    const ssize_t got = pread(fd, text, TEXT_BYTES - 1, 0);
    text[got > 0 ? got : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
    for (char *c = text; *c != '\0'; c++) {
        if (*c < ' ' || *c > '~') {
            *c = '?';
        }
    }
}

static void describe_other(int fd, char *holder, uint32_t holder_bytes)
{
    char text[TEXT_BYTES];
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    read_text(fd, text);
    if (fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK && lock.l_pid > 0) {
        snprintf(holder, holder_bytes, "process %d (lock file: %s)", (int)lock.l_pid, text);
    } else { /* in another pid namespace, on another host, or gone by now */
        snprintf(holder, holder_bytes, "a process not visible here (lock file: %s)", text);
    }
}

static void describe_self(const struct held_lock *held, char *holder, uint32_t holder_bytes)
{
    char text[TEXT_BYTES];
    read_text(held->fd, text);
    snprintf(holder, holder_bytes, "this process %d (lock file: %s)", (int)getpid(), text);
}

/* For people; the lock holds without it, so a full disk is no reason to fail. */
static void write_text(int fd)
{
    char text[TEXT_BYTES];
    char host[96] = "?";
    char when[32] = "?";
    struct tm utc;
    const time_t now = time(NULL);
    if (gmtime_r(&now, &utc) != NULL) {
        strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
    }
    if (gethostname(host, sizeof host) != 0) {
        strcpy(host, "?");
    }
    host[sizeof host - 1] = '\0';
    snprintf(text, sizeof text, "pid %d host %s since %s\n", (int)getpid(), host, when);
    const int written = ftruncate(fd, 0) == 0 && pwrite(fd, text, strlen(text), 0) > 0;
    (void)written;
}

/* Takes the lock with the table held. -EAGAIN: the name meanwhile means another file, try again. */
static int try_lock(int root_fd, const char *path, char *holder, uint32_t holder_bytes,
                    int *lock_fd)
{
    struct stat named;
    struct stat opened;
    const struct held_lock *held = NULL;
    if (fstatat(root_fd, path, &named, AT_SYMLINK_NOFOLLOW) == 0) {
        held = find_held(&named);
    }
    if (held != NULL) {
        describe_self(held, holder, holder_bytes);
        return -EBUSY;
    }
    struct held_lock *entry = find_free();
    if (entry == NULL) {
        return -ENOLCK;
    }
    const int fd =
        openat(root_fd, path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0) {
        return -errno;
    }
    int rc = fstat(fd, &opened) == 0 ? 0 : -errno;
    if (rc == 0 && find_held(&opened) != NULL) {
        return -EBUSY; /* renamed since the look above; closing fd would drop the lock we hold */
    }
    if (rc == 0) {
        rc = S_ISREG(opened.st_mode) ? set_record_lock(fd) : -EINVAL;
    }
    if (rc == -EBUSY) {
        describe_other(fd, holder, holder_bytes);
    }
    if (rc == 0 && (fstatat(root_fd, path, &named, AT_SYMLINK_NOFOLLOW) != 0 ||
                    named.st_dev != opened.st_dev || named.st_ino != opened.st_ino)) {
        rc = -EAGAIN;
    }
    if (rc != 0) {
        close(fd);
        return rc;
    }
    write_text(fd);
    *entry = (struct held_lock){getpid(), fd, opened.st_dev, opened.st_ino};
    *lock_fd = fd;
    return 0;
}

int kvs_fs_posix_lock(struct kvs_fs *fs, int root_fd, const char *path, char *holder,
                      uint32_t holder_bytes, int *lock_fd)
{
    (void)fs;
    if (holder_bytes > 0) {
        holder[0] = '\0';
    }
    int rc = -EAGAIN;
    lock_table();
    for (int i = 0; i < REPLACED_RETRIES && rc == -EAGAIN; i++) {
        rc = try_lock(root_fd, path, holder, holder_bytes, lock_fd);
    }
    unlock_table();
    return rc;
}

/* A file that this process has locked is not opened, see above; nobody can lock it in between. */
static int look_at_lock(int root_fd, const char *path, char *holder, uint32_t holder_bytes)
{
    struct stat named;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fstatat(root_fd, path, &named, AT_SYMLINK_NOFOLLOW) != 0) {
        return errno == ENOENT ? 0 : -errno;
    }
    const struct held_lock *held = find_held(&named);
    if (held != NULL) {
        describe_self(held, holder, holder_bytes);
        return 1;
    }
    const int fd = openat(root_fd, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        return -errno;
    }
    int rc = kvs_fs_posix_result(fcntl(fd, F_GETLK, &lock));
    if (rc == 0 && lock.l_type != F_UNLCK) {
        describe_other(fd, holder, holder_bytes);
        rc = 1;
    }
    close(fd);
    return rc;
}

int kvs_fs_posix_lock_holder(int root_fd, const char *path, char *holder, uint32_t holder_bytes)
{
    lock_table();
    const int rc = look_at_lock(root_fd, path, holder, holder_bytes);
    unlock_table();
    return rc;
}

void kvs_fs_posix_unlock(struct kvs_fs *fs, int root_fd, const char *path, int lock_fd)
{
    (void)fs;
    (void)root_fd;
    (void)path;
    lock_table();
    /* By its descriptor: a file system that was shut down answers no fstat. */
    struct held_lock *held = find_held_fd(lock_fd);
    if (held != NULL) {
        /* Emptied while still locked, so that nobody reads of a holder who has left. */
        const int emptied = ftruncate(lock_fd, 0) == 0;
        (void)emptied;
        *held = (struct held_lock){0};
    }
    close(lock_fd); /* drops the lock; in a forked child merely a descriptor */
    unlock_table();
}
