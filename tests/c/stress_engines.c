/*
 * stress_engines.c: each engine under one submitting thread, several wakers, and (for the fault
 * engine) a thread that moves the clock and reads the log. Meant for -fsanitize=thread.
 *
 * Usage: stress_engines [operations] [seed]. Build: as test_engine_contract.c.
 */
#define _GNU_SOURCE 1
#include "io_test.h"
#include "testing/io_fault.h"

#include <fcntl.h>
#include <pthread.h>

enum { DEPTH = 32, WAKERS = 3, FILE_BYTES = 1 << 20, BUFFER_BYTES = 4096 };

struct stress {
    struct kvs_io_engine *engine;
    struct kvs_virtual_clock *clock; /* NULL unless the fault engine */
    int fd;
    uint64_t random;
    unsigned operations;
    int over; /* atomic */
};

static uint32_t next_random(struct stress *stress, uint32_t below)
{
    stress->random = stress->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(stress->random >> 33) % below;
}

static void *waker_run(void *arg)
{
    struct stress *stress = arg;
    const uint64_t one = 1;
    while (!__atomic_load_n(&stress->over, __ATOMIC_ACQUIRE)) {
        CHECK_EQ(write(stress->engine->wake_fd, &one, sizeof one), sizeof one);
        usleep(50); /* paces the load, decides nothing */
    }
    return NULL;
}

static void *clock_run(void *arg)
{
    struct stress *stress = arg;
    while (!__atomic_load_n(&stress->over, __ATOMIC_ACQUIRE)) {
        struct kvs_fault_record record;
        kvs_io_fault_log(stress->engine, 0, &record, 1);
        int64_t next_ns = kvs_io_fault_next_ns(stress->engine);
        if (next_ns > 0) {
            int64_t now_ns = kvs_virtual_clock_now_ns(stress->clock);
            kvs_virtual_clock_advance(stress->clock, next_ns > now_ns ? next_ns - now_ns : 0);
        } else {
            kvs_io_fault_release_stalled(stress->engine);
            kvs_io_fault_settle(stress->engine, 0);
        }
    }
    return NULL;
}

static void draw(struct stress *stress, struct kvs_io_op *op)
{
    uint32_t bytes = 1 + next_random(stress, BUFFER_BYTES);
    *op =
        op_of(KVS_IO_READ, stress->fd, op->buffer, next_random(stress, FILE_BYTES - bytes), bytes);
}

static void *io_run(void *arg)
{
    struct stress *stress = arg;
    struct kvs_io_engine *engine = stress->engine;
    char *memory = aligned_buffer(DEPTH * BUFFER_BYTES);
    struct kvs_io_op ops[DEPTH], *idle[DEPTH], *done[DEPTH];
    unsigned idle_count = DEPTH, started = 0, finished = 0;
    for (unsigned i = 0; i < DEPTH; i++) {
        ops[i].buffer = memory + i * BUFFER_BYTES;
        idle[i] = &ops[i];
    }
    static const int64_t timeouts[] = {0, 20000, -1};
    while (finished < stress->operations) {
        unsigned count = next_random(stress, idle_count + 1);
        count = count < stress->operations - started ? count : stress->operations - started;
        for (unsigned i = 0; i < count; i++) {
            draw(stress, idle[idle_count - 1 - i]);
        }
        CHECK_EQ(engine->calls->submit(engine, idle + idle_count - count, count), count);
        started += count;
        idle_count -= count;
        int reaped = engine->calls->reap(engine, done, 1 + next_random(stress, DEPTH),
                                         timeouts[next_random(stress, 3)]);
        CHECK(reaped >= 0);
        for (int i = 0; i < reaped; i++) {
            CHECK_EQ(kvs_io_status(done[i]), 0);
            check_bytes(done[i]->buffer, done[i]->offset, done[i]->bytes);
            idle[idle_count++] = done[i];
        }
        finished += (unsigned)reaped;
    }
    free(memory);
    __atomic_store_n(&stress->over, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void run(struct stress *stress)
{
    pthread_t io, clock, wakers[WAKERS];
    CHECK_EQ(pthread_create(&io, NULL, io_run, stress), 0);
    for (int i = 0; i < WAKERS; i++) {
        CHECK_EQ(pthread_create(&wakers[i], NULL, waker_run, stress), 0);
    }
    if (stress->clock != NULL) {
        CHECK_EQ(pthread_create(&clock, NULL, clock_run, stress), 0);
        pthread_join(clock, NULL);
    }
    pthread_join(io, NULL);
    for (int i = 0; i < WAKERS; i++) {
        pthread_join(wakers[i], NULL);
    }
    stress->engine->calls->close(stress->engine);
    printf("ok %u operations\n", stress->operations);
}

static void run_if_opened(const char *name, int result, struct stress *stress)
{
    if (result == 0) {
        run(stress);
    } else {
        printf("SKIP ALL OF %s: the probe says %s\n", name, strerror(-result));
    }
}

int main(int argc, char **argv)
{
    unsigned operations = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 5000;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    printf("seed %llu\n", (unsigned long long)seed);
    struct test_file file;
    test_file_make(&file, FILE_BYTES);
    int fd = open(file.path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    struct stress start = {.fd = fd, .random = seed, .operations = operations}, stress = start;
    run_if_opened("io_uring", kvs_io_uring_open(DEPTH, &stress.engine), &stress);
    stress = start;
    run_if_opened("aio", kvs_io_aio_open(DEPTH, &stress.engine), &stress);
    stress = start;
    CHECK_EQ(kvs_io_threads_open(DEPTH, 4, &stress.engine), 0);
    run(&stress);
    stress = start;
    CHECK_EQ(kvs_virtual_clock_open(0, &stress.clock), 0);
    struct kvs_fault_device device = {
        .bytes_per_second = 1000000000, .latency_ns = 5000, .depth = DEPTH};
    CHECK_EQ(kvs_io_fault_open(stress.clock, &device, &stress.engine), 0);
    struct kvs_fault stall = {.kind = KVS_FAULT_STALL, .io_kind = -1, .skip = 100, .count = 50};
    kvs_io_fault_add(stress.engine, &stall);
    run(&stress);
    kvs_virtual_clock_close(stress.clock);
    close(fd);
    test_file_remove(&file);
    puts("PASS");
    return 0;
}
