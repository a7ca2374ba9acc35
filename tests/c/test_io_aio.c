/*
 * test_io_aio.c: what only the Linux AIO engine has: a kernel out of memory, half-taken batches,
 * reads cut short by a signal, and systems that refuse one of its calls.
 *
 * Includes the engine's source, so that it can answer in the kernel's place.
 */
#define _GNU_SOURCE 1
/* A second copy of the engine is compiled into this program: under a name of its own. */
#define kvs_io_aio_open tested_aio_open

#include "aio_shim.h"
#include "io_test.h"

static struct {
    int setup, submit, getevents, poll; /* answered with this error; 0: not */
    unsigned busy;                      /* submits answered with EAGAIN, the polls aside */
    unsigned submit_max;                /* requests taken at once; 0: all */
    unsigned interrupted;               /* reads that end with EINTR */
} kernel;

static unsigned contexts; /* made and not destroyed */

static int forged_setup(unsigned requests, aio_context_t *context)
{
    int result = kernel.setup ? kernel.setup : io_setup(requests, context);
    contexts += result == 0;
    return result;
}

static int forged_submit(aio_context_t context, unsigned count, struct iocb **requests)
{
    if (requests[0]->aio_lio_opcode == IOCB_CMD_POLL) {
        return kernel.poll ? kernel.poll : io_submit(context, count, requests);
    }
    if (kernel.submit) {
        return kernel.submit;
    }
    if (kernel.busy > 0) {
        kernel.busy--;
        return -EAGAIN;
    }
    unsigned max = kernel.submit_max ? kernel.submit_max : count;
    return io_submit(context, count < max ? count : max, requests);
}

static int forged_getevents(aio_context_t context, unsigned min, unsigned max,
                            struct io_event *events, struct timespec *timeout)
{
    int seen =
        kernel.getevents ? kernel.getevents : io_getevents(context, min, max, events, timeout);
    for (int i = 0; i < seen && kernel.interrupted > 0; i++) {
        const struct iocb *request = (const struct iocb *)(uintptr_t)events[i].obj;
        if (request->aio_lio_opcode == IOCB_CMD_PREAD) {
            events[i].res = -EINTR;
            kernel.interrupted--;
        }
    }
    return seen;
}

static int forged_destroy(aio_context_t context)
{
    contexts--;
    return io_destroy(context);
}

#define io_setup forged_setup
#define io_submit forged_submit
#define io_getevents forged_getevents
#define io_destroy forged_destroy
#include "io_aio.c"

#include <fcntl.h>

enum { DEPTH = 8 };

static struct kvs_io_engine *engine;
static int fd;
static char *memory;

static void reset(void)
{
    memset(&kernel, 0, sizeof kernel);
}

static void reads_of_512(struct kvs_io_op *ops, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        ops[i] = op_of(KVS_IO_READ, fd, memory + i * 512, i * 512, 512);
    }
}

static void check_read(const struct kvs_io_op *ops, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        CHECK_EQ(ops[i].result, 512);
        check_bytes(ops[i].buffer, ops[i].offset, 512);
    }
}

static void refused_with(int expected, const char *name)
{
    struct kvs_io_engine *none = NULL;
    int fds = count_fds();
    unsigned before = contexts;
    CHECK_EQ(kvs_io_aio_open(DEPTH, &none), expected);
    CHECK(none == NULL);
    CHECK_EQ(count_fds(), fds);
    CHECK_EQ(contexts, before);
    reset();
    printf("ok %s refused\n", name);
}

static void test_a_system_that_refuses_one_call_is_refused_at_open(void)
{
    kernel.setup = -EAGAIN; /* fs.aio-max-nr */
    refused_with(-EAGAIN, "io_setup");
    kernel.submit = -EPERM;
    refused_with(-EPERM, "io_submit");
    kernel.getevents = -ENOSYS;
    refused_with(-ENOSYS, "io_getevents");
    kernel.poll = -EINVAL; /* before 4.18, and in sandboxes */
    refused_with(-EINVAL, "poll");
    kernel.interrupted = 1;
    refused_with(-EAGAIN, "a read");
}

static void test_batches_taken_in_part_go_on(void)
{
    struct kvs_io_op ops[5 * DEPTH];
    kernel.submit_max = 3;
    reads_of_512(ops, 5 * DEPTH);
    run_ops(engine, ops, 5 * DEPTH);
    check_read(ops, 5 * DEPTH);
    reset();
    puts("ok batches taken in part go on");
}

/* While some are in flight it passes: what was not taken is the caller's to send again. */
static void test_a_busy_kernel_takes_fewer(void)
{
    struct kvs_io_op ops[DEPTH], *list[DEPTH], *done[DEPTH];
    reads_of_512(ops, DEPTH);
    for (unsigned i = 0; i < DEPTH; i++) {
        list[i] = &ops[i];
    }
    kernel.submit_max = 2;
    CHECK_EQ(engine->calls->submit(engine, list, 2), 2);
    kernel.busy = 1;
    CHECK_EQ(engine->calls->submit(engine, list + 2, DEPTH - 2), 0);
    CHECK_EQ(kernel.busy, 0);
    CHECK_EQ(engine->calls->submit(engine, list + 2, DEPTH - 2), DEPTH - 2);
    for (unsigned reaped = 0; reaped < DEPTH;) {
        int finished = engine->calls->reap(engine, done, DEPTH, -1);
        CHECK(finished >= 1);
        reaped += (unsigned)finished;
    }
    check_read(ops, DEPTH);
    reset();
    puts("ok a busy kernel takes fewer");
}

/* With none in flight nothing would ever end it: the operation comes back, to be counted. */
static void test_a_kernel_that_stays_busy_hands_the_operation_back(void)
{
    struct kvs_io_op ops[2];
    reads_of_512(ops, 2);
    kernel.busy = 1;
    run_ops(engine, ops, 2);
    CHECK_EQ(ops[0].result, -EAGAIN);
    check_read(ops + 1, 1);
    CHECK_EQ(kvs_io_status(&ops[0]), -EAGAIN);
    reset();
    puts("ok a kernel that stays busy hands the operation back");
}

static void test_a_read_cut_short_by_a_signal_may_be_tried_again(void)
{
    struct kvs_io_op op;
    reads_of_512(&op, 1);
    kernel.interrupted = 1;
    run_ops(engine, &op, 1);
    CHECK_EQ(kvs_io_status(&op), -EAGAIN);
    run_ops(engine, &op, 1);
    check_read(&op, 1);
    reset();
    puts("ok a read cut short by a signal may be tried again");
}

/* Nobody could wake it then, so it may not sleep; what is done is handed over all the same. */
static void test_a_reap_that_cannot_be_woken_does_not_sleep(void)
{
    struct kvs_io_op op, *list = &op, *done;
    kvs_wake_write(engine->wake_fd); /* the poll in the kernel ends */
    CHECK_EQ(engine->calls->reap(engine, &done, 1, -1), 0);
    kernel.poll = -EAGAIN;
    CHECK_EQ(engine->calls->reap(engine, &done, 1, -1), -EAGAIN);
    reads_of_512(&op, 1);
    CHECK_EQ(engine->calls->submit(engine, &list, 1), 1);
    int finished;
    while ((finished = engine->calls->reap(engine, &done, 1, -1)) == -EAGAIN) {
    }
    CHECK_EQ(finished, 1);
    check_read(&op, 1);
    reset();
    puts("ok a reap that cannot be woken does not sleep");
}

int main(void)
{
    struct test_file file;
    test_file_make(&file, 1 << 20);
    int result = kvs_io_aio_open(DEPTH, &engine);
    if (result < 0) {
        printf("SKIP ALL: the probe says %s\n", strerror(-result));
        test_file_remove(&file);
        return 0;
    }
    fd = open(file.path, O_RDONLY | O_CLOEXEC);
    memory = aligned_buffer(5 * DEPTH * 512);
    CHECK(fd >= 0);
    test_batches_taken_in_part_go_on();
    test_a_busy_kernel_takes_fewer();
    test_a_kernel_that_stays_busy_hands_the_operation_back();
    test_a_read_cut_short_by_a_signal_may_be_tried_again();
    test_a_reap_that_cannot_be_woken_does_not_sleep();
    test_a_system_that_refuses_one_call_is_refused_at_open();
    engine->calls->close(engine);
    CHECK_EQ(contexts, 0);
    close(fd);
    free(memory);
    test_file_remove(&file);
    puts("PASS");
    return 0;
}
