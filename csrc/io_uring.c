/*
 * io_uring.c: the fast engine of io.h, one ring driven by one thread.
 *
 * It does not choose sizes, cap bytes or judge results. It does not cancel: nothing could.
 *
 * Invariants:
 *   - The ring is created disabled, so that any thread may open it and register memory, and is
 *     enabled by the first submit or reap: from then on it belongs to that thread alone
 *     (SINGLE_ISSUER). close runs on that thread, or after it has ended.
 *   - Requests in the kernel <= depth operations + one poll on wake_fd <= SQ entries < CQ entries:
 *     get_sqe cannot fail and no completion overflows.
 *   - The kernel holds pointers to callers' buffers only, never to the engine's own memory. That is
 *     why wake_fd is polled, not read, by the ring: a poll left over at close touches nothing.
 *   - A slot is free or holds exactly one operation in flight; user_data is the slot's number,
 *     and `depth` for the poll on wake_fd.
 */
#define _GNU_SOURCE 1 /* syscall */
#include "io.h"
#include "io_wait.h"
#include "uring_open.h"

#include <assert.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/uio.h>

/* The kernel registers at most 1 GiB per buffer. */
static const uint64_t PIECE_BYTES = (uint64_t)1 << 30;

enum {
    RETRY_LIMIT = 8,       /* times an operation answered -EAGAIN or -EINTR is sent again */
    COMPLETION_BATCH = 64, /* completions looked at between two moves of the CQ head */
    DEPTH_LIMIT = 16384
};

struct slot {
    struct kvs_io_op *op;
    uint32_t retries;
    uint32_t next_free; /* while free; depth ends the list */
};

struct uring {
    struct kvs_io_engine face;
    struct io_uring ring;
    unsigned setup_flags; /* as granted */
    int enabled;
    int wake_armed;
    uintptr_t base; /* of registered memory */
    uint64_t registered_bytes;
    uint32_t first_free;
    struct slot slots[]; /* [depth] */
};

const char *kvs_io_uring_kind(void)
{
#if defined(KVS_URING_STATIC)
    return "liburing static";
#elif defined(KVS_URING_SHARED)
    return "liburing shared";
#else
    return "shim";
#endif
}

/* Runs on the thread that will do all I/O: it becomes the ring's only issuer. */
static int enable(struct uring *u)
{
    if (u->enabled) {
        return 0;
    }
    int result = ring_enable(&u->ring);
    if (result < 0) {
        return result;
    }
    u->enabled = 1;
    /* A registered ring belongs to a thread. Only with SINGLE_ISSUER does the kernel refuse to
     * unregister it from another one, where it could hit that thread's own ring. */
    if (u->setup_flags & IORING_SETUP_SINGLE_ISSUER) {
        io_uring_register_ring_fd(&u->ring);
    }
    return 0;
}

/* Number of the registered piece that the whole buffer lies in, or -1. */
static int piece_of(const struct uring *u, const struct kvs_io_op *op)
{
    uint64_t start = (uintptr_t)op->buffer - u->base; /* huge when below base */
    if (start >= u->registered_bytes || op->bytes > u->registered_bytes - start) {
        return -1;
    }
    uint64_t piece = start / PIECE_BYTES;
    return (start + op->bytes - 1) / PIECE_BYTES == piece ? (int)piece : -1;
}

static void queue_slot(struct uring *u, uint32_t slot)
{
    const struct kvs_io_op *op = u->slots[slot].op;
    struct io_uring_sqe *sqe = next_sqe(&u->ring);
    int piece = piece_of(u, op);
    if (op->kind == KVS_IO_READ && piece >= 0) {
        io_uring_prep_read_fixed(sqe, op->fd, op->buffer, op->bytes, op->offset, piece);
    } else if (op->kind == KVS_IO_READ) {
        io_uring_prep_read(sqe, op->fd, op->buffer, op->bytes, op->offset);
    } else if (piece >= 0) {
        io_uring_prep_write_fixed(sqe, op->fd, op->buffer, op->bytes, op->offset, piece);
    } else {
        io_uring_prep_write(sqe, op->fd, op->buffer, op->bytes, op->offset);
    }
    io_uring_sqe_set_data64(sqe, slot);
}

static int uring_submit(struct kvs_io_engine *engine, struct kvs_io_op *const *ops, unsigned count)
{
    struct uring *u = (struct uring *)engine;
    int result = enable(u);
    if (result < 0) {
        return result;
    }
    unsigned taken = 0;
    for (; taken < count && u->first_free < u->face.depth; taken++) {
        assert(ops[taken]->bytes > 0 && ops[taken]->bytes <= KVS_IO_MAX_BYTES);
        uint32_t slot = u->first_free;
        u->first_free = u->slots[slot].next_free;
        u->slots[slot] = (struct slot){.op = ops[taken]};
        queue_slot(u, slot);
    }
    if (taken > 0) {
        /* What the kernel does not take now stays queued and goes with reap's next enter, which
         * also reports an error that lasts. */
        io_uring_submit(&u->ring);
    }
    return (int)taken;
}

/* Returns the finished operation, or NULL when it was sent again. */
static struct kvs_io_op *finish_slot(struct uring *u, uint32_t number, int32_t result)
{
    struct slot *slot = &u->slots[number];
    assert(slot->op != NULL);
    if ((result == -EAGAIN || result == -EINTR) && slot->retries < RETRY_LIMIT) {
        slot->retries++;
        queue_slot(u, number);
        return NULL;
    }
    struct kvs_io_op *op = slot->op;
    op->result = result;
    *slot = (struct slot){.next_free = u->first_free};
    u->first_free = number;
    return op;
}

/* Moves finished operations out of the CQ. *woken: wake_fd was written. */
static unsigned collect(struct uring *u, struct kvs_io_op **done, unsigned max, int *woken)
{
    struct io_uring_cqe *cqes[COMPLETION_BATCH];
    unsigned collected = 0;
    while (collected < max) {
        unsigned room = max - collected;
        unsigned batch = room < COMPLETION_BATCH ? room : COMPLETION_BATCH;
        unsigned seen = io_uring_peek_batch_cqe(&u->ring, cqes, batch);
        for (unsigned i = 0; i < seen; i++) {
            uint64_t data = io_uring_cqe_get_data64(cqes[i]);
            if (data == u->face.depth) {
                u->wake_armed = 0;
                kvs_wake_drain(u->face.wake_fd);
                *woken = 1;
                continue;
            }
            struct kvs_io_op *op = finish_slot(u, (uint32_t)data, cqes[i]->res);
            if (op != NULL) {
                done[collected++] = op;
            }
        }
        io_uring_cq_advance(&u->ring, seen);
        if (seen < batch) {
            break;
        }
    }
    return collected;
}

static void arm_wake(struct uring *u)
{
    if (u->wake_armed) {
        return;
    }
    struct io_uring_sqe *sqe = next_sqe(&u->ring);
    io_uring_prep_poll_add(sqe, u->face.wake_fd, POLLIN);
    io_uring_sqe_set_data64(sqe, u->face.depth);
    u->wake_armed = 1;
}

/* Submits what is queued and waits for one completion. left_ns as kvs_remaining_ns gives it. */
static int wait_for_one(struct uring *u, int64_t left_ns)
{
    if (left_ns == 0) {
        return io_uring_submit_and_get_events(&u->ring);
    }
    struct io_uring_cqe *first;
    struct __kernel_timespec left = {.tv_sec = left_ns / 1000000000,
                                     .tv_nsec = left_ns % 1000000000};
    return io_uring_submit_and_wait_timeout(&u->ring, &first, 1, left_ns < 0 ? NULL : &left, NULL);
}

static int uring_reap(struct kvs_io_engine *engine, struct kvs_io_op **done, unsigned max,
                      int64_t timeout_ns)
{
    struct uring *u = (struct uring *)engine;
    assert(max > 0);
    int result = enable(u);
    if (result < 0) {
        return result;
    }
    int64_t deadline_ns = kvs_deadline_after(kvs_monotonic_ns(), timeout_ns);
    for (int expired = 0;;) {
        int woken = 0;
        unsigned collected = collect(u, done, max, &woken);
        if (collected > 0 || woken || expired) {
            if (io_uring_sq_ready(&u->ring) > 0) {
                io_uring_submit(&u->ring); /* operations that were sent again */
            }
            return (int)collected;
        }
        arm_wake(u);
        int64_t left_ns = kvs_remaining_ns(deadline_ns);
        expired = left_ns == 0;
        result = wait_for_one(u, left_ns);
        if (result < 0 && !is_transient(result)) {
            return result;
        }
    }
}

static int uring_register_memory(struct kvs_io_engine *engine, void *base, uint64_t bytes)
{
    struct uring *u = (struct uring *)engine;
    assert(u->registered_bytes == 0);
    uint64_t pieces = bytes / PIECE_BYTES + (bytes % PIECE_BYTES != 0);
    if (pieces == 0 || pieces > UINT16_MAX) {
        return -EINVAL;
    }
    struct iovec *buffers = calloc(pieces, sizeof *buffers);
    if (buffers == NULL) {
        return -ENOMEM;
    }
    for (uint64_t i = 0; i < pieces; i++) {
        uint64_t start = i * PIECE_BYTES;
        uint64_t length = bytes - start < PIECE_BYTES ? bytes - start : PIECE_BYTES;
        buffers[i] = (struct iovec){.iov_base = (char *)base + start, .iov_len = (size_t)length};
    }
    int result = io_uring_register_buffers(&u->ring, buffers, (unsigned)pieces);
    free(buffers);
    if (result < 0) {
        return result;
    }
    u->base = (uintptr_t)base;
    u->registered_bytes = bytes;
    u->face.registered = 1;
    return 0;
}

static void uring_close(struct kvs_io_engine *engine)
{
    struct uring *u = (struct uring *)engine;
    io_uring_queue_exit(&u->ring);
    close(u->face.wake_fd);
    free(u);
}

static const struct kvs_io_engine_calls URING_CALLS = {
    .submit = uring_submit,
    .reap = uring_reap,
    .register_memory = uring_register_memory,
    .close = uring_close,
};

int kvs_io_uring_open(unsigned depth, struct kvs_io_engine **out)
{
    if (depth == 0 || depth > DEPTH_LIMIT) {
        return -EINVAL;
    }
    struct uring *u = calloc(1, sizeof *u + depth * sizeof u->slots[0]);
    if (u == NULL) {
        return -ENOMEM;
    }
    u->face = (struct kvs_io_engine){.calls = &URING_CALLS, .name = "io_uring", .depth = depth};
    for (unsigned i = 0; i < depth; i++) {
        u->slots[i].next_free = i + 1;
    }
    int result = kvs_wake_open();
    if (result < 0) {
        goto fail;
    }
    u->face.wake_fd = result;
    result = probe(u->face.wake_fd);
    if (result < 0) {
        goto fail_wake;
    }
    result = ring_open(&u->ring, depth + 1, IORING_SETUP_R_DISABLED, &u->setup_flags);
    if (result < 0) {
        goto fail_wake;
    }
    *out = &u->face;
    return 0;

fail_wake:
    close(u->face.wake_fd);
fail:
    free(u);
    return result;
}
