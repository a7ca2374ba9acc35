/*
 * test_fs_lock.c: the lock between processes, with real ones, one of them killed. In a fresh
 * directory under TMPDIR (else the current one). Prints "ok NAME" per case.
 */
#define _GNU_SOURCE 1

#include "fs.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct kvs_fs *fs;
static int root;

static int lock(char holder[256], int *fd)
{
    return fs->calls->lock(fs, root, "owner.lock", holder, 256, fd);
}

static void test_second_lock_of_this_process_is_refused(void)
{
    char holder[256];
    char expected[64];
    int fd = -1;
    int second = -1;
    assert(lock(holder, &fd) == 0 && fd >= 0);
    for (int i = 0; i < 2; i++) { /* the refusal must not have dropped the lock */
        assert(lock(holder, &second) == -EBUSY);
        snprintf(expected, sizeof expected, "pid %d host ", (int)getpid());
        assert(strstr(holder, expected) != NULL && strstr(holder, " since 2") != NULL);
        struct flock probe = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        const pid_t child = fork();
        if (child == 0) {
            const int other = openat(root, "owner.lock", O_RDWR);
            _exit(fcntl(other, F_GETLK, &probe) == 0 && probe.l_pid == getppid() ? 0 : 1);
        }
        int status = 0;
        assert(waitpid(child, &status, 0) == child && status == 0);
    }
    fs->calls->unlock(fs, root, "owner.lock", fd);
    assert(lock(holder, &fd) == 0);
    fs->calls->unlock(fs, root, "owner.lock", fd);
    assert(faccessat(root, "owner.lock", F_OK, 0) == 0);
    puts("ok second_lock_of_this_process_is_refused");
}

static int holder_of(const char *path, char holder[256])
{
    return kvs_fs_posix_lock_holder(root, path, holder, 256);
}

static void test_a_look_at_the_holder_changes_nothing(void)
{
    char holder[256];
    char expected[64];
    int fd = -1;
    assert(holder_of("nobody.lock", holder) == 0);
    assert(faccessat(root, "nobody.lock", F_OK, 0) != 0);
    assert(lock(holder, &fd) == 0);
    fs->calls->unlock(fs, root, "owner.lock", fd);
    assert(holder_of("owner.lock", holder) == 0);
    assert(lock(holder, &fd) == 0);
    assert(holder_of("owner.lock", holder) == 1);
    snprintf(expected, sizeof expected, "this process %d ", (int)getpid());
    assert(strncmp(holder, expected, strlen(expected)) == 0);
    fflush(NULL);
    const pid_t child = fork(); /* the lock is still there, and another process can tell */
    if (child == 0) {
        snprintf(expected, sizeof expected, "process %d ", (int)getppid());
        _exit(holder_of("owner.lock", holder) == 1 &&
                      strncmp(holder, expected, strlen(expected)) == 0
                  ? 0
                  : 1);
    }
    int status = 0;
    assert(waitpid(child, &status, 0) == child && status == 0);
    fs->calls->unlock(fs, root, "owner.lock", fd);
    puts("ok a_look_at_the_holder_changes_nothing");
}

static void test_lock_wants_a_regular_file(void)
{
    char holder[256];
    int fd = -1;
    assert(mkfifoat(root, "fifo", 0600) == 0 && symlinkat("owner.lock", root, "symlink") == 0);
    assert(fs->calls->make_directory(fs, root, "ns") == 0);
    assert(fs->calls->lock(fs, root, "symlink", holder, sizeof holder, &fd) == -ELOOP);
    assert(fs->calls->lock(fs, root, "fifo", holder, sizeof holder, &fd) == -EINVAL);
    assert(fs->calls->lock(fs, root, "ns", holder, sizeof holder, &fd) == -EISDIR);
    puts("ok lock_wants_a_regular_file");
}

/* A pipe is how processes tell each other of a step; nobody sleeps for a while and hopes. */
static char read_step(int fd)
{
    char step = 0;
    assert(read(fd, &step, 1) == 1);
    return step;
}

static void write_step(int fd, char step)
{
    assert(write(fd, &step, 1) == 1);
}

/* Takes the lock, forks a child that outlives it and inherits the descriptor, then waits. */
static void hold_with_a_child(int to_test)
{
    char holder[256];
    int fd = -1;
    if (lock(holder, &fd) != 0) {
        _exit(1);
    }
    if (fork() == 0) {
        int mine = -1;
        write_step(to_test, lock(holder, &mine) == -EBUSY ? 'b' : '?'); /* the parent's, not ours */
        fs->calls->unlock(fs, root, "owner.lock", fd); /* must not drop the parent's */
        write_step(to_test, 'u');
        pause();
        _exit(0);
    }
    pause();
    _exit(0);
}

static void test_lock_dies_with_its_process_not_with_its_child(void)
{
    char holder[256];
    char expected[64];
    int steps[2];
    int fd = -1;
    assert(pipe(steps) == 0);
    fflush(NULL);
    const pid_t owner = fork();
    assert(owner >= 0);
    if (owner == 0) {
        setpgid(0, 0);
        hold_with_a_child(steps[1]);
    }
    setpgid(owner, owner); /* whichever of the two comes first */
    close(steps[1]);
    assert(read_step(steps[0]) == 'b' && read_step(steps[0]) == 'u');
    assert(lock(holder, &fd) == -EBUSY);
    snprintf(expected, sizeof expected, "process %d (lock file: pid %d host ", (int)owner,
             (int)owner);
    assert(strncmp(holder, expected, strlen(expected)) == 0);

    assert(kill(owner, SIGKILL) == 0);
    assert(waitpid(owner, NULL, 0) == owner);
    assert(kill(-owner, 0) == 0); /* its child still lives */
    assert(lock(holder, &fd) == 0);
    fs->calls->unlock(fs, root, "owner.lock", fd);
    assert(kill(-owner, SIGKILL) == 0);
    char last;
    assert(read(steps[0], &last, 1) == 0); /* the child is gone, too */
    close(steps[0]);
    puts("ok lock_dies_with_its_process_not_with_its_child");
}

static void *lock_often(void *arg)
{
    int *won = arg;
    for (int i = 0; i < 200; i++) {
        char holder[256];
        int fd = -1;
        const int rc = lock(holder, &fd);
        assert(rc == 0 || rc == -EBUSY);
        if (rc == 0) {
            assert(__atomic_add_fetch(won, 1, __ATOMIC_SEQ_CST) == 1);
            __atomic_sub_fetch(won, 1, __ATOMIC_SEQ_CST);
            fs->calls->unlock(fs, root, "owner.lock", fd);
        }
    }
    return NULL;
}

static void test_one_thread_at_a_time_and_forks_in_between(void)
{
    pthread_t threads[3];
    int won = 0;
    for (int i = 0; i < 3; i++) {
        assert(pthread_create(&threads[i], NULL, lock_often, &won) == 0);
    }
    for (int i = 0; i < 10; i++) {
        const pid_t child = fork();
        if (child == 0) {
            char holder[256];
            int fd = -1;
            alarm(20);
            const int rc = lock(holder, &fd); /* must not hang on a mutex taken elsewhere */
            _exit(rc == 0 || rc == -EBUSY ? 0 : 1);
        }
        int status = 0;
        assert(waitpid(child, &status, 0) == child && status == 0);
    }
    for (int i = 0; i < 3; i++) {
        assert(pthread_join(threads[i], NULL) == 0);
    }
    puts("ok one_thread_at_a_time_and_forks_in_between");
}

static int remove_entry(const char *path, const struct stat *file, int kind, struct FTW *where)
{
    (void)file;
    (void)kind;
    (void)where;
    return remove(path);
}

int main(void)
{
    char root_path[512];
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *parent = getenv("TMPDIR");
    snprintf(root_path, sizeof root_path, "%s/kvs-lock-XXXXXX", parent != NULL ? parent : ".");
    assert(mkdtemp(root_path) != NULL);
    assert(kvs_fs_posix_open(&fs) == 0);
    root = fs->calls->open_root(fs, root_path, 0);
    assert(root >= 0);
    test_second_lock_of_this_process_is_refused();
    test_a_look_at_the_holder_changes_nothing();
    test_lock_wants_a_regular_file();
    test_lock_dies_with_its_process_not_with_its_child();
    test_one_thread_at_a_time_and_forks_in_between();
    assert(fs->calls->close(fs, root) == 0);
    kvs_fs_posix_close(fs);
    assert(nftw(root_path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) == 0);
    return 0;
}
