/*
 * test_io_uring.c: what only the io_uring engine has: refusals by the system, bounded retries, and
 * fixed buffers, which are used exactly where memory is registered.
 *
 * Includes the engine's source, with the shim, so that it can forge completions (no kernel answers
 * -EAGAIN on demand) and see each request as the kernel gets it.
 */
#define _GNU_SOURCE 1
/* A second copy of the engine is compiled into this program: under names of its own. */
#define kvs_io_uring_open tested_uring_open
#define kvs_io_uring_kind tested_uring_kind

#include "io_test.h"
#include "uring_shim.h"

static unsigned completions_to_forge;

static unsigned forging_peek(struct io_uring *ring, struct io_uring_cqe **cqes, unsigned max)
{
    unsigned count = io_uring_peek_batch_cqe(ring, cqes, max);
    for (unsigned i = 0; i < count && completions_to_forge > 0; i++) {
        cqes[i]->res = completions_to_forge-- % 2 == 0 ? -EAGAIN : -EINTR;
    }
    return count;
}

static unsigned refused_flags;
static unsigned rings_refused;

static int old_kernel_init(unsigned entries, struct io_uring *ring, struct io_uring_params *params)
{
    if (params->flags & refused_flags) {
        rings_refused++;
        return -EINVAL;
    }
    return io_uring_queue_init_params(entries, ring, params);
}

/* The request last queued, the poll on wake_fd aside: the engine sets a request's data last. */
static struct io_uring_sqe last_queued;

static void recording_set_data64(struct io_uring_sqe *sqe, uint64_t data)
{
    io_uring_sqe_set_data64(sqe, data);
    if (sqe->opcode != IORING_OP_POLL_ADD) {
        last_queued = *sqe;
    }
}

#define io_uring_sqe_set_data64 recording_set_data64
#define io_uring_peek_batch_cqe forging_peek
#define io_uring_queue_init_params old_kernel_init
#undef KVS_URING_STATIC
#undef KVS_URING_SHARED
#include "io_uring.c"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { DEPTH = 8, WINDOW = 2 << 20 };

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

static void check_retries(const struct test_file *file)
{
    struct kvs_io_engine *engine;
    int result = kvs_io_uring_open(DEPTH, &engine);
    if (result < 0) {
        printf("SKIP retries: the probe says %s\n", strerror(-result));
        return;
    }
    int fd = open(file->path, O_RDONLY | O_CLOEXEC);
    char buffer[512];
    struct kvs_io_op op = op_of(KVS_IO_READ, fd, buffer, 4096, sizeof buffer);
    completions_to_forge = RETRY_LIMIT;
    CHECK_EQ(run_one(engine, op), sizeof buffer);
    check_bytes(buffer, 4096, sizeof buffer);
    completions_to_forge = RETRY_LIMIT + 1;
    CHECK_EQ(run_one(engine, op), -EINTR);
    CHECK_EQ(completions_to_forge, 0);
    /* A full ring in which every other completion is sent again. */
    struct kvs_io_op ops[8 * DEPTH];
    for (unsigned i = 0; i < 8 * DEPTH; i++) {
        ops[i] = op;
    }
    completions_to_forge = 4 * DEPTH;
    run_ops(engine, ops, 8 * DEPTH);
    CHECK_EQ(completions_to_forge, 0);
    close(fd);
    engine->calls->close(engine);
    printf("ok retries\n");
}

/* Each step is an older kernel, which knows one flag less. */
static void check_old_kernels(const struct test_file *file)
{
    int fd = open(file->path, O_RDONLY | O_CLOEXEC);
    char *memory = aligned_buffer(1 << 16);
    for (unsigned known = 0; known < OPTIONAL_FLAG_COUNT; known++) {
        refused_flags |= OPTIONAL_FLAGS[known];
        rings_refused = 0;
        struct kvs_io_engine *engine;
        int result = kvs_io_uring_open(DEPTH, &engine);
        if (result < 0) {
            printf("SKIP old kernels: the probe says %s\n", strerror(-result));
            break;
        }
        CHECK_EQ(rings_refused, 2 * (known + 1)); /* the probe's ring and the engine's */
        CHECK_EQ(engine->calls->register_memory(engine, memory, 1 << 16), 0);
        CHECK_EQ(run_one(engine, op_of(KVS_IO_READ, fd, memory, 512, 1 << 16)), 1 << 16);
        check_bytes(memory, 512, 1 << 16);
        kvs_wake_write(engine->wake_fd);
        struct kvs_io_op *done;
        CHECK_EQ(engine->calls->reap(engine, &done, 1, -1), 0);
        engine->calls->close(engine);
        printf("ok old kernel, %u flags unknown\n", known + 1);
    }
    refused_flags = IORING_SETUP_R_DISABLED; /* not optional */
    struct kvs_io_engine *engine;
    CHECK(kvs_io_uring_open(DEPTH, &engine) < 0);
    refused_flags = 0;
    free(memory);
    close(fd);
}

/* `bytes` of addresses that all show the same WINDOW bytes of memory: a gigabyte can be registered
 * without having one. */
static char *windows_map(uint64_t bytes)
{
    int fd = memfd_create("windows", MFD_CLOEXEC);
    CHECK(fd >= 0);
    CHECK_EQ(ftruncate(fd, WINDOW), 0);
    char *base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(base != MAP_FAILED);
    for (uint64_t at = 0; at < bytes; at += WINDOW) {
        CHECK(mmap(base + at, WINDOW, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
              base + at);
    }
    close(fd);
    return base;
}

/* Reads and writes through the buffer; both must use that registered piece, or none (-1). */
static void check_opcodes(struct kvs_io_engine *engine, int fd, char *buffer, uint32_t bytes,
                          int piece)
{
    memset(buffer, 0, bytes);
    CHECK_EQ(run_one(engine, op_of(KVS_IO_READ, fd, buffer, 8192, bytes)), bytes);
    check_bytes(buffer, 8192, bytes);
    CHECK_EQ(last_queued.opcode, piece < 0 ? IORING_OP_READ : IORING_OP_READ_FIXED);
    CHECK_EQ(last_queued.buf_index, piece < 0 ? 0 : piece);
    CHECK_EQ(last_queued.addr, (uintptr_t)buffer);
    CHECK_EQ(last_queued.len, bytes);
    CHECK_EQ(run_one(engine, op_of(KVS_IO_WRITE, fd, buffer, 8192, bytes)), bytes);
    CHECK_EQ(last_queued.opcode, piece < 0 ? IORING_OP_WRITE : IORING_OP_WRITE_FIXED);
    CHECK_EQ(last_queued.buf_index, piece < 0 ? 0 : piece);
}

static void check_fixed_buffers(const struct test_file *file)
{
    struct kvs_io_engine *engine;
    int result = kvs_io_uring_open(DEPTH, &engine);
    if (result < 0) {
        printf("SKIP fixed buffers: the probe says %s\n", strerror(-result));
        return;
    }
    const uint64_t edge = PIECE_BYTES, registered = edge + WINDOW;
    char *outside = windows_map(registered + 2 * WINDOW);
    char *base = outside + WINDOW;
    result = engine->calls->register_memory(engine, base, registered);
    if (result == -ENOMEM) {
        printf("SKIP fixed buffers: the limit on locked memory is below 1 GiB\n");
    } else {
        CHECK_EQ(result, 0);
        int fd = open(file->path, O_RDWR | O_CLOEXEC);
        check_opcodes(engine, fd, base, 65536, 0);
        check_opcodes(engine, fd, base + edge - 65536, 65536, 0); /* up to the last byte */
        check_opcodes(engine, fd, base + edge, 65536, 1);
        check_opcodes(engine, fd, base + registered - 4096, 4096, 1);
        check_opcodes(engine, fd, base + edge - 4096, 8192, -1); /* lies in two pieces */
        check_opcodes(engine, fd, base - 4096, 4096, -1);
        check_opcodes(engine, fd, base - 4096, 8192, -1); /* begins before */
        check_opcodes(engine, fd, base + registered - 4096, 8192, -1);
        check_opcodes(engine, fd, base + registered, 4096, -1);
        close(fd);
        printf("ok fixed buffers\n");
    }
    engine->calls->close(engine);
    munmap(outside, registered + 2 * WINDOW);
}

int main(void)
{
    struct test_file file;
    test_file_make(&file, 1 << 20);
    in_child(check_seccomp_refusal, &file);
    in_child(check_memlock_refusal, &file);
    check_retries(&file);
    check_fixed_buffers(&file);
    check_old_kernels(&file);
    test_file_remove(&file);
    puts("PASS");
    return 0;
}
