/*
 * raw_io.c: see raw_io.h. The engine is chosen as a store would.
 *
 * Invariants:
 *   1. Steps go out in the order given, and start over at the end.
 *   2. run returns with nothing in flight, also when an operation failed.
 */
#define _GNU_SOURCE 1 /* O_DIRECT */
#include "testing/raw_io.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arena.h"
#include "io_choose.h"
#include "io_wait.h"

enum { ALIGN = 4096, DEPTH_LIMIT = 4096, REAP_MAX = 64 };

struct kvs_raw_io {
    struct kvs_arena *arena;
    struct kvs_io_engine *engine;
    enum kvs_io_kind kind;
    int *fds;
    struct kvs_raw_step *steps;
    uint32_t fd_count, step_count, depth_max, step_bytes; /* of the largest step */
    uint32_t step;                                        /* the next one */
    struct kvs_io_op *ops;                                /* [depth_max] */
    int64_t *sent_ns;                                     /* [depth_max] */
    void **buffers;                                       /* [buffer_count] */
    uint32_t buffer_count, buffer, walked; /* the next one; how many are walked, 0: none */
    uint64_t left;                         /* steps that this run may still send */
    struct kvs_latency latency;
};

static int files_open(struct kvs_raw_io *raw, const char *const *paths)
{
    int flags = (raw->kind == KVS_IO_READ ? O_RDONLY : O_WRONLY) | O_DIRECT | O_CLOEXEC;
    for (uint32_t i = 0; i < raw->fd_count; i++) {
        raw->fds[i] = open(paths[i], flags);
        if (raw->fds[i] < 0) {
            return -errno;
        }
    }
    return 0;
}

/* Takes the steps over, and the size of the largest. */
static int steps_take(struct kvs_raw_io *raw, const struct kvs_raw_step *steps)
{
    for (uint32_t i = 0; i < raw->step_count; i++) {
        struct kvs_raw_step step = steps[i];
        if (step.bytes == 0 || step.bytes > KVS_IO_MAX_BYTES || step.bytes % ALIGN ||
            step.offset % ALIGN || step.file >= raw->fd_count) {
            return -EINVAL;
        }
        raw->steps[i] = step;
        raw->step_bytes = step.bytes > raw->step_bytes ? step.bytes : raw->step_bytes;
    }
    return 0;
}

/* One allocation per buffer: none crosses a registered piece. What is written is no zeros, which a
 * device may make short work of. */
static int memory_open(struct kvs_raw_io *raw, uint64_t memory_bytes)
{
    raw->walked = (uint32_t)(memory_bytes / raw->step_bytes);
    raw->buffer_count = raw->walked > raw->depth_max ? raw->walked : raw->depth_max;
    uint64_t bytes = (uint64_t)raw->step_bytes * raw->buffer_count;
    raw->buffers = calloc(raw->buffer_count, sizeof(*raw->buffers));
    int error = raw->buffers ? kvs_arena_open(bytes + bytes / 8, &raw->arena) : -ENOMEM;
    for (uint32_t i = 0; !error && i < raw->buffer_count; i++) {
        raw->buffers[i] = kvs_arena_take(raw->arena, raw->step_bytes);
        error = raw->buffers[i] ? 0 : -ENOMEM;
        if (!error && raw->kind == KVS_IO_WRITE) {
            memset(raw->buffers[i], (int)(i % 255 + 1), raw->step_bytes);
        }
    }
    return error;
}

static int engine_open(struct kvs_raw_io *raw, enum kvs_engine_choice engine)
{
    char why[KVS_ENGINE_WHY_BYTES];
    struct kvs_io_wish wish = {
        .engine = engine, .depth = raw->depth_max, .file_system = "", .direct = 1};
    int error = kvs_io_choose(&wish, &raw->engine, why);
    if (!error && engine != KVS_ENGINE_URING_PLAIN) {
        /* A refusal is a slower path, told by kvs_raw_registered. */
        (void)raw->engine->calls->register_memory(raw->engine, kvs_arena_base(raw->arena),
                                                  kvs_arena_bytes(raw->arena));
    }
    return error;
}

static int tables_open(struct kvs_raw_io *raw)
{
    raw->fds = malloc(raw->fd_count * sizeof(*raw->fds));
    raw->steps = malloc(raw->step_count * sizeof(*raw->steps));
    raw->ops = calloc(raw->depth_max, sizeof(*raw->ops));
    raw->sent_ns = calloc(raw->depth_max, sizeof(*raw->sent_ns));
    for (uint32_t i = 0; raw->fds && i < raw->fd_count; i++) {
        raw->fds[i] = -1;
    }
    return raw->fds && raw->steps && raw->ops && raw->sent_ns ? 0 : -ENOMEM;
}

int kvs_raw_open(const struct kvs_raw_plan *plan, struct kvs_raw_io **out)
{
    if (plan->path_count == 0 || plan->step_count == 0 || plan->depth_max == 0 ||
        plan->depth_max > DEPTH_LIMIT || plan->memory_bytes / ALIGN > UINT32_MAX / 2) {
        return -EINVAL;
    }
    struct kvs_raw_io *raw = calloc(1, sizeof(*raw));
    if (!raw) {
        return -ENOMEM;
    }
    raw->kind = plan->kind;
    raw->fd_count = plan->path_count;
    raw->step_count = plan->step_count;
    raw->depth_max = plan->depth_max;
    int error = tables_open(raw);
    error = error ? error : steps_take(raw, plan->steps);
    error = error ? error : files_open(raw, plan->paths);
    error = error ? error : memory_open(raw, plan->memory_bytes);
    error = error ? error : engine_open(raw, plan->engine);
    if (error) {
        kvs_raw_close(raw);
        return error;
    }
    *out = raw;
    return 0;
}

static void aim(struct kvs_raw_io *raw, struct kvs_io_op *op)
{
    const struct kvs_raw_step *step = &raw->steps[raw->step];
    raw->step = (raw->step + 1) % raw->step_count;
    if (raw->walked) {
        op->buffer = raw->buffers[raw->buffer];
        raw->buffer = (raw->buffer + 1) % raw->buffer_count;
    }
    op->kind = raw->kind;
    op->fd = raw->fds[step->file];
    op->offset = step->offset;
    op->bytes = step->bytes;
    raw->left--;
}

/* Returns how many were taken; *error says why not all (the engine has room for depth_max). */
static uint32_t send(struct kvs_raw_io *raw, struct kvs_io_op **ops, uint32_t count, int *error)
{
    count = raw->left < count ? (uint32_t)raw->left : count;
    int64_t now_ns = kvs_monotonic_ns();
    for (uint32_t i = 0; i < count; i++) {
        aim(raw, ops[i]);
        raw->sent_ns[ops[i] - raw->ops] = now_ns;
    }
    int taken = count ? raw->engine->calls->submit(raw->engine, ops, count) : 0;
    if (taken < (int)count) {
        *error = taken < 0 ? taken : -EAGAIN;
    }
    return taken < 0 ? 0 : (uint32_t)taken;
}

static void note(struct kvs_raw_io *raw, struct kvs_io_op **done, uint32_t count,
                 struct kvs_raw_result *out, int *error)
{
    int64_t now_ns = kvs_monotonic_ns();
    for (uint32_t i = 0; i < count; i++) {
        *error = *error ? *error : kvs_io_status(done[i]);
        out->bytes += done[i]->bytes;
        out->steps++;
        kvs_latency_note(&raw->latency, now_ns - raw->sent_ns[done[i] - raw->ops]);
    }
}

int kvs_raw_run(struct kvs_raw_io *raw, uint32_t depth, int64_t duration_ns, uint64_t steps_max,
                struct kvs_raw_result *out)
{
    struct kvs_io_op *ops[REAP_MAX];
    uint32_t in_flight = 0;
    int error = depth == 0 || depth > raw->depth_max ? -EINVAL : 0;
    int64_t start_ns = kvs_monotonic_ns(), until_ns = kvs_deadline_after(start_ns, duration_ns);
    *out = (struct kvs_raw_result){0};
    raw->left = steps_max ? steps_max : UINT64_MAX;
    for (uint32_t i = 0; !error && i < depth; i++) {
        ops[0] = &raw->ops[i];
        ops[0]->buffer = raw->buffers[i];
        in_flight += send(raw, ops, 1, &error);
    }
    while (in_flight) {
        int count = raw->engine->calls->reap(raw->engine, ops, REAP_MAX, -1);
        if (count < 0) {
            return count; /* the engine itself is broken */
        }
        note(raw, ops, (uint32_t)count, out, &error);
        in_flight -= (uint32_t)count;
        if (count && !error && kvs_monotonic_ns() < until_ns) {
            in_flight += send(raw, ops, (uint32_t)count, &error);
        }
    }
    out->ns = kvs_monotonic_ns() - start_ns;
    return error;
}

const char *kvs_raw_engine(const struct kvs_raw_io *raw)
{
    return raw->engine->name;
}

int kvs_raw_registered(const struct kvs_raw_io *raw)
{
    return raw->engine->registered;
}

double kvs_raw_huge_coverage(const struct kvs_raw_io *raw)
{
    return kvs_arena_huge_coverage(raw->arena);
}

const struct kvs_latency *kvs_raw_latency(const struct kvs_raw_io *raw)
{
    return &raw->latency;
}

void kvs_raw_close(struct kvs_raw_io *raw)
{
    if (raw->engine) {
        raw->engine->calls->close(raw->engine);
    }
    for (uint32_t i = 0; raw->fds && i < raw->fd_count; i++) {
        if (raw->fds[i] >= 0) {
            close(raw->fds[i]);
        }
    }
    if (raw->arena) {
        kvs_arena_close(raw->arena);
    }
    free(raw->fds);
    free(raw->steps);
    free(raw->buffers);
    free(raw->ops);
    free(raw->sent_ns);
    free(raw);
}
