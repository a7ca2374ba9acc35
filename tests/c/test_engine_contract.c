/*
 * test_engine_contract.c: the contract of io.h, one suite for every engine.
 *
 * Build: gcc -std=gnu11 -Icsrc -pthread tests/c/test_engine_contract.c csrc/io_uring.c
 *            csrc/io_aio.c csrc/io_threads.c csrc/testing/{io_fault,fault_plan,virtual_clock}.c
 */
#define _GNU_SOURCE 1
#include "engine_subject.h"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>

enum { FILE_BYTES = (1 << 20) + 100, MANY = 300 };
static const int64_t MS = 1000000;

/* Many more reads than depth, at many offsets and lengths; `unit` is the alignment. */
static void check_reads(struct subject *s, int fd, uint32_t unit, char *memory, size_t memory_bytes)
{
    struct kvs_io_op *ops = calloc(MANY, sizeof *ops);
    CHECK(ops != NULL && memory_bytes >= MANY * 2 * 4096u);
    for (uint32_t i = 0; i < MANY; i++) {
        uint64_t offset = (uint64_t)i * 37 % 200 * unit;
        uint32_t bytes = unit * (1 + i % (8192 / unit));
        ops[i] = op_of(KVS_IO_READ, fd, memory + (size_t)i * 8192, offset, bytes);
    }
    run_ops(s->engine, ops, MANY);
    for (uint32_t i = 0; i < MANY; i++) {
        CHECK_EQ(kvs_io_status(&ops[i]), 0);
        check_bytes(ops[i].buffer, ops[i].offset, ops[i].bytes);
    }
    free(ops);
}

static void test_buffered_reads_are_whole(struct subject *s)
{
    char *memory = aligned_buffer(MANY * 8192);
    int fd = open_file(s, O_RDONLY);
    check_reads(s, fd, 512, memory, MANY * 8192);
    close(fd);
    free(memory);
}

static void test_direct_reads_are_whole(struct subject *s)
{
    int fd = open(s->file->path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (fd < 0) {
        printf("SKIP direct reads on %s: this file system refuses O_DIRECT\n", s->name);
        return;
    }
    char *memory = aligned_buffer(MANY * 8192);
    check_reads(s, fd, 4096, memory, MANY * 8192);
    close(fd);
    free(memory);
}

static void test_writes_reach_the_file(struct subject *s)
{
    enum { COUNT = 64, BYTES = 4096 };
    int fd = open(s->file->directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0) {
        fd = memfd_create("writes", MFD_CLOEXEC);
    }
    CHECK(fd >= 0);
    char *memory = aligned_buffer(COUNT * BYTES);
    fill_bytes(memory, 7, COUNT * BYTES);
    struct kvs_io_op ops[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        ops[i] = op_of(KVS_IO_WRITE, fd, memory + i * BYTES, (uint64_t)i * BYTES, BYTES);
    }
    run_ops(s->engine, ops, COUNT);
    char *back = aligned_buffer(COUNT * BYTES);
    CHECK_EQ(pread(fd, back, COUNT * BYTES, 0), COUNT * BYTES);
    for (uint32_t i = 0; i < COUNT; i++) {
        CHECK_EQ(kvs_io_status(&ops[i]), 0);
    }
    CHECK_EQ(memcmp(memory, back, COUNT * BYTES), 0);
    free(back);
    free(memory);
    close(fd);
}

static void test_end_of_file_is_short_and_past_it_is_nothing(struct subject *s)
{
    char *buffer = aligned_buffer(4096);
    int fd = open_file(s, O_RDONLY);
    struct kvs_io_op op = op_of(KVS_IO_READ, fd, buffer, FILE_BYTES - 100, 4096);
    run_ops(s->engine, &op, 1);
    CHECK_EQ(op.result, 100);
    CHECK_EQ(kvs_io_status(&op), -EAGAIN);
    check_bytes(buffer, FILE_BYTES - 100, 100);
    op = op_of(KVS_IO_READ, fd, buffer, FILE_BYTES + 4096, 4096);
    run_ops(s->engine, &op, 1);
    CHECK_EQ(op.result, 0);
    CHECK_EQ(kvs_io_status(&op), -ENODATA);
    close(fd);
    free(buffer);
}

static void test_errors_are_the_kernels_and_hit_one_operation_only(struct subject *s)
{
    char *buffer = aligned_buffer(8192);
    int fd = open_file(s, O_RDONLY);
    struct kvs_io_op ops[] = {
        op_of(KVS_IO_READ, -1, buffer, 0, 4096), op_of(KVS_IO_READ, fd, buffer + 4096, 4096, 4096),
        op_of(KVS_IO_WRITE, fd, buffer, 0, 4096), op_of(KVS_IO_READ, 1 << 20, buffer, 0, 4096)};
    run_ops(s->engine, ops, 4);
    CHECK_EQ(ops[0].result, -EBADF);
    CHECK_EQ(ops[1].result, 4096);
    check_bytes(buffer + 4096, 4096, 4096);
    CHECK_EQ(ops[2].result, -EBADF); /* not open for writing */
    CHECK_EQ(ops[3].result, -EBADF);
    close(fd);
    free(buffer);
}

static void test_submit_takes_no_more_than_depth(struct subject *s)
{
    char *buffer = aligned_buffer((DEPTH + 3) * 512);
    int fd = open_file(s, O_RDONLY);
    struct kvs_io_op ops[DEPTH + 3], *list[DEPTH + 3], *done[DEPTH + 3];
    for (unsigned i = 0; i < DEPTH + 3; i++) {
        ops[i] = op_of(KVS_IO_READ, fd, buffer + i * 512, i * 512, 512);
        list[i] = &ops[i];
    }
    CHECK_EQ(s->engine->calls->submit(s->engine, list, DEPTH + 3), DEPTH);
    CHECK_EQ(s->engine->calls->submit(s->engine, list + DEPTH, 3), 0);
    CHECK_EQ(s->engine->calls->reap(s->engine, done, 1, -1), 1);
    CHECK_EQ(s->engine->calls->submit(s->engine, list + DEPTH, 3), 1);
    for (unsigned reaped = 1; reaped < DEPTH + 1;) {
        int finished = s->engine->calls->reap(s->engine, done, DEPTH + 3, -1);
        CHECK(finished >= 1);
        reaped += (unsigned)finished;
    }
    CHECK_EQ(s->engine->calls->reap(s->engine, done, DEPTH + 3, 0), 0);
    for (unsigned i = 0; i < DEPTH + 1; i++) {
        CHECK_EQ(ops[i].result, 512);
        check_bytes(ops[i].buffer, ops[i].offset, 512);
    }
    close(fd);
    free(buffer);
}

/* A ring belongs to the thread that used it first: these tests open an engine of their own. */
static void test_a_wake_up_ends_a_sleeping_reap(struct subject *shared)
{
    struct subject s = *shared;
    CHECK_EQ(subject_open(&s, DEPTH), 0);
    struct sleeper sleeper = {.engine = s.engine, .timeout_ns = -1, .result = -1};
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, sleeper_run, &sleeper), 0);
    await_asleep(&sleeper);
    wake(s.engine);
    pthread_join(thread, NULL);
    CHECK_EQ(sleeper.result, 0);
    subject_close(&s);
}

static int signals_handled; /* atomic */

static void on_signal(int number)
{
    (void)number;
    __atomic_add_fetch(&signals_handled, 1, __ATOMIC_RELEASE);
}

static void test_a_signal_does_not_end_a_sleeping_reap(struct subject *shared)
{
    struct subject s = *shared;
    CHECK_EQ(subject_open(&s, DEPTH), 0);
    struct sigaction action = {.sa_handler = on_signal}; /* no SA_RESTART */
    CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
    struct sleeper sleeper = {.engine = s.engine, .timeout_ns = -1, .result = -1};
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, sleeper_run, &sleeper), 0);
    await_asleep(&sleeper);
    int before = __atomic_load_n(&signals_handled, __ATOMIC_ACQUIRE);
    CHECK_EQ(pthread_kill(thread, SIGUSR1), 0);
    while (__atomic_load_n(&signals_handled, __ATOMIC_ACQUIRE) == before) {
        sched_yield();
    }
    wake(s.engine);
    pthread_join(thread, NULL);
    CHECK_EQ(sleeper.result, 0);
    /* It was the wake-up that ended it: had the signal done so, the eventfd would still be full. */
    struct pollfd left = {.fd = s.engine->wake_fd, .events = POLLIN};
    CHECK_EQ(poll(&left, 1, 0), 0);
    subject_close(&s);
}

static void test_wake_ups_before_reap_are_kept_and_merge(struct subject *s)
{
    struct kvs_io_op *done;
    wake(s->engine);
    wake(s->engine);
    CHECK_EQ(s->engine->calls->reap(s->engine, &done, 1, -1), 0);
    /* The waker's writes are gone: a read is now waited for, not answered with another 0. */
    char *buffer = aligned_buffer(4096);
    int fd = open_file(s, O_RDONLY);
    struct kvs_io_op op = op_of(KVS_IO_READ, fd, buffer, 0, 4096), *list = &op;
    CHECK_EQ(s->engine->calls->submit(s->engine, &list, 1), 1);
    CHECK_EQ(s->engine->calls->reap(s->engine, &done, 1, -1), 1);
    CHECK(done == &op);
    close(fd);
    free(buffer);
}

static void test_reap_times_out_with_nothing(struct subject *s)
{
    struct kvs_io_op *done;
    CHECK_EQ(s->engine->calls->reap(s->engine, &done, 1, 0), 0);
    if (s->clock == NULL) {
        CHECK_EQ(s->engine->calls->reap(s->engine, &done, 1, 2 * MS), 0);
        return;
    }
    struct sleeper sleeper = {.engine = s->engine, .timeout_ns = 2 * MS, .result = -1};
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, sleeper_run, &sleeper), 0);
    CHECK_EQ(kvs_io_fault_settle(s->engine, 10000), 0);
    kvs_virtual_clock_advance(s->clock, 2 * MS);
    pthread_join(thread, NULL);
    CHECK_EQ(sleeper.result, 0);
}

/* 1 GiB and 2 MiB of addresses over one 2 MiB memfd: two registered pieces, little real memory. */
static char *cheap_big_memory(uint64_t bytes, uint64_t period)
{
    int fd = memfd_create("big", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)period) == 0);
    char *base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(base != MAP_FAILED);
    for (uint64_t at = 0; at < bytes; at += period) {
        CHECK(mmap(base + at, period, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
              base + at);
    }
    close(fd);
    return base;
}

/* Buffers inside, outside, across the edge and across two pieces all work the same. */
static void test_registered_memory_changes_nothing_but_speed(struct subject *shared)
{
    const uint64_t piece = (uint64_t)1 << 30, period = (uint64_t)1 << 21, bytes = piece + period;
    struct subject s = *shared;
    CHECK_EQ(subject_open(&s, DEPTH), 0);
    char *base = cheap_big_memory(bytes + period, period);
    int result = s.engine->calls->register_memory(s.engine, base, bytes);
    CHECK_EQ(s.engine->registered, result == 0);
    if (result < 0) {
        printf("NOTE %s: memory not registered: %s\n", s.name, strerror(-result));
    }
    char *outside = aligned_buffer(8192);
    char *starts[] = {base,
                      base + piece - 8192,
                      base + piece - 4096,
                      base + piece,
                      base + bytes - 8192,
                      base + bytes - 4096,
                      base + bytes,
                      outside};
    enum { COUNT = sizeof starts / sizeof starts[0] };
    int fd = open_file(&s, O_RDONLY);
    for (uint32_t i = 0; i < COUNT; i++) {
        memset(starts[i], 0, 8192);
        CHECK_EQ(run_one(s.engine, op_of(KVS_IO_READ, fd, starts[i], i * 8192u, 8192)), 8192);
        check_bytes(starts[i], i * 8192u, 8192);
    }
    int copy = memfd_create("copy", MFD_CLOEXEC);
    CHECK_EQ(run_one(s.engine, op_of(KVS_IO_WRITE, copy, outside, 0, 8192)), 8192);
    fill_bytes(base + piece - 4096, 0, 8192);
    CHECK_EQ(run_one(s.engine, op_of(KVS_IO_WRITE, copy, base + piece - 4096, 0, 8192)), 8192);
    CHECK_EQ(run_one(s.engine, op_of(KVS_IO_READ, copy, base, 0, 8192)), 8192);
    check_bytes(base, 0, 8192);
    CHECK_EQ(run_one(s.engine, op_of(KVS_IO_WRITE, copy, base, 8192, 8192)), 8192);
    CHECK_EQ(run_one(s.engine, op_of(KVS_IO_READ, copy, outside, 8192, 8192)), 8192);
    check_bytes(outside, 0, 8192);
    close(copy);
    close(fd);
    subject_close(&s);
    munmap(base, bytes + period);
    free(outside);
}

static void *use_from_another_thread(void *arg)
{
    test_buffered_reads_are_whole(arg);
    return NULL;
}

static void test_one_thread_opens_another_uses_the_first_closes(struct subject *shared)
{
    struct subject s = *shared;
    CHECK_EQ(subject_open(&s, DEPTH), 0);
    char *memory = aligned_buffer(1 << 20);
    int result = s.engine->calls->register_memory(s.engine, memory, 1 << 20);
    CHECK_EQ(s.engine->registered, result == 0);
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, use_from_another_thread, &s), 0);
    pthread_join(thread, NULL);
    subject_close(&s);
    free(memory);
}

static void test_impossible_depths_are_refused(struct subject *shared)
{
    struct subject s = *shared;
    CHECK_EQ(subject_open(&s, 0), -EINVAL);
    CHECK_EQ(subject_open(&s, 1u << 30), -EINVAL);
    CHECK_EQ(subject_open(&s, 1), 0);
    test_buffered_reads_are_whole(&s);
    subject_close(&s);
}

static void test_an_unused_engine_closes(struct subject *shared)
{
    struct subject s = *shared;
    CHECK_EQ(subject_open(&s, DEPTH), 0);
    subject_close(&s);
}

static void run_suite(const char *name, const struct test_file *file)
{
    static const struct {
        const char *name;
        void (*run)(struct subject *);
    } tests[] = {
#define TEST(function) {#function, function}
        TEST(test_buffered_reads_are_whole),
        TEST(test_direct_reads_are_whole),
        TEST(test_writes_reach_the_file),
        TEST(test_end_of_file_is_short_and_past_it_is_nothing),
        TEST(test_errors_are_the_kernels_and_hit_one_operation_only),
        TEST(test_submit_takes_no_more_than_depth),
        TEST(test_a_wake_up_ends_a_sleeping_reap),
        TEST(test_a_signal_does_not_end_a_sleeping_reap),
        TEST(test_wake_ups_before_reap_are_kept_and_merge),
        TEST(test_reap_times_out_with_nothing),
        TEST(test_registered_memory_changes_nothing_but_speed),
        TEST(test_one_thread_opens_another_uses_the_first_closes),
        TEST(test_impossible_depths_are_refused),
        TEST(test_an_unused_engine_closes),
#undef TEST
    };
    struct subject s = {.name = name, .file = file};
    int fds_before = count_fds();
    int result = subject_open(&s, DEPTH);
    if (result < 0) {
        printf("SKIP ALL OF %s: the probe says %s\n", name, strerror(-result));
        return;
    }
    CHECK(strcmp(s.engine->name, name) == 0);
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        tests[i].run(&s);
        printf("ok %s %s\n", name, tests[i].name);
    }
    subject_close(&s);
    CHECK_EQ(count_fds(), fds_before);
}

int main(void)
{
    struct test_file file;
    test_file_make(&file, FILE_BYTES);
    printf("io_uring by way of: %s\n", kvs_io_uring_kind());
    run_suite("io_uring", &file);
    run_suite("aio", &file);
    run_suite("threads", &file);
    run_suite("fault", &file);
    test_file_remove(&file);
    puts("PASS");
    return 0;
}
