/*
 * io_aio.c: the engine of io.h over Linux AIO: close to io_uring without registered memory, and
 * alive under the seccomp profiles that block io_uring.
 *
 * By way of aio_shim.h, no libaio. Only direct I/O is asynchronous here: on a file without O_DIRECT
 * submit waits for the device, so io_choose.c prefers threads there. It does not cancel: nothing
 * could. Registered memory means nothing here.
 *
 * Invariants:
 *   - Requests in the kernel <= depth operations + one poll on wake_fd <= the context's size, so a
 *     completion always finds room.
 *   - The kernel holds pointers to callers' buffers only. The addresses of requests are cookies to
 *     it, and io_destroy ends the poll, so close leaves nothing behind.
 *   - A slot is free, in the kernel (`running` counts those), or refused: the kernel said no when
 *     it was submitted, and the next reap hands it back with that error.
 */
#define _GNU_SOURCE 1 /* syscall, memfd_create */
#include "io.h"
#include "aio_shim.h"
#include "io_wait.h"

#include <assert.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    BATCH = 64, /* requests per io_submit, completions per io_getevents */
    DEPTH_LIMIT = 16384
};

struct slot {
    struct iocb request;
    struct kvs_io_op *op;
    uint32_t next; /* of the free or the refused list; depth ends it */
};

struct aio {
    struct kvs_io_engine face;
    aio_context_t context;
    struct iocb wake_request;
    int wake_armed;
    unsigned running;
    uint32_t first_free, first_refused;
    char probed[8]; /* what the probe reads */
    struct slot slots[]; /* [depth] */
};

static void slot_free(struct aio *a, uint32_t number)
{
    a->slots[number].op = NULL;
    a->slots[number].next = a->first_free;
    a->first_free = number;
}

static struct iocb *slot_take(struct aio *a, struct kvs_io_op *op)
{
    assert(op->bytes > 0 && op->bytes <= KVS_IO_MAX_BYTES);
    uint32_t number = a->first_free;
    struct slot *slot = &a->slots[number];
    a->first_free = slot->next;
    slot->op = op;
    slot->request = (struct iocb){
        .aio_data = number,
        .aio_lio_opcode = op->kind == KVS_IO_READ ? IOCB_CMD_PREAD : IOCB_CMD_PWRITE,
        .aio_fildes = (uint32_t)op->fd,
        .aio_buf = (uintptr_t)op->buffer,
        .aio_nbytes = op->bytes,
        .aio_offset = (int64_t)op->offset,
    };
    return &slot->request;
}

static void refuse(struct aio *a, const struct iocb *request, int error)
{
    uint32_t number = (uint32_t)request->aio_data;
    a->slots[number].op->result = error;
    a->slots[number].next = a->first_refused;
    a->first_refused = number;
}

/* Sends requests in order and returns how many need not be sent again: they are in the kernel, or
 * refused by it. The kernel may be out of memory; that passes while some of ours are in it. */
static unsigned send(struct aio *a, struct iocb **requests, unsigned count)
{
    unsigned sent = 0;
    while (sent < count) {
        int result = io_submit(a->context, count - sent, requests + sent);
        if (result > 0) {
            sent += (unsigned)result;
            a->running += (unsigned)result;
            continue;
        }
        int error = result < 0 ? result : -EAGAIN;
        if (error == -EAGAIN && a->running > 0) {
            break;
        }
        refuse(a, requests[sent], error);
        sent++;
    }
    return sent;
}

static int aio_submit(struct kvs_io_engine *engine, struct kvs_io_op *const *ops, unsigned count)
{
    struct aio *a = (struct aio *)engine;
    unsigned taken = 0;
    while (taken < count && a->first_free < a->face.depth) {
        struct iocb *requests[BATCH];
        unsigned filled = 0;
        while (filled < BATCH && taken + filled < count && a->first_free < a->face.depth) {
            requests[filled] = slot_take(a, ops[taken + filled]);
            filled++;
        }
        unsigned sent = send(a, requests, filled);
        taken += sent;
        if (sent < filled) {
            while (filled > sent) {
                slot_free(a, (uint32_t)requests[--filled]->aio_data);
            }
            break;
        }
    }
    return (int)taken;
}

static unsigned take_refused(struct aio *a, struct kvs_io_op **done, unsigned max)
{
    unsigned taken = 0;
    while (taken < max && a->first_refused < a->face.depth) {
        uint32_t number = a->first_refused;
        a->first_refused = a->slots[number].next;
        done[taken++] = a->slots[number].op;
        slot_free(a, number);
    }
    return taken;
}

static int arm_wake(struct aio *a)
{
    if (a->wake_armed) {
        return 0;
    }
    a->wake_request = (struct iocb){
        .aio_data = a->face.depth,
        .aio_lio_opcode = IOCB_CMD_POLL, /* 4.18 */
        .aio_fildes = (uint32_t)a->face.wake_fd,
        .aio_buf = POLLIN,
    };
    struct iocb *request = &a->wake_request;
    int result = io_submit(a->context, 1, &request);
    a->wake_armed = result == 1;
    return result < 0 ? result : 0;
}

/* Waits up to left_ns (as kvs_remaining_ns gives it) for a first completion; moves what there is
 * out. Their number, or a negative errno. *woken: wake_fd was written. */
static int collect(struct aio *a, struct kvs_io_op **done, unsigned max, int64_t left_ns,
                   int *woken)
{
    struct io_event events[BATCH];
    struct timespec left = kvs_timespec(left_ns);
    int seen =
        io_getevents(a->context, 1, max < BATCH ? max : BATCH, events, left_ns < 0 ? NULL : &left);
    if (seen < 0) {
        return seen == -EINTR ? 0 : seen;
    }
    unsigned collected = 0;
    for (int i = 0; i < seen; i++) {
        if (events[i].data == a->face.depth) {
            a->wake_armed = 0;
            kvs_wake_drain(a->face.wake_fd);
            *woken = 1;
            continue;
        }
        uint32_t number = (uint32_t)events[i].data;
        struct kvs_io_op *op = a->slots[number].op;
        assert(op != NULL);
        /* A signal's doing is no error of the device: for the caller it may be tried again. */
        op->result = events[i].res == -EINTR ? -EAGAIN : (int32_t)events[i].res;
        slot_free(a, number);
        a->running--;
        done[collected++] = op;
    }
    return (int)collected;
}

static int aio_reap(struct kvs_io_engine *engine, struct kvs_io_op **done, unsigned max,
                    int64_t timeout_ns)
{
    struct aio *a = (struct aio *)engine;
    assert(max > 0);
    int64_t deadline_ns = kvs_deadline_after(kvs_monotonic_ns(), timeout_ns);
    unsigned refused = take_refused(a, done, max);
    if (refused > 0) {
        return (int)refused;
    }
    for (;;) {
        int error = arm_wake(a);
        /* Nobody could wake us: no sleep then. */
        int64_t left_ns = error < 0 ? 0 : kvs_remaining_ns(deadline_ns);
        int woken = 0;
        int collected = collect(a, done, max, left_ns, &woken);
        if (collected != 0 || woken || left_ns == 0) {
            return collected == 0 && !woken ? error : collected;
        }
    }
}

static int aio_register_memory(struct kvs_io_engine *engine, void *base, uint64_t bytes)
{
    (void)engine;
    (void)base;
    (void)bytes;
    return -EOPNOTSUPP;
}

static void aio_close(struct kvs_io_engine *engine)
{
    struct aio *a = (struct aio *)engine;
    if (a->context != 0) {
        io_destroy(a->context); /* waits for what is in flight, after a bad probe */
    }
    if (a->face.wake_fd >= 0) {
        close(a->face.wake_fd);
    }
    free(a);
}

static const struct kvs_io_engine_calls AIO_CALLS = {
    .submit = aio_submit,
    .reap = aio_reap,
    .register_memory = aio_register_memory,
    .close = aio_close,
};

/* Never by version: one real read and one wake-up, through the engine's own calls. Sandboxes may
 * allow io_setup and refuse the rest, or know no poll. */
static int probe(struct aio *a)
{
    static const char written[sizeof a->probed] = "a probe";
    int fd = memfd_create("kvstore-probe", MFD_CLOEXEC);
    if (fd < 0 || pwrite(fd, written, sizeof written, 0) != (ssize_t)sizeof written) {
        int error = -errno;
        close(fd);
        return error;
    }
    struct kvs_io_op op = {
        .kind = KVS_IO_READ, .fd = fd, .buffer = a->probed, .bytes = sizeof written};
    struct kvs_io_op *list = &op, *done = NULL;
    int result = aio_submit(&a->face, &list, 1);
    result = result == 1 ? aio_reap(&a->face, &done, 1, 1000000000) : result;
    close(fd);
    if (result < 0 || done == NULL) {
        return result < 0 ? result : -ETIME;
    }
    if (op.result < 0) {
        return op.result;
    }
    kvs_wake_write(a->face.wake_fd);
    result = aio_reap(&a->face, &done, 1, 1000000000);
    if (result < 0) {
        return result;
    }
    int woken = !kvs_wake_drain(a->face.wake_fd); /* then the reap has emptied it */
    int whole = op.result == sizeof written && memcmp(a->probed, written, sizeof written) == 0;
    return woken && whole ? 0 : -EIO;
}

int kvs_io_aio_open(unsigned depth, struct kvs_io_engine **out)
{
    if (depth == 0 || depth > DEPTH_LIMIT) {
        return -EINVAL;
    }
    struct aio *a = calloc(1, sizeof *a + depth * sizeof a->slots[0]);
    if (a == NULL) {
        return -ENOMEM;
    }
    a->face = (struct kvs_io_engine){
        .calls = &AIO_CALLS, .name = "aio", .wake_fd = kvs_wake_open(), .depth = depth};
    a->first_refused = depth;
    for (uint32_t i = 0; i < depth; i++) {
        a->slots[i].next = i + 1;
    }
    int result = a->face.wake_fd < 0 ? a->face.wake_fd : 0;
    result = result == 0 ? io_setup(depth + 1, &a->context) : result;
    result = result == 0 ? probe(a) : result;
    if (result < 0) {
        aio_close(&a->face);
        return result;
    }
    *out = &a->face;
    return 0;
}
