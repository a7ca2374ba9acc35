/*
 * test_fs_lost.c: what happens where the file system refuses O_DIRECT, O_NOATIME, O_TMPFILE or
 * fallocate. The refusals are made by a seccomp filter, each in a child of its own, so that every
 * machine can show them. Prints "ok NAME" per case.
 */
#define _GNU_SOURCE 1

#include "fs.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CANNOT_FILTER = 77 };

static struct kvs_fs *fs;
static int root;

static void install(struct sock_filter *code, unsigned short length)
{
    const struct sock_fprog program = {.len = length, .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        _exit(CANNOT_FILTER);
    }
}

/* From now on openat fails with `error` when one of `flags` is asked for. */
static void refuse_open(unsigned flags, unsigned error)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, flags, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    install(code, sizeof code / sizeof *code);
}

static void refuse_fallocate(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fallocate, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    install(code, sizeof code / sizeof *code);
}

static int is_there(const char *path)
{
    return faccessat(root, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static void without_tmpfile(void)
{
    struct kvs_fs_temp first;
    struct kvs_fs_temp second;
    struct stat directory;
    char expected[64];
    refuse_open(O_TMPFILE & ~O_DIRECTORY, EOPNOTSUPP);
    assert(fs->calls->open_temp(fs, root, "ns", "tmp", &first) == 0);
    assert(fs->calls->open_temp(fs, root, "ns", "tmp", &second) == 0);
    assert(fs->lost & KVS_FS_LOST_TMPFILE);
    assert(fstatat(root, "tmp", &directory, 0) == 0 && (directory.st_mode & 07777) == 0700);
    snprintf(expected, sizeof expected, "tmp/kv-%d-", (int)getpid());
    assert(strncmp(first.name, expected, strlen(expected)) == 0);
    assert(strcmp(first.name + strlen(first.name) - 4, ".tmp") == 0);
    assert(strcmp(first.name, second.name) != 0);
    assert(is_there(first.name) && is_there(second.name));
    assert(fs->calls->allocate(fs, first.fd, 4096) == 0);
    assert(fs->calls->link(fs, root, &first, "ns/a.kv") == 0 && !is_there(first.name));
    assert(fs->calls->link(fs, root, &second, "ns/a.kv") == -EEXIST && is_there(second.name));
    assert(fs->calls->link(fs, root, &second, "ns/b.kv") == 0 && !is_there(second.name));
    struct kvs_fs_stat stat;
    assert(fs->calls->stat_path(fs, root, "ns/a.kv", &stat) == 0);
    assert(stat.bytes == 4096 && stat.link_count == 1);
    char deep[KVS_FS_NAME_BYTES + 1];
    memset(deep, 'd', sizeof deep);
    deep[sizeof deep - 1] = '\0';
    assert(fs->calls->open_temp(fs, root, "ns", deep, &first) == -ENAMETOOLONG);
    assert(first.fd == -1 && first.name[0] == '\0');
}

static void without_direct(void)
{
    struct kvs_fs_temp temp;
    char got[5];
    refuse_open(O_DIRECT, EINVAL);
    assert(fs->calls->open_temp(fs, root, "ns", "tmp", &temp) == 0);
    assert(fs->lost == KVS_FS_LOST_DIRECT && temp.name[0] == '\0');
    assert(fs->calls->write_at(fs, temp.fd, "hello", 5, 3) == 0);
    assert(fs->calls->link(fs, root, &temp, "ns/buffered.kv") == 0);
    const int fd = fs->calls->open_read(fs, root, "ns/buffered.kv");
    assert(fd >= 0 && (fcntl(fd, F_GETFL) & (O_DIRECT | O_NONBLOCK)) == 0);
    assert(fs->calls->read_at(fs, fd, got, 5, 3) == 0 && memcmp(got, "hello", 5) == 0);
}

static void without_noatime(void)
{
    refuse_open(O_NOATIME, EPERM);
    assert(fs->calls->open_read(fs, root, "file") >= 0);
    assert(fs->lost == KVS_FS_LOST_NOATIME);
}

static void without_permission(void)
{
    refuse_open(O_CLOEXEC, EPERM); /* not about O_NOATIME: the error is passed on */
    assert(fs->calls->open_read(fs, root, "file") == -EPERM);
    assert(fs->lost == 0);
}

static void without_fallocate(void)
{
    struct kvs_fs_temp temp;
    struct kvs_fs_stat stat;
    refuse_fallocate();
    assert(fs->calls->open_temp(fs, root, "ns", "tmp", &temp) == 0);
    assert(fs->calls->allocate(fs, temp.fd, 12288) == 0);
    assert(fs->lost == KVS_FS_LOST_ALLOCATE);
    assert(fs->calls->stat_fd(fs, temp.fd, &stat) == 0 && stat.bytes == 12288);
}

static void in_child(const char *name, void (*test)(void))
{
    const pid_t child = fork();
    assert(child >= 0);
    if (child == 0) {
        fs->lost = 0;
        test();
        _exit(0);
    }
    int status = 0;
    assert(waitpid(child, &status, 0) == child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == CANNOT_FILTER) {
        printf("SKIPPED %s: no seccomp filters here\n", name);
        return;
    }
    assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    printf("ok %s\n", name);
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
    snprintf(root_path, sizeof root_path, "%s/kvs-lost-XXXXXX", parent != NULL ? parent : ".");
    assert(mkdtemp(root_path) != NULL);
    assert(kvs_fs_posix_open(&fs) == 0);
    root = fs->calls->open_root(fs, root_path, 0);
    assert(root >= 0 && fs->calls->make_directory(fs, root, "ns") == 0);
    const int file = openat(root, "file", O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert(file >= 0 && close(file) == 0);
    in_child("without_tmpfile_names_are_used", without_tmpfile);
    in_child("without_direct_reads_and_writes_are_buffered", without_direct);
    in_child("without_noatime_files_still_open", without_noatime);
    in_child("other_refusals_are_passed_on", without_permission);
    in_child("without_fallocate_the_length_is_set", without_fallocate);
    assert(fs->calls->close(fs, root) == 0);
    kvs_fs_posix_close(fs);
    assert(nftw(root_path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) == 0);
    return 0;
}
