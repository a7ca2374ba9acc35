/*
 * test_io_uring.c: what only the io_uring engine has: refusals by the system, and bounded retries.
 *
 * Build: gcc -std=gnu11 -Icsrc -pthread tests/c/test_io_uring.c csrc/io_uring.c
 */
#define _GNU_SOURCE 1
#include "io_test.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { DEPTH = 8 };

/* Runs check in a child process, because what it changes cannot be undone. */
static void in_child(void (*check)(const struct test_file *), const struct test_file *file)
{
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        check(file);
        fflush(stdout);
        _exit(0);
    }
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
}

static void check_seccomp_refusal(const struct test_file *file)
{
    (void)file;
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};
    CHECK_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    CHECK_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
    struct kvs_io_engine *engine = NULL;
    int fds = count_fds();
    CHECK_EQ(kvs_io_uring_open(DEPTH, &engine), -EPERM);
    CHECK(engine == NULL);
    CHECK_EQ(count_fds(), fds);
    printf("ok seccomp refusal\n");
}

/* An ordinary user with little lockable memory: no registration, all else as before. */
static void check_memlock_refusal(const struct test_file *file)
{
    int fd = open(file->path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    struct rlimit little = {1 << 16, 1 << 16};
    CHECK_EQ(setrlimit(RLIMIT_MEMLOCK, &little), 0);
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) {
        printf("SKIP memlock refusal: cannot become an ordinary user\n");
        return;
    }
    struct kvs_io_engine *engine;
    if (kvs_io_uring_open(DEPTH, &engine) < 0) {
        printf("SKIP memlock refusal: no io_uring for ordinary users\n");
        return;
    }
    char *memory = aligned_buffer(4 << 20);
    CHECK_EQ(engine->calls->register_memory(engine, memory, 4 << 20), -ENOMEM);
    CHECK_EQ(engine->registered, 0);
    CHECK_EQ(run_one(engine, op_of(KVS_IO_READ, fd, memory, 4096, 65536)), 65536);
    check_bytes(memory, 4096, 65536);
    engine->calls->close(engine);
    free(memory);
    printf("ok memlock refusal\n");
}

/* A non-blocking empty pipe answers -EAGAIN each time: sent again, but not for ever. */
static void check_retries_end(const struct test_file *file)
{
    (void)file;
    struct kvs_io_engine *engine;
    int result = kvs_io_uring_open(DEPTH, &engine);
    if (result < 0) {
        printf("SKIP retries: the probe says %s\n", strerror(-result));
        return;
    }
    int ends[2];
    CHECK_EQ(pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
    char buffer[16];
    struct kvs_io_op ops[3 * DEPTH];
    for (unsigned i = 0; i < 3 * DEPTH; i++) {
        ops[i] = op_of(KVS_IO_READ, ends[0], buffer, 0, sizeof buffer);
    }
    run_ops(engine, ops, 3 * DEPTH);
    for (unsigned i = 0; i < 3 * DEPTH; i++) {
        CHECK_EQ(ops[i].result, -EAGAIN);
    }
    CHECK_EQ(write(ends[1], "x", 1), 1);
    CHECK_EQ(run_one(engine, op_of(KVS_IO_READ, ends[0], buffer, 0, sizeof buffer)), 1);
    close(ends[0]);
    close(ends[1]);
    engine->calls->close(engine);
    printf("ok retries end\n");
}

int main(void)
{
    struct test_file file;
    test_file_make(&file, 1 << 20);
    in_child(check_seccomp_refusal, &file);
    in_child(check_memlock_refusal, &file);
    check_retries_end(&file);
    test_file_remove(&file);
    puts("PASS");
    return 0;
}
