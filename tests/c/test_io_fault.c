/*
 * test_io_fault.c: the fault engine does what its plan and its virtual device say, repeatably.
 *
 * Build: gcc -std=gnu11 -Icsrc -pthread tests/c/test_io_fault.c
 *            csrc/testing/{io_fault,fault_plan,virtual_clock}.c
 */
#define _GNU_SOURCE 1
#include "io_test.h"
#include "testing/io_fault.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>

enum { DEPTH = 16, FILE_BYTES = 1 << 20, BLOCK = 4096 };
static const int64_t US = 1000, MS = 1000000, START_NS = 1000000000;

struct rig {
    struct kvs_virtual_clock *clock;
    struct kvs_io_engine *engine;
    int fd; /* read and write, bytes of byte_at() */
    char *memory; /* DEPTH blocks */
};

/* 4096 bytes take 4.096 us on the wire plus 100 us of latency. */
static const struct kvs_fault_device SLOW = {
    .bytes_per_second = 1000000000, .latency_ns = 100000, .depth = DEPTH};
static const struct kvs_fault_device INSTANT = {.depth = DEPTH};
static const int64_t WIRE_NS = 4096, LATENCY_NS = 100000;

static const struct test_file *data_file;

static struct rig rig_make(const struct kvs_fault_device *device)
{
    struct rig r;
    CHECK_EQ(kvs_virtual_clock_open(5000, &r.clock), 0);
    CHECK_EQ(kvs_io_fault_open(r.clock, device, &r.engine), 0);
    r.memory = aligned_buffer(DEPTH * BLOCK);
    r.fd = open(data_file->path, O_RDWR | O_CLOEXEC);
    CHECK(r.fd >= 0);
    fill_bytes(r.memory, 0, DEPTH * BLOCK); /* earlier tests may have damaged the file */
    CHECK_EQ(pwrite(r.fd, r.memory, DEPTH * BLOCK, 0), DEPTH * BLOCK);
    memset(r.memory, 0, DEPTH * BLOCK);
    return r;
}

static void rig_free(struct rig *r)
{
    r->engine->calls->close(r->engine);
    kvs_virtual_clock_close(r->clock);
    close(r->fd);
    free(r->memory);
}

/* The operation on block number i of the file and of the memory. */
static struct kvs_io_op block_op(struct rig *r, enum kvs_io_kind kind, unsigned i)
{
    return op_of(kind, r->fd, r->memory + i * BLOCK, (uint64_t)i * BLOCK, BLOCK);
}

static void submit(struct rig *r, struct kvs_io_op *ops, unsigned count)
{
    struct kvs_io_op *list[DEPTH];
    for (unsigned i = 0; i < count; i++) {
        list[i] = &ops[i];
    }
    CHECK_EQ(r->engine->calls->submit(r->engine, list, count), count);
}

static int reap_now(struct rig *r, struct kvs_io_op **done)
{
    return r->engine->calls->reap(r->engine, done, DEPTH, 0);
}

static void add(struct rig *r, enum kvs_fault_kind kind, int io_kind, uint64_t skip, uint64_t count,
                uint64_t value)
{
    struct kvs_fault fault = {
        .kind = kind, .io_kind = io_kind, .skip = skip, .count = count, .value = value};
    kvs_io_fault_add(r->engine, &fault);
}

static void test_nothing_completes_until_the_clock_says_so(void)
{
    struct rig r = rig_make(&SLOW);
    struct kvs_io_op ops[] = {block_op(&r, KVS_IO_READ, 0), block_op(&r, KVS_IO_READ, 1)};
    struct kvs_io_op *done[DEPTH];
    submit(&r, ops, 2);
    CHECK_EQ(reap_now(&r, done), 0);
    CHECK_EQ(kvs_io_fault_next_ns(r.engine), START_NS + WIRE_NS + LATENCY_NS);
    kvs_virtual_clock_advance(r.clock, WIRE_NS + LATENCY_NS - 1);
    CHECK_EQ(reap_now(&r, done), 0);
    CHECK_EQ(r.memory[1], 0);
    kvs_virtual_clock_advance(r.clock, 1);
    CHECK_EQ(reap_now(&r, done), 1);
    CHECK(done[0] == &ops[0]);
    check_bytes(r.memory, 0, BLOCK);
    /* The wire is serial, the latency is not. */
    CHECK_EQ(kvs_io_fault_next_ns(r.engine), START_NS + 2 * WIRE_NS + LATENCY_NS);
    kvs_virtual_clock_advance(r.clock, MS);
    CHECK_EQ(kvs_io_fault_next_ns(r.engine), -1);
    CHECK_EQ(reap_now(&r, done), 1);
    rig_free(&r);
}

static void test_the_log_records_every_operation(void)
{
    struct rig r = rig_make(&SLOW);
    struct stat file;
    CHECK_EQ(fstat(r.fd, &file), 0);
    struct kvs_io_op ops[] = {block_op(&r, KVS_IO_READ, 2), block_op(&r, KVS_IO_WRITE, 2)};
    struct kvs_io_op *done[DEPTH];
    submit(&r, ops, 2);
    struct kvs_fault_record log[3];
    CHECK_EQ(kvs_io_fault_log(r.engine, 1, log, 3), 2);
    CHECK_EQ(log[0].sequence, 1);
    CHECK_EQ(log[0].io_kind, KVS_IO_WRITE);
    CHECK_EQ(log[0].completed_ns, -1);
    kvs_virtual_clock_advance(r.clock, MS);
    CHECK_EQ(reap_now(&r, done), 2);
    CHECK_EQ(kvs_io_fault_log(r.engine, 0, log, 1), 2);
    CHECK_EQ(log[0].sequence, 0);
    CHECK_EQ(log[0].fd, r.fd);
    CHECK_EQ(log[0].inode, file.st_ino);
    CHECK_EQ(log[0].offset, 2 * BLOCK);
    CHECK_EQ(log[0].bytes, BLOCK);
    CHECK_EQ(log[0].submitted_ns, START_NS);
    CHECK_EQ(log[0].completed_ns, START_NS + WIRE_NS + LATENCY_NS);
    CHECK_EQ(log[0].result, BLOCK);
    CHECK_EQ(log[0].buffer, (uintptr_t)ops[0].buffer);
    CHECK_EQ(kvs_io_fault_log(r.engine, 7, log, 3), 2);
    rig_free(&r);
}

static void test_auto_advance_jumps_to_completions_and_not_past_a_timeout(void)
{
    struct kvs_fault_device device = SLOW;
    device.auto_advance = 1;
    struct rig r = rig_make(&device);
    struct kvs_io_op op = block_op(&r, KVS_IO_READ, 0), *done[DEPTH];
    submit(&r, &op, 1);
    CHECK_EQ(r.engine->calls->reap(r.engine, done, DEPTH, 50 * US), 0);
    CHECK_EQ(kvs_virtual_clock_now_ns(r.clock), START_NS + 50 * US);
    CHECK_EQ(r.engine->calls->reap(r.engine, done, DEPTH, -1), 1);
    CHECK_EQ(kvs_virtual_clock_now_ns(r.clock), START_NS + WIRE_NS + LATENCY_NS);
    rig_free(&r);
}

static void test_errno_hits_the_chosen_operations_only(void)
{
    struct rig r = rig_make(&INSTANT);
    add(&r, KVS_FAULT_ERRNO, KVS_IO_READ, 1, 2, ENXIO);
    add(&r, KVS_FAULT_ERRNO, -1, 2, 1, EIO); /* on one of those too: the plan's first wins */
    struct kvs_io_op ops[] = {block_op(&r, KVS_IO_READ, 0), block_op(&r, KVS_IO_READ, 1),
                              block_op(&r, KVS_IO_READ, 2), block_op(&r, KVS_IO_READ, 3)};
    run_ops(r.engine, ops, 4);
    CHECK_EQ(ops[0].result, BLOCK);
    CHECK_EQ(ops[1].result, -ENXIO);
    CHECK_EQ(ops[2].result, -ENXIO);
    CHECK_EQ(ops[3].result, BLOCK);
    CHECK_EQ(r.memory[BLOCK + 1], 0); /* nothing moved */
    rig_free(&r);
}

static void test_short_transfers_move_just_so_much(void)
{
    struct rig r = rig_make(&INSTANT);
    int direct = open(data_file->path, O_RDWR | O_DIRECT | O_CLOEXEC);
    for (int pass = 0; pass < 2; pass++) {
        int fd = pass == 0 ? r.fd : direct;
        if (fd < 0) {
            printf("SKIP short direct transfers: this file system refuses O_DIRECT\n");
            break;
        }
        kvs_io_fault_clear(r.engine);
        add(&r, KVS_FAULT_SHORT, -1, 0, 2, 1001);
        memset(r.memory, 0, BLOCK);
        CHECK_EQ(run_one(r.engine, op_of(KVS_IO_READ, fd, r.memory, 0, BLOCK)), 1001);
        check_bytes(r.memory, 0, 1001);
        CHECK_EQ(r.memory[1001], 0);
        memset(r.memory, 'w', BLOCK);
        CHECK_EQ(run_one(r.engine, op_of(KVS_IO_WRITE, fd, r.memory, BLOCK, BLOCK)), 1001);
        CHECK_EQ(run_one(r.engine, op_of(KVS_IO_READ, fd, r.memory, BLOCK, BLOCK)), BLOCK);
        CHECK(r.memory[0] == 'w' && r.memory[1000] == 'w');
        check_bytes(r.memory + 1001, BLOCK + 1001, BLOCK - 1001);
    }
    if (direct >= 0) {
        close(direct);
    }
    rig_free(&r);
}

static void test_delay_reorders(void)
{
    struct rig r = rig_make(&SLOW);
    add(&r, KVS_FAULT_DELAY, KVS_IO_READ, 0, 1, (uint64_t)MS);
    struct kvs_io_op ops[] = {block_op(&r, KVS_IO_READ, 0), block_op(&r, KVS_IO_READ, 1)};
    struct kvs_io_op *done[DEPTH];
    submit(&r, ops, 2);
    kvs_virtual_clock_advance(r.clock, MS / 2);
    CHECK_EQ(reap_now(&r, done), 1);
    CHECK(done[0] == &ops[1]);
    CHECK_EQ(kvs_io_fault_next_ns(r.engine), START_NS + WIRE_NS + LATENCY_NS + MS);
    kvs_virtual_clock_advance(r.clock, MS);
    CHECK_EQ(reap_now(&r, done), 1);
    rig_free(&r);
}

static void test_one_bit_flips(void)
{
    struct rig r = rig_make(&INSTANT);
    const uint64_t bit = 8 * 77 + 3;
    add(&r, KVS_FAULT_BIT_FLIP, -1, 0, 2, bit);
    CHECK_EQ(run_one(r.engine, block_op(&r, KVS_IO_READ, 0)), BLOCK);
    CHECK_EQ((unsigned char)r.memory[77], byte_at(77) ^ 8);
    r.memory[77] = (char)byte_at(77);
    check_bytes(r.memory, 0, BLOCK);
    /* A write: the file is damaged, the caller's buffer is not. */
    CHECK_EQ(run_one(r.engine, block_op(&r, KVS_IO_WRITE, 0)), BLOCK);
    check_bytes(r.memory, 0, BLOCK);
    CHECK_EQ(run_one(r.engine, block_op(&r, KVS_IO_READ, 0)), BLOCK);
    CHECK_EQ((unsigned char)r.memory[77], byte_at(77) ^ 8);
    rig_free(&r);
}

static void test_a_stalled_operation_waits_for_its_release(void)
{
    struct rig r = rig_make(&SLOW);
    add(&r, KVS_FAULT_STALL, -1, 0, 1, 0);
    struct kvs_io_op op = block_op(&r, KVS_IO_READ, 0), *done[DEPTH];
    submit(&r, &op, 1);
    kvs_virtual_clock_advance(r.clock, 3600 * START_NS);
    CHECK_EQ(reap_now(&r, done), 0);
    CHECK_EQ(kvs_io_fault_next_ns(r.engine), -1);
    kvs_io_fault_release_stalled(r.engine);
    CHECK_EQ(reap_now(&r, done), 1);
    CHECK_EQ(op.result, BLOCK);
    check_bytes(r.memory, 0, BLOCK);
    rig_free(&r);
}

static void test_a_cut_keeps_just_the_writes_before_it(void)
{
    struct rig r = rig_make(&INSTANT);
    add(&r, KVS_FAULT_CUT, KVS_IO_WRITE, 2, 1, 0);
    memset(r.memory, 'w', DEPTH * BLOCK);
    struct kvs_io_op ops[5];
    for (unsigned i = 0; i < 4; i++) {
        ops[i] = block_op(&r, KVS_IO_WRITE, i);
    }
    ops[4] = block_op(&r, KVS_IO_READ, 4);
    run_ops(r.engine, ops, 5);
    const int32_t expected[] = {BLOCK, BLOCK, -EIO, -EIO, -EIO};
    for (unsigned i = 0; i < 5; i++) {
        CHECK_EQ(ops[i].result, expected[i]);
    }
    kvs_io_fault_clear(r.engine);
    for (unsigned i = 0; i < 4; i++) {
        CHECK_EQ(run_one(r.engine, block_op(&r, KVS_IO_READ, i)), BLOCK);
    }
    CHECK(r.memory[0] == 'w' && r.memory[2 * BLOCK - 1] == 'w');
    check_bytes(r.memory + 2 * BLOCK, 2 * BLOCK, 2 * BLOCK);
    rig_free(&r);
}

/* A mixed run under a full plan; fills log and returns its length. */
static uint64_t mixed_run(struct kvs_fault_record *log, uint64_t max)
{
    struct kvs_fault_device device = SLOW;
    device.auto_advance = 1;
    struct rig r = rig_make(&device);
    add(&r, KVS_FAULT_DELAY, -1, 3, 5, 70000);
    add(&r, KVS_FAULT_ERRNO, KVS_IO_READ, 10, 2, EIO);
    add(&r, KVS_FAULT_SHORT, KVS_IO_READ, 20, 1, 17);
    add(&r, KVS_FAULT_CUT, KVS_IO_WRITE, 12, 1, 0);
    struct kvs_io_op ops[60];
    for (unsigned i = 0; i < 60; i++) {
        ops[i] = block_op(&r, i % 4 == 3 ? KVS_IO_WRITE : KVS_IO_READ, i * 7 % DEPTH);
    }
    run_ops(r.engine, ops, 60);
    uint64_t count = kvs_io_fault_log(r.engine, 0, log, max);
    for (uint64_t i = 0; i < count; i++) {
        log[i].buffer -= (uintptr_t)r.memory;
    }
    rig_free(&r);
    return count;
}

static void test_the_same_run_gives_the_same_log(void)
{
    struct kvs_fault_record first[60], second[60];
    memset(first, 0, sizeof first);
    memset(second, 0, sizeof second);
    CHECK_EQ(mixed_run(first, 60), 60);
    CHECK_EQ(mixed_run(second, 60), 60);
    for (int i = 0; i < 60; i++) {
        CHECK_EQ(first[i].completed_ns, second[i].completed_ns);
        CHECK_EQ(first[i].result, second[i].result);
        CHECK_EQ(first[i].buffer, second[i].buffer);
        CHECK_EQ(first[i].submitted_ns, second[i].submitted_ns);
    }
}

/* Reaps until it is told to stop (atomic) and woken. */
struct reaper {
    struct rig *rig;
    int stop;
    int reaped;
};

static void *reaper_run(void *arg)
{
    struct reaper *reaper = arg;
    struct kvs_io_op op = block_op(reaper->rig, KVS_IO_READ, 0), *done[DEPTH];
    submit(reaper->rig, &op, 1);
    while (!__atomic_load_n(&reaper->stop, __ATOMIC_ACQUIRE)) {
        int finished = reaper->rig->engine->calls->reap(reaper->rig->engine, done, DEPTH, -1);
        __atomic_add_fetch(&reaper->reaped, finished, __ATOMIC_RELEASE);
    }
    return NULL;
}

static void test_settle_waits_for_a_sleeping_reap_with_nothing_due(void)
{
    struct rig r = rig_make(&SLOW);
    CHECK_EQ(kvs_io_fault_settle(r.engine, 1), -ETIMEDOUT); /* nobody reaps */
    struct reaper reaper = {.rig = &r};
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, reaper_run, &reaper), 0);
    CHECK_EQ(kvs_io_fault_settle(r.engine, 10000), 0);
    CHECK_EQ(__atomic_load_n(&reaper.reaped, __ATOMIC_ACQUIRE), 0);
    kvs_virtual_clock_advance(r.clock, MS);
    CHECK_EQ(kvs_io_fault_settle(r.engine, 10000), 0);
    CHECK_EQ(__atomic_load_n(&reaper.reaped, __ATOMIC_ACQUIRE), 1);
    __atomic_store_n(&reaper.stop, 1, __ATOMIC_RELEASE);
    uint64_t one = 1;
    CHECK_EQ(write(r.engine->wake_fd, &one, sizeof one), sizeof one);
    pthread_join(thread, NULL);
    rig_free(&r);
}

static void test_boot_time_and_wall_time_part_company(void)
{
    struct kvs_virtual_clock *clock;
    CHECK_EQ(kvs_virtual_clock_open(5000, &clock), 0);
    struct kvs_clock *face = kvs_virtual_clock_face(clock);
    CHECK_EQ(face->boot_ns(face), START_NS);
    CHECK_EQ(face->wall_s(face), 5000);
    kvs_virtual_clock_advance(clock, 2500 * MS);
    CHECK_EQ(face->boot_ns(face), START_NS + 2500 * MS);
    CHECK_EQ(face->wall_s(face), 5002);
    kvs_virtual_clock_step_wall(clock, -100);
    CHECK_EQ(face->boot_ns(face), START_NS + 2500 * MS);
    CHECK_EQ(face->wall_s(face), 4902);
    kvs_virtual_clock_close(clock);
}

int main(void)
{
    struct test_file file;
    test_file_make(&file, FILE_BYTES);
    data_file = &file;
    int fds_before = count_fds();
    test_nothing_completes_until_the_clock_says_so();
    test_the_log_records_every_operation();
    test_auto_advance_jumps_to_completions_and_not_past_a_timeout();
    test_errno_hits_the_chosen_operations_only();
    test_short_transfers_move_just_so_much();
    test_delay_reorders();
    test_one_bit_flips();
    test_a_stalled_operation_waits_for_its_release();
    test_a_cut_keeps_just_the_writes_before_it();
    test_the_same_run_gives_the_same_log();
    test_settle_waits_for_a_sleeping_reap_with_nothing_due();
    test_boot_time_and_wall_time_part_company();
    CHECK_EQ(count_fds(), fds_before);
    test_file_remove(&file);
    puts("PASS");
    return 0;
}
