/*
 * io_null.c: see io_null.h. Operations wait for reap in a ring, in order of submission.
 */
#define _GNU_SOURCE 1 /* ppoll */
#include "io_null.h"

#include "../io_wait.h"

#include <assert.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_LIMIT = 16384 };

struct null_engine {
    struct kvs_io_engine face;
    unsigned first, count;       /* of the ring */
    struct kvs_io_op *waiting[]; /* [depth] */
};

static int null_submit(struct kvs_io_engine *engine, struct kvs_io_op *const *ops, unsigned count)
{
    struct null_engine *n = (struct null_engine *)engine;
    unsigned room = n->face.depth - n->count;
    unsigned taken = count < room ? count : room;
    for (unsigned i = 0; i < taken; i++) {
        assert(ops[i]->bytes > 0 && ops[i]->bytes <= KVS_IO_MAX_BYTES);
        ops[i]->result = (int32_t)ops[i]->bytes;
        n->waiting[(n->first + n->count++) % n->face.depth] = ops[i];
    }
    return (int)taken;
}

static int null_reap(struct kvs_io_engine *engine, struct kvs_io_op **done, unsigned max,
                     int64_t timeout_ns)
{
    struct null_engine *n = (struct null_engine *)engine;
    assert(max > 0);
    if (n->count == 0) {
        struct pollfd wake = {.fd = n->face.wake_fd, .events = POLLIN};
        struct timespec left = kvs_timespec(timeout_ns);
        int ready = ppoll(&wake, 1, timeout_ns < 0 ? NULL : &left, NULL);
        kvs_wake_drain(n->face.wake_fd);
        return ready < 0 && errno != EINTR ? -errno : 0;
    }
    unsigned taken = 0;
    while (taken < max && n->count > 0) {
        done[taken++] = n->waiting[n->first];
        n->first = (n->first + 1) % n->face.depth;
        n->count--;
    }
    return (int)taken;
}

static int null_register_memory(struct kvs_io_engine *engine, void *base, uint64_t bytes)
{
    kvs_io_null_fill(base, bytes);
    engine->registered = 1;
    return 0;
}

static void null_close(struct kvs_io_engine *engine)
{
    close(engine->wake_fd);
    free(engine);
}

static const struct kvs_io_engine_calls NULL_CALLS = {
    .submit = null_submit,
    .reap = null_reap,
    .register_memory = null_register_memory,
    .close = null_close,
};

int kvs_io_null_open(unsigned depth, struct kvs_io_engine **out)
{
    if (depth == 0 || depth > DEPTH_LIMIT) {
        return -EINVAL;
    }
    struct null_engine *n = calloc(1, sizeof *n + depth * sizeof(n->waiting[0]));
    if (n == NULL) {
        return -ENOMEM;
    }
    n->face = (struct kvs_io_engine){
        .calls = &NULL_CALLS, .name = "null", .wake_fd = kvs_wake_open(), .depth = depth};
    if (n->face.wake_fd < 0) {
        int error = n->face.wake_fd;
        free(n);
        return error;
    }
    *out = &n->face;
    return 0;
}

void kvs_io_null_fill(void *memory, uint64_t bytes)
{
    uint8_t period[KVS_NULL_PERIOD];
    for (unsigned i = 0; i < KVS_NULL_PERIOD; i++) {
        period[i] = (uint8_t)i;
    }
    for (uint64_t at = 0; at < bytes; at += sizeof period) {
        uint64_t left = bytes - at;
        memcpy((uint8_t *)memory + at, period, left < sizeof period ? left : sizeof period);
    }
}
