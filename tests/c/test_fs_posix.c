/*
 * test_fs_posix.c: the Linux file system in a fresh directory under TMPDIR (else the current one).
 * Prints "ok NAME" per case. What a file system may refuse is tested in test_fs_lost.c.
 */
#define _GNU_SOURCE 1

#include "fs.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct kvs_fs *fs;
static int root;
static char root_path[512];

static int open_temp(struct kvs_fs_temp *temp)
{
    return fs->calls->open_temp(fs, root, "ns/abc", "tmp", temp);
}

static int mode_of(const char *path)
{
    struct stat file;
    assert(fstatat(root, path, &file, AT_SYMLINK_NOFOLLOW) == 0);
    return (int)(file.st_mode & 07777);
}

static int is_there(const char *path)
{
    struct kvs_fs_stat stat;
    const int rc = fs->calls->stat_path(fs, root, path, &stat);
    assert(rc == 0 || rc == -ENOENT);
    return rc == 0;
}

static void make_file(const char *path, const char *text)
{
    const int fd = openat(root, path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

static void test_directories_are_made_with_parents(void)
{
    assert(fs->calls->make_directory(fs, root, "ns/abc") == 0);
    assert(fs->calls->make_directory(fs, root, "ns/abc") == 0);
    assert(fs->calls->make_directory(fs, root, "ns/def/") == 0);
    assert(mode_of("ns") == 0700 && mode_of("ns/abc") == 0700 && is_there("ns/def"));
    assert(fs->calls->make_directory(fs, root, "/absolute") == -EINVAL);
    make_file("plain", "x");
    assert(fs->calls->make_directory(fs, root, "plain") == -ENOTDIR);
    assert(fs->calls->make_directory(fs, root, "plain/below") == -ENOTDIR);
    assert(symlinkat("ns", root, "link") == 0);
    assert(fs->calls->make_directory(fs, root, "link/below") == -ENOTDIR);
    assert(unlinkat(root, "link", 0) == 0);
    puts("ok directories_are_made_with_parents");
}

static void test_root_is_created_but_not_its_parents(void)
{
    char path[600];
    snprintf(path, sizeof path, "%s/new", root_path);
    assert(fs->calls->open_root(fs, path, 0) == -ENOENT);
    const int fd = fs->calls->open_root(fs, path, 1);
    assert(fd >= 0 && mode_of("new") == 0700 && (fcntl(fd, F_GETFD) & FD_CLOEXEC));
    assert(fs->calls->close(fs, fd) == 0);
    snprintf(path, sizeof path, "%s/missing/new", root_path);
    assert(fs->calls->open_root(fs, path, 1) == -ENOENT);
    snprintf(path, sizeof path, "%s/plain", root_path);
    assert(fs->calls->open_root(fs, path, 1) == -ENOTDIR);
    puts("ok root_is_created_but_not_its_parents");
}

static void test_only_regular_files_are_opened(void)
{
    make_file("file", "content");
    const int fd = fs->calls->open_read(fs, root, "file");
    assert(fd >= 0 && (fcntl(fd, F_GETFL) & O_NONBLOCK) == 0);
    assert((fs->lost & KVS_FS_LOST_DIRECT) != 0 || (fcntl(fd, F_GETFL) & O_DIRECT) != 0);
    fs->calls->close(fs, fd);

    const uint32_t lost = fs->lost;
    assert(mkfifoat(root, "fifo", 0600) == 0);
    alarm(20); /* an open that blocks ends the test */
    assert(fs->calls->open_read(fs, root, "fifo") == -EINVAL);
    alarm(0);
    assert(symlinkat("file", root, "symlink") == 0);
    assert(fs->calls->open_read(fs, root, "symlink") == -ELOOP);
    assert(fs->calls->open_read(fs, root, "ns") == -EINVAL);
    assert(fs->calls->open_read(fs, root, "none") == -ENOENT);
    const int devices = open("/dev", O_RDONLY | O_DIRECTORY);
    assert(devices >= 0 && fs->calls->open_read(fs, devices, "null") == -EINVAL);
    close(devices);
    assert(fs->lost == lost); /* a refused file says nothing about the file system */
    puts("ok only_regular_files_are_opened");
}

/* Every call with a link to a directory outside the root on the way: nothing out there moves. */
static void test_a_link_on_the_way_is_not_followed(void)
{
    struct kvs_fs_temp temp;
    struct kvs_fs_stat stat;
    struct stat before, after;
    char outside[600];
    snprintf(outside, sizeof outside, "%s.outside", root_path);
    assert(mkdir(outside, 0700) == 0 && symlinkat(outside, root, "away") == 0);
    const int fd = open(outside, O_RDONLY | O_DIRECTORY);
    assert(fd >= 0 && close(openat(fd, "file", O_WRONLY | O_CREAT, 0600)) == 0);
    assert(mkdirat(fd, "below", 0700) == 0 && fstat(fd, &before) == 0);
    make_file("inside", "x");
    assert(fs->calls->open_read(fs, root, "away/file") == -ENOTDIR);
    assert(fs->calls->stat_path(fs, root, "away/file", &stat) == -ENOTDIR);
    assert(fs->calls->unlink(fs, root, "away/file") == -ENOTDIR);
    assert(fs->calls->rename(fs, root, "away/file", "stolen") == -ENOTDIR);
    assert(fs->calls->rename(fs, root, "inside", "away/given") == -ENOTDIR);
    assert(fs->calls->list(fs, root, "away/below", NULL, NULL) == -ENOTDIR);
    assert(fs->calls->make_directory(fs, root, "away/new") == -ENOTDIR);
    assert(fs->calls->open_temp(fs, root, "away/below", "away/tmp", &temp) == -ENOTDIR);
    assert(open_temp(&temp) == 0);
    assert(fs->calls->link(fs, root, &temp, "away/linked") == -ENOTDIR);
    fs->calls->close(fs, temp.fd);
    assert(fstat(fd, &after) == 0 && after.st_nlink == before.st_nlink);
    assert(after.st_mtim.tv_sec == before.st_mtim.tv_sec);
    assert(after.st_mtim.tv_nsec == before.st_mtim.tv_nsec);
    assert(unlinkat(root, "away", 0) == 0 && unlinkat(root, "inside", 0) == 0);
    assert(unlinkat(fd, "file", 0) == 0 && unlinkat(fd, "below", AT_REMOVEDIR) == 0);
    close(fd);
    assert(rmdir(outside) == 0);
    puts("ok a_link_on_the_way_is_not_followed");
}

static int count_entries(void *arg, const char *name, uint8_t is_directory)
{
    (void)name;
    (void)is_directory;
    ++*(int *)arg;
    return 0;
}

static int entries(const char *path)
{
    int count = 0;
    assert(fs->calls->list(fs, root, path, count_entries, &count) == 0);
    return count;
}

static void fill_and_check(struct kvs_fs_temp *temp)
{
    static char page[8192] __attribute__((aligned(4096)));
    struct kvs_fs_stat stat;
    memset(page, 'k', sizeof page);
    assert(fs->calls->allocate(fs, temp->fd, sizeof page) == 0);
    assert(fs->calls->stat_fd(fs, temp->fd, &stat) == 0);
    assert(stat.bytes == sizeof page && stat.is_regular && !stat.is_directory);
    assert((fs->lost & KVS_FS_LOST_ALLOCATE) != 0 || stat.physical_bytes >= sizeof page);
    assert(fs->calls->write_at(fs, temp->fd, page, sizeof page, 0) == 0);
    assert(fs->calls->set_times(fs, temp->fd, 1000, 4000000000) == 0);
    assert(fs->calls->sync_file(fs, temp->fd) == 0);
}

static void test_temporary_file_becomes_visible_whole(void)
{
    struct kvs_fs_temp temp;
    struct kvs_fs_temp second;
    struct kvs_fs_stat stat;
    assert(open_temp(&temp) == 0 && open_temp(&second) == 0);
    assert(entries("ns/abc") == 0);
    fill_and_check(&temp);
    assert(fs->calls->link(fs, root, &temp, "ns/abc/first.kv") == 0);
    assert(fs->calls->link(fs, root, &second, "ns/abc/first.kv") == -EEXIST);
    assert(fs->calls->link(fs, root, &second, "ns/abc/second.kv") == 0); /* not spoilt by it */
    assert(entries("ns/abc") == 2);
    assert(fs->calls->sync(fs, root) == 0);
    assert(fs->calls->stat_path(fs, root, "ns/abc/first.kv", &stat) == 0);
    assert(stat.bytes == 8192 && stat.atime_s == 1000 && stat.mtime_s == 4000000000);
    assert(stat.link_count == 1 && mode_of("ns/abc/first.kv") == 0600);
    assert(fs->calls->rename(fs, root, "ns/abc/first.kv", "ns/abc/second.kv") == 0);
    assert(!is_there("ns/abc/first.kv"));
    assert(fs->calls->unlink(fs, root, "ns/abc/second.kv") == 0);
    assert(fs->calls->unlink(fs, root, "ns/abc/second.kv") == -ENOENT);
    fs->calls->close(fs, temp.fd);
    fs->calls->close(fs, second.fd);
    puts("ok temporary_file_becomes_visible_whole");
}

/* A temporary file with a name, as on a file system without O_TMPFILE. */
static void test_named_temporary_file_loses_its_name(void)
{
    struct kvs_fs_temp temp = {.name = "tmp/kv-named.tmp"};
    assert(fs->calls->make_directory(fs, root, "tmp") == 0);
    make_file("taken", "x");
    temp.fd = openat(root, temp.name, O_RDWR | O_CREAT | O_EXCL, 0600);
    assert(temp.fd >= 0);
    fill_and_check(&temp);
    assert(fs->calls->link(fs, root, &temp, "taken") == -EEXIST && is_there(temp.name));
    assert(fs->calls->link(fs, root, &temp, "ns/named.kv") == 0);
    assert(is_there("ns/named.kv") && !is_there(temp.name));
    fs->calls->close(fs, temp.fd);
    puts("ok named_temporary_file_loses_its_name");
}

/* /proc has no O_TMPFILE, and no room for names: both answers show. */
static void test_missing_directory_is_passed_on(void)
{
    struct kvs_fs_temp temp;
    assert(fs->calls->open_temp(fs, root, "none/here", "tmp", &temp) == -ENOENT);
    const int proc = open("/proc", O_RDONLY | O_DIRECTORY);
    assert(proc >= 0 && fs->calls->open_temp(fs, proc, "self", "self", &temp) < 0);
    assert(temp.fd == -1 && temp.name[0] == '\0');
    close(proc);
    puts("ok missing_directory_is_passed_on");
}

static void test_reads_take_any_alignment(void)
{
    enum { BYTES = 3 * 300000 + 17 };
    char *content = malloc(BYTES);
    char *got = malloc(BYTES + 1);
    assert(content != NULL && got != NULL);
    for (int i = 0; i < BYTES; i++) {
        content[i] = (char)(i * 31 + i / 4096);
    }
    const int out = openat(root, "odd", O_WRONLY | O_CREAT, 0600);
    assert(out >= 0 && fs->calls->write_at(fs, out, content, BYTES, 0) == 0); /* buffered: any */
    close(out);
    const int fd = fs->calls->open_read(fs, root, "odd");
    assert(fd >= 0);
    const uint32_t offsets[] = {0, 1, 4095, 4096, 5000, 262143, 300001, BYTES - 5};
    const uint32_t lengths[] = {1, 2, 4096, 4097, 8191, 300000, BYTES};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        for (size_t j = 0; j < sizeof lengths / sizeof *lengths; j++) {
            const int inside = offsets[i] + lengths[j] <= BYTES;
            got[lengths[j]] = '!';
            const int rc = fs->calls->read_at(fs, fd, got, lengths[j], offsets[i]);
            assert(rc == (inside ? 0 : -ENODATA) && got[lengths[j]] == '!');
            assert(!inside || memcmp(got, content + offsets[i], lengths[j]) == 0);
        }
    }
    assert(fs->calls->read_at(fs, fd, got, 1, BYTES) == -ENODATA);
    assert(fs->calls->read_at(fs, fd, got, 1, (uint64_t)1 << 40) == -ENODATA);
    assert(fs->calls->read_at(fs, fd, got, 0, 0) == 0);
    fs->calls->close(fs, fd);
    free(content);
    free(got);
    puts("ok reads_take_any_alignment");
}

static void test_writes_take_unaligned_memory(void)
{
    enum { BYTES = 100 * 4096 };
    struct kvs_fs_temp temp;
    char *content = malloc(BYTES + 1);
    char *got = malloc(BYTES);
    assert(content != NULL && got != NULL && open_temp(&temp) == 0);
    for (int i = 0; i <= BYTES; i++) {
        content[i] = (char)(i * 7 + i / 4096);
    }
    assert(fs->calls->write_at(fs, temp.fd, content + 1, BYTES, 8192) == 0);
    assert(fs->calls->read_at(fs, temp.fd, got, BYTES, 8192) == 0);
    assert(memcmp(got, content + 1, BYTES) == 0);
    fs->calls->close(fs, temp.fd);
    free(content);
    free(got);
    puts("ok writes_take_unaligned_memory");
}

struct seen {
    int directories;
    int others;
    int stop_with;
};

static int see(void *arg, const char *name, uint8_t is_directory)
{
    struct seen *seen = arg;
    assert(strcmp(name, ".") != 0 && strcmp(name, "..") != 0);
    *(is_directory ? &seen->directories : &seen->others) += 1;
    return seen->stop_with;
}

static void test_listing_tells_directories_and_can_be_stopped(void)
{
    assert(fs->calls->make_directory(fs, root, "list/sub") == 0);
    make_file("list/file", "x");
    assert(symlinkat("sub", root, "list/link") == 0);
    struct seen all = {0};
    assert(fs->calls->list(fs, root, "list", see, &all) == 0);
    assert(all.directories == 1 && all.others == 2);
    struct seen stopped = {.stop_with = 1};
    assert(fs->calls->list(fs, root, "list", see, &stopped) == 0);
    assert(stopped.directories + stopped.others == 1);
    struct seen failed = {.stop_with = -ENOMEM};
    assert(fs->calls->list(fs, root, "list", see, &failed) == -ENOMEM);
    assert(fs->calls->list(fs, root, "list/link", see, &all) < 0);
    assert(fs->calls->list(fs, root, "list/none", see, &all) == -ENOENT);
    assert(entries("") > 0);
    puts("ok listing_tells_directories_and_can_be_stopped");
}

static void test_a_directory_is_removed_when_it_is_empty_and_one(void)
{
    const struct kvs_fs_calls *calls = fs->calls;
    assert(calls->make_directory(fs, root, "gone/sub") == 0);
    assert(symlinkat("gone", root, "way") == 0 && symlinkat("sub", root, "gone/link") == 0);
    assert(calls->remove_directory(fs, root, "gone") == -ENOTEMPTY);
    assert(calls->remove_directory(fs, root, "gone/link") == -ENOTDIR);
    assert(calls->remove_directory(fs, root, "way/sub") == -ENOTDIR);
    assert(calls->remove_directory(fs, root, "gone/sub") == 0);
    assert(calls->remove_directory(fs, root, "gone/sub") == -ENOENT);
    puts("ok a_directory_is_removed_when_it_is_empty_and_one");
}

static void test_times_that_others_set_are_bounded(void)
{
    struct kvs_fs_stat stat;
    const int fd = memfd_create("far", MFD_CLOEXEC); /* any time fits into its inode */
    const struct timespec times[2] = {{.tv_sec = INT64_MIN}, {.tv_sec = INT64_MAX}};
    assert(fd >= 0 && futimens(fd, times) == 0);
    assert(fs->calls->stat_fd(fs, fd, &stat) == 0);
    assert(stat.atime_s == -KVS_FS_TIME_MAX_S && stat.mtime_s == KVS_FS_TIME_MAX_S);
    close(fd);
    puts("ok times_that_others_set_are_bounded");
}

static void test_space_is_told(void)
{
    struct kvs_fs_space space;
    assert(fs->calls->space(fs, root, &space) == 0);
    assert(space.total_bytes > 0 && space.free_bytes <= space.total_bytes);
    assert(space.free_inodes <= space.total_inodes && space.type[0] != '\0');
    const int proc = open("/proc", O_RDONLY | O_DIRECTORY);
    assert(proc >= 0 && fs->calls->space(fs, proc, &space) == 0);
    assert(strcmp(space.type, "0x00009fa0") == 0); /* unknown ones by their magic */
    close(proc);
    puts("ok space_is_told");
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
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *parent = getenv("TMPDIR");
    snprintf(root_path, sizeof root_path, "%s/kvs-fs-XXXXXX", parent != NULL ? parent : ".");
    assert(mkdtemp(root_path) != NULL);
    assert(kvs_fs_posix_open(&fs) == 0);
    root = fs->calls->open_root(fs, root_path, 0);
    assert(root >= 0);
    test_directories_are_made_with_parents();
    test_root_is_created_but_not_its_parents();
    test_only_regular_files_are_opened();
    test_a_link_on_the_way_is_not_followed();
    test_temporary_file_becomes_visible_whole();
    test_named_temporary_file_loses_its_name();
    test_missing_directory_is_passed_on();
    test_reads_take_any_alignment();
    test_writes_take_unaligned_memory();
    test_listing_tells_directories_and_can_be_stopped();
    test_a_directory_is_removed_when_it_is_empty_and_one();
    test_times_that_others_set_are_bounded();
    test_space_is_told();
    assert(fs->calls->close(fs, root) == 0);
    assert(fs->calls->close(fs, root) == -EBADF);
    printf("   lost bits %u\n", fs->lost);
    kvs_fs_posix_close(fs);
    assert(nftw(root_path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) == 0);
    return 0;
}
