/*
 * test_fs_fault.c: the failing file system over the real one, in a fresh directory under TMPDIR
 * (else the current one). Prints "ok NAME" per case.
 */
#define _GNU_SOURCE 1

#include "testing/fs_fault.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct kvs_fs *real;
static struct kvs_fs *fs;
static int root;

static void plan(enum kvs_fs_call call, int error, uint64_t skip, uint64_t count)
{
    const struct kvs_fs_fault fault = {call, error, skip, count, 0};
    kvs_fs_fault_add(fs, &fault);
}

static int is_there(const char *path)
{
    return faccessat(root, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static int any_entry(void *arg, const char *name, uint8_t is_directory)
{
    (void)name;
    (void)is_directory;
    ++*(int *)arg;
    return 0;
}

static void test_passes_everything_on_and_counts(void)
{
    char page[4096] __attribute__((aligned(4096))) = "page";
    char got[4] = "";
    char holder[256];
    int count = 0;
    int lock_fd = -1;
    struct kvs_fs_temp temp;
    struct kvs_fs_stat stat;
    const struct kvs_fs_calls *calls = fs->calls;
    assert(calls->make_directory(fs, root, "ns") == 0);
    assert(calls->open_temp(fs, root, "ns", "tmp", &temp) == 0);
    assert(calls->allocate(fs, temp.fd, sizeof page) == 0);
    assert(calls->direct_unit(fs, temp.fd) == real->calls->direct_unit(real, temp.fd));
    assert(calls->write_at(fs, temp.fd, page, sizeof page, 0) == 0);
    assert(calls->set_times(fs, temp.fd, 5, 6) == 0 && calls->sync_file(fs, temp.fd) == 0);
    assert(calls->link(fs, root, &temp, "ns/a") == 0 && calls->close(fs, temp.fd) == 0);
    assert(calls->rename(fs, root, "ns/a", "ns/b") == 0);
    assert(calls->sync(fs, root) == 0);
    const int fd = calls->open_read(fs, root, "ns/b");
    assert(fd >= 0 && calls->stat_fd(fs, fd, &stat) == 0 && stat.mtime_s == 6);
    assert(calls->read_at(fs, fd, got, 4, 0) == 0 && memcmp(got, "page", 4) == 0);
    assert(calls->close(fs, fd) == 0);
    assert(calls->stat_path(fs, root, "ns/b", &stat) == 0 && stat.bytes == sizeof page);
    assert(calls->list(fs, root, "ns", any_entry, &count) == 0 && count == 1);
    assert(calls->unlink(fs, root, "ns/b") == 0 && !is_there("ns/b"));
    assert(calls->lock(fs, root, "lock", holder, sizeof holder, &lock_fd) == 0);
    calls->unlock(fs, root, "lock", lock_fd);
    assert(calls->remove_directory(fs, root, "ns") == 0 && !is_there("ns"));
    const int moved = dup(root);
    assert(calls->replace(fs, moved, -1) == 0 && openat(moved, "lock", O_RDONLY) < 0);
    assert(errno == ENOTDIR && close(moved) == 0);
    assert(fs->lost == real->lost);

    for (int call = 0; call < KVS_FS_CALL_COUNT; call++) {
        const uint64_t expected = call == KVS_FS_CLOSE ? 2 : call == KVS_FS_SPACE ? 0 : 1;
        assert(kvs_fs_fault_calls(fs, (enum kvs_fs_call)call) == expected);
    }
    puts("ok passes_everything_on_and_counts");
}

static void test_pretends_to_be_poorer(void)
{
    struct kvs_fs_temp temp;
    struct kvs_fs_stat stat;
    const struct kvs_fs_calls *calls = fs->calls;
    kvs_fs_fault_set_direct_unit(fs, 8192);
    kvs_fs_fault_set_poor(fs, KVS_FS_POOR_ATIME_MTIME);
    assert(calls->open_temp(fs, root, "", "tmp", &temp) == 0);
    assert(calls->direct_unit(fs, temp.fd) == 8192);
    assert(calls->set_times(fs, temp.fd, 5, 6) == 0);
    assert(calls->stat_fd(fs, temp.fd, &stat) == 0 && stat.atime_s == 6 && stat.mtime_s == 6);
    kvs_fs_fault_set_poor(fs, KVS_FS_POOR_ATIME_ZERO);
    assert(calls->stat_fd(fs, temp.fd, &stat) == 0 && stat.atime_s == 0 && stat.mtime_s == 6);
    kvs_fs_fault_set_poor(fs, 0);
    kvs_fs_fault_set_direct_unit(fs, 0);
    assert(calls->stat_fd(fs, temp.fd, &stat) == 0 && stat.atime_s == 5);
    assert(calls->direct_unit(fs, temp.fd) == real->calls->direct_unit(real, temp.fd));
    assert(calls->close(fs, temp.fd) == 0);

    kvs_fs_fault_set_poor(fs, KVS_FS_POOR_DIRECT);
    assert(calls->open_temp(fs, root, "", "tmp", &temp) == 0);
    assert((fcntl(temp.fd, F_GETFL) & O_DIRECT) == 0 && calls->direct_unit(fs, temp.fd) == 0);
    assert(fs->lost & KVS_FS_LOST_DIRECT);
    assert(calls->close(fs, temp.fd) == 0);
    kvs_fs_fault_set_poor(fs, 0);
    puts("ok pretends_to_be_poorer");
}

static void test_refuses_when_and_as_often_as_planned(void)
{
    const uint64_t before = kvs_fs_fault_calls(fs, KVS_FS_MAKE_DIRECTORY);
    plan(KVS_FS_MAKE_DIRECTORY, ENOSPC, 1, 2);
    assert(fs->calls->make_directory(fs, root, "one") == 0);
    assert(fs->calls->make_directory(fs, root, "two") == -ENOSPC && !is_there("two"));
    assert(fs->calls->make_directory(fs, root, "two") == -ENOSPC && !is_there("two"));
    assert(fs->calls->make_directory(fs, root, "two") == 0 && is_there("two"));
    assert(kvs_fs_fault_calls(fs, KVS_FS_MAKE_DIRECTORY) == before + 4); /* refused ones too */
    kvs_fs_fault_clear(fs);
    puts("ok refuses_when_and_as_often_as_planned");
}

static void test_first_fault_of_the_plan_wins(void)
{
    plan(KVS_FS_UNLINK, EIO, 0, 1);
    plan(KVS_FS_UNLINK, EROFS, 1, 0); /* not looked at, and so not skipping, while EIO fires */
    assert(fs->calls->unlink(fs, root, "none") == -EIO);
    assert(fs->calls->unlink(fs, root, "none") == -ENOENT);
    for (int i = 0; i < 5; i++) {
        assert(fs->calls->unlink(fs, root, "none") == -EROFS);
    }
    kvs_fs_fault_clear(fs);
    assert(fs->calls->unlink(fs, root, "none") == -ENOENT);
    puts("ok first_fault_of_the_plan_wins");
}

static void test_dropped_calls_report_success_and_do_nothing(void)
{
    struct kvs_fs_stat stat;
    int count = 0;
    char got[4] = "old";
    assert(fs->calls->make_directory(fs, root, "kept") == 0);
    plan(KVS_FS_RENAME, 0, 0, 0);
    plan(KVS_FS_MAKE_DIRECTORY, 0, 0, 0);
    plan(KVS_FS_STAT_PATH, 0, 0, 0);
    plan(KVS_FS_LIST, 0, 0, 0);
    plan(KVS_FS_READ_AT, 0, 0, 0);
    assert(fs->calls->rename(fs, root, "kept", "moved") == 0);
    assert(is_there("kept") && !is_there("moved"));
    assert(fs->calls->make_directory(fs, root, "never") == 0 && !is_there("never"));
    memset(&stat, 0xee, sizeof stat);
    assert(fs->calls->stat_path(fs, root, "kept", &stat) == 0);
    assert(stat.inode == 0 && stat.is_directory == 0);
    assert(fs->calls->list(fs, root, "", any_entry, &count) == 0 && count == 0);
    assert(fs->calls->read_at(fs, root, got, 4, 0) == 0 && strcmp(got, "old") == 0);
    kvs_fs_fault_clear(fs);
    puts("ok dropped_calls_report_success_and_do_nothing");
}

static void test_refused_opens_leave_nothing_behind(void)
{
    struct kvs_fs_temp temp;
    char holder[16] = "stale";
    int lock_fd = -1;
    plan(KVS_FS_OPEN_TEMP, EMFILE, 0, 1);
    plan(KVS_FS_OPEN_READ, EACCES, 0, 1);
    plan(KVS_FS_OPEN_ROOT, EIO, 0, 1);
    plan(KVS_FS_LOCK, ENOLCK, 0, 1);
    assert(fs->calls->open_temp(fs, root, "ns", "tmp", &temp) == -EMFILE && temp.fd == -1);
    assert(fs->calls->open_read(fs, root, "none") == -EACCES);
    assert(fs->calls->open_root(fs, ".", 0) == -EIO);
    assert(fs->calls->lock(fs, root, "lock", holder, sizeof holder, &lock_fd) == -ENOLCK);
    assert(lock_fd == -1 && holder[0] == '\0');
    kvs_fs_fault_clear(fs);
    puts("ok refused_opens_leave_nothing_behind");
}

static void test_failed_close_has_closed_and_dropped_close_has_not(void)
{
    const int first = openat(root, ".", O_RDONLY | O_DIRECTORY);
    const int second = openat(root, ".", O_RDONLY | O_DIRECTORY);
    plan(KVS_FS_CLOSE, EIO, 0, 1);
    plan(KVS_FS_CLOSE, 0, 0, 1);
    assert(fs->calls->close(fs, first) == -EIO && fcntl(first, F_GETFD) == -1);
    assert(fs->calls->close(fs, second) == 0 && fcntl(second, F_GETFD) >= 0);
    kvs_fs_fault_clear(fs);
    assert(fs->calls->close(fs, second) == 0);
    puts("ok failed_close_has_closed_and_dropped_close_has_not");
}

static void test_pretended_space(void)
{
    struct kvs_fs_space truth;
    struct kvs_fs_space space;
    assert(real->calls->space(real, root, &truth) == 0);
    kvs_fs_fault_set_space(fs, 1000000, 0);
    assert(fs->calls->space(fs, root, &space) == 0);
    assert(space.total_bytes == 1000000 && space.free_bytes == 0);
    assert(space.total_inodes == truth.total_inodes && strcmp(space.type, truth.type) == 0);
    kvs_fs_fault_set_space(fs, 0, 0);
    assert(fs->calls->space(fs, root, &space) == 0 && space.total_bytes == truth.total_bytes);
    plan(KVS_FS_SPACE, EIO, 0, 1);
    assert(fs->calls->space(fs, root, &space) == -EIO);
    kvs_fs_fault_clear(fs);
    puts("ok pretended_space");
}

enum { THREADS = 4, CALLS = 2000 };

static void *unlink_often(void *arg)
{
    uint64_t *refused = arg;
    for (int i = 0; i < CALLS; i++) {
        *refused += fs->calls->unlink(fs, root, "none") == -EIO;
    }
    return NULL;
}

static void test_counts_are_exact_across_threads(void)
{
    pthread_t threads[THREADS];
    uint64_t refused[THREADS] = {0};
    uint64_t total = 0;
    const uint64_t before = kvs_fs_fault_calls(fs, KVS_FS_UNLINK);
    plan(KVS_FS_UNLINK, EIO, 100, 777);
    for (int i = 0; i < THREADS; i++) {
        assert(pthread_create(&threads[i], NULL, unlink_often, &refused[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        assert(pthread_join(threads[i], NULL) == 0);
        total += refused[i];
    }
    assert(total == 777);
    assert(kvs_fs_fault_calls(fs, KVS_FS_UNLINK) - before == THREADS * CALLS);
    kvs_fs_fault_clear(fs);
    puts("ok counts_are_exact_across_threads");
}

static int remove_entry(const char *path, const struct stat *file, int kind, struct FTW *where)
{
    (void)file;
    (void)kind;
    (void)where;
    return remove(path);
}

static void *unlink_once(void *argument)
{
    *(int *)argument = fs->calls->unlink(fs, root, "not there");
    return NULL;
}

static void test_a_stalled_call_goes_on_when_it_is_released(void)
{
    const struct kvs_fs_fault fault = {.call = KVS_FS_UNLINK, .count = 1, .stalls = 1};
    pthread_t thread;
    int result = 1;
    kvs_fs_fault_add(fs, &fault);
    assert(pthread_create(&thread, NULL, unlink_once, &result) == 0);
    while (kvs_fs_fault_stalled(fs) == 0) {
        sched_yield();
    }
    assert(fs->calls->unlink(fs, root, "not there") == -ENOENT); /* the plan was for one */
    kvs_fs_fault_release_stalled(fs);
    pthread_join(thread, NULL);
    assert(result == -ENOENT && kvs_fs_fault_stalled(fs) == 0);
    kvs_fs_fault_clear(fs);
    puts("ok a stalled call goes on when it is released");
}

int main(void)
{
    char root_path[512];
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *parent = getenv("TMPDIR");
    snprintf(root_path, sizeof root_path, "%s/kvs-fault-XXXXXX", parent != NULL ? parent : ".");
    assert(mkdtemp(root_path) != NULL);
    assert(kvs_fs_posix_open(&real) == 0);
    assert(kvs_fs_fault_open(real, &fs) == 0);
    root = fs->calls->open_root(fs, root_path, 0);
    assert(root >= 0);
    test_passes_everything_on_and_counts();
    test_pretends_to_be_poorer();
    test_refuses_when_and_as_often_as_planned();
    test_first_fault_of_the_plan_wins();
    test_dropped_calls_report_success_and_do_nothing();
    test_refused_opens_leave_nothing_behind();
    test_failed_close_has_closed_and_dropped_close_has_not();
    test_pretended_space();
    test_counts_are_exact_across_threads();
    test_a_stalled_call_goes_on_when_it_is_released();
    assert(fs->calls->close(fs, root) == 0);
    kvs_fs_fault_close(fs);
    kvs_fs_posix_close(real);
    assert(nftw(root_path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) == 0);
    return 0;
}
