/*
 * io_fault.c: a storage device made of a virtual clock and a plan of faults (fault_plan.h).
 *
 * All that decides an operation's fate (its place in the log, when it is due, which faults hit it)
 * is fixed at submission, in submission order: a run is repeatable whatever the threads do. The
 * bytes move when reap hands the operation back, in order of (due time, submission). `clear` ends a
 * cut too; operations already submitted keep their fate.
 *
 * reap's timeout is virtual time. With auto_advance and an operation in flight that will complete,
 * reap moves the clock to that completion or to its own deadline, whichever is first; otherwise
 * only a test moves time.
 *
 * Lock order: engine, then clock.
 */
#include "io_fault.h"

#include "../io_wait.h"
#include "fault_plan.h"
#include "virtual_clock.h"

#include <assert.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { DEPTH_LIMIT = 16384 };
static const int64_t NEVER = INT64_MAX;

/* An operation in flight. */
struct pending {
    struct kvs_io_op *op;
    uint64_t sequence; /* also its place in the log */
    int64_t ready_ns;  /* when the device would be done with it */
    int64_t due_ns;    /* ready_ns, or NEVER while stalled */
    struct kvs_fault_fate fate;
};

struct fault_engine {
    struct kvs_io_engine face;
    struct kvs_virtual_clock *clock;
    struct kvs_fault_device device;
    int nudge_fd; /* eventfd: time moved, or a stalled operation was released */
    pthread_mutex_t lock;
    pthread_cond_t asleep; /* reap went to sleep */
    int reap_sleeps;
    int64_t reap_deadline_ns;
    int64_t device_free_ns; /* when the last queued transfer ends */
    struct kvs_fault_plan plan;
    struct kvs_history *history; /* NULL: none */
    struct kvs_fault_record *log;
    uint64_t log_count, log_room;
    unsigned pending_count;
    struct pending pending[]; /* [depth], no order */
};

static struct fault_engine *lock(struct kvs_io_engine *engine)
{
    struct fault_engine *f = (struct fault_engine *)engine;
    pthread_mutex_lock(&f->lock);
    return f;
}

static void unlock(struct fault_engine *f)
{
    pthread_mutex_unlock(&f->lock);
}

static int64_t transfer_ns(const struct fault_engine *f, uint64_t bytes)
{
    uint64_t rate = f->device.bytes_per_second;
    return rate == 0 ? 0 : (int64_t)((unsigned __int128)bytes * 1000000000u / rate);
}

static struct pending accept(struct fault_engine *f, struct kvs_io_op *op, int64_t now_ns)
{
    int64_t start_ns = f->device_free_ns > now_ns ? f->device_free_ns : now_ns;
    f->device_free_ns = start_ns + transfer_ns(f, op->bytes);
    struct kvs_fault_fate fate = kvs_fault_decide(&f->plan, op->kind);
    int64_t ready_ns = f->device_free_ns + f->device.latency_ns + fate.delay_ns;
    return (struct pending){.op = op,
                            .sequence = f->log_count,
                            .ready_ns = ready_ns,
                            .due_ns = fate.stalls ? NEVER : ready_ns,
                            .fate = fate};
}

static int log_make_room(struct fault_engine *f, uint64_t more)
{
    if (f->log_count + more <= f->log_room) {
        return 0;
    }
    uint64_t room = 2 * (f->log_room + more);
    struct kvs_fault_record *grown = realloc(f->log, room * sizeof *grown);
    if (grown == NULL) {
        return -ENOMEM;
    }
    f->log = grown;
    f->log_room = room;
    return 0;
}

static void log_submitted(struct fault_engine *f, const struct kvs_io_op *op, int64_t now_ns)
{
    struct stat file = {0};
    fstat(op->fd, &file); /* a bad fd is logged as inode 0 */
    f->log[f->log_count] = (struct kvs_fault_record){.sequence = f->log_count,
                                                     .io_kind = (int32_t)op->kind,
                                                     .fd = op->fd,
                                                     .inode = file.st_ino,
                                                     .offset = op->offset,
                                                     .bytes = op->bytes,
                                                     .submitted_ns = now_ns,
                                                     .completed_ns = -1,
                                                     .buffer = (uintptr_t)op->buffer};
    f->log_count++;
}

static int fault_submit(struct kvs_io_engine *engine, struct kvs_io_op *const *ops, unsigned count)
{
    struct fault_engine *f = lock(engine);
    unsigned room = f->face.depth - f->pending_count;
    unsigned taken = count < room ? count : room;
    int result = log_make_room(f, taken);
    int64_t now_ns = kvs_virtual_clock_now_ns(f->clock);
    for (unsigned i = 0; i < taken && result == 0; i++) {
        assert(ops[i]->bytes > 0 && ops[i]->bytes <= KVS_IO_MAX_BYTES);
        f->pending[f->pending_count++] = accept(f, ops[i], now_ns);
        log_submitted(f, ops[i], now_ns);
    }
    unlock(f);
    return result == 0 ? (int)taken : result;
}

/* The operation that completes first, or NULL. */
static struct pending *first_due(struct fault_engine *f)
{
    struct pending *first = NULL;
    for (unsigned i = 0; i < f->pending_count; i++) {
        struct pending *p = &f->pending[i];
        if (p->due_ns != NEVER && (first == NULL || p->due_ns < first->due_ns ||
                                   (p->due_ns == first->due_ns && p->sequence < first->sequence))) {
            first = p;
        }
    }
    return first;
}

static void carry_out(struct fault_engine *f, struct pending *p)
{
    struct kvs_history *history = p->op->kind == KVS_IO_WRITE ? f->history : NULL;
    kvs_history_begin(history);
    p->op->result = kvs_fault_carry_out(p->op, &p->fate);
    kvs_history_end(history, p->op->result,
                    &(struct kvs_change){.call = KVS_HISTORY_CELLS,
                                         .fd = p->op->fd,
                                         .data = p->op->buffer,
                                         .data_bytes = (uint32_t)p->op->result,
                                         .offset = p->op->offset});
}

static unsigned take_due(struct fault_engine *f, struct kvs_io_op **done, unsigned max)
{
    int64_t now_ns = kvs_virtual_clock_now_ns(f->clock);
    unsigned taken = 0;
    struct pending *p;
    while (taken < max && (p = first_due(f)) != NULL && p->due_ns <= now_ns) {
        carry_out(f, p);
        f->log[p->sequence].completed_ns = p->due_ns;
        f->log[p->sequence].result = p->op->result;
        done[taken++] = p->op;
        *p = f->pending[--f->pending_count];
    }
    return taken;
}

/* Where auto_advance may move the clock, or NEVER. */
static int64_t next_jump(struct fault_engine *f, int64_t deadline_ns)
{
    struct pending *first = first_due(f);
    if (!f->device.auto_advance || first == NULL) {
        return NEVER;
    }
    return first->due_ns < deadline_ns ? first->due_ns : deadline_ns;
}

/* Sleeps until something may have changed. Called with the lock held, drops it meanwhile. */
static void sleep_unlocked(struct fault_engine *f, int64_t deadline_ns)
{
    f->reap_sleeps = 1;
    f->reap_deadline_ns = deadline_ns;
    pthread_cond_broadcast(&f->asleep);
    unlock(f);
    struct pollfd fds[] = {{.fd = f->face.wake_fd, .events = POLLIN},
                           {.fd = f->nudge_fd, .events = POLLIN}};
    poll(fds, 2, -1);
    pthread_mutex_lock(&f->lock);
    f->reap_sleeps = 0;
}

static int fault_reap(struct kvs_io_engine *engine, struct kvs_io_op **done, unsigned max,
                      int64_t timeout_ns)
{
    assert(max > 0);
    struct fault_engine *f = lock(engine);
    int64_t deadline_ns = kvs_deadline_after(kvs_virtual_clock_now_ns(f->clock), timeout_ns);
    unsigned taken;
    for (;;) {
        kvs_wake_drain(f->nudge_fd);
        int64_t now_ns = kvs_virtual_clock_now_ns(f->clock);
        taken = take_due(f, done, max);
        if (taken > 0 || kvs_wake_drain(f->face.wake_fd) || now_ns >= deadline_ns) {
            break;
        }
        int64_t jump_ns = next_jump(f, deadline_ns);
        if (jump_ns != NEVER) {
            kvs_virtual_clock_advance_to(f->clock, jump_ns);
        } else {
            sleep_unlocked(f, deadline_ns);
        }
    }
    unlock(f);
    return (int)taken;
}

static int fault_register_memory(struct kvs_io_engine *engine, void *base, uint64_t bytes)
{
    (void)base;
    if (bytes == 0) {
        return -EINVAL;
    }
    engine->registered = 1;
    return 0;
}

static void fault_free(struct fault_engine *f)
{
    if (f->face.wake_fd >= 0) {
        close(f->face.wake_fd);
    }
    if (f->nudge_fd >= 0) {
        close(f->nudge_fd);
    }
    pthread_cond_destroy(&f->asleep);
    pthread_mutex_destroy(&f->lock);
    free(f->log);
    free(f);
}

static void fault_close(struct kvs_io_engine *engine)
{
    struct fault_engine *f = (struct fault_engine *)engine;
    assert(f->pending_count == 0);
    kvs_virtual_clock_unwatch(f->clock, f->nudge_fd);
    fault_free(f);
}

static const struct kvs_io_engine_calls FAULT_CALLS = {
    .submit = fault_submit,
    .reap = fault_reap,
    .register_memory = fault_register_memory,
    .close = fault_close,
};

int kvs_io_fault_open(struct kvs_virtual_clock *clock, const struct kvs_fault_device *device,
                      struct kvs_io_engine **out)
{
    if (device->depth == 0 || device->depth > DEPTH_LIMIT) {
        return -EINVAL;
    }
    struct fault_engine *f = calloc(1, sizeof *f + device->depth * sizeof f->pending[0]);
    if (f == NULL) {
        return -ENOMEM;
    }
    f->face = (struct kvs_io_engine){
        .calls = &FAULT_CALLS, .name = "fault", .wake_fd = kvs_wake_open(), .depth = device->depth};
    f->nudge_fd = kvs_wake_open();
    f->clock = clock;
    f->device = *device;
    pthread_mutex_init(&f->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&f->asleep, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int result = f->face.wake_fd < 0 ? f->face.wake_fd : f->nudge_fd < 0 ? f->nudge_fd : 0;
    if (result == 0) {
        result = kvs_virtual_clock_watch(clock, f->nudge_fd);
    }
    if (result < 0) {
        fault_free(f);
        return result;
    }
    *out = &f->face;
    return 0;
}

void kvs_io_fault_add(struct kvs_io_engine *engine, const struct kvs_fault *fault)
{
    struct fault_engine *f = lock(engine);
    assert(f->plan.count < KVS_FAULT_PLAN_LIMIT);
    f->plan.counters[f->plan.count++] = (struct kvs_fault_counter){.fault = *fault};
    unlock(f);
}

void kvs_io_fault_clear(struct kvs_io_engine *engine)
{
    struct fault_engine *f = lock(engine);
    f->plan.count = 0;
    f->plan.is_cut = 0;
    unlock(f);
}

void kvs_io_fault_release_stalled(struct kvs_io_engine *engine)
{
    struct fault_engine *f = lock(engine);
    int64_t now_ns = kvs_virtual_clock_now_ns(f->clock);
    for (unsigned i = 0; i < f->pending_count; i++) {
        struct pending *p = &f->pending[i];
        if (p->due_ns == NEVER) {
            p->due_ns = p->ready_ns > now_ns ? p->ready_ns : now_ns;
        }
    }
    kvs_wake_write(f->nudge_fd);
    unlock(f);
}

uint64_t kvs_io_fault_log(struct kvs_io_engine *engine, uint64_t from, struct kvs_fault_record *out,
                          uint64_t max)
{
    struct fault_engine *f = lock(engine);
    uint64_t all = f->log_count;
    uint64_t there = from < all ? all - from : 0;
    if (there > 0 && max > 0) {
        memcpy(out, f->log + from, (there < max ? there : max) * sizeof *out);
    }
    unlock(f);
    return all;
}

int64_t kvs_io_fault_next_ns(struct kvs_io_engine *engine)
{
    struct fault_engine *f = lock(engine);
    int64_t now_ns = kvs_virtual_clock_now_ns(f->clock);
    int64_t next_ns = -1;
    for (unsigned i = 0; i < f->pending_count; i++) {
        int64_t due_ns = f->pending[i].due_ns;
        if (due_ns != NEVER && due_ns > now_ns && (next_ns < 0 || due_ns < next_ns)) {
            next_ns = due_ns;
        }
    }
    unlock(f);
    return next_ns;
}

static int is_settled(struct fault_engine *f)
{
    struct pollfd wake = {.fd = f->face.wake_fd, .events = POLLIN};
    int64_t now_ns = kvs_virtual_clock_now_ns(f->clock);
    struct pending *first = first_due(f);
    return f->reap_sleeps && f->reap_deadline_ns > now_ns &&
           (first == NULL || first->due_ns > now_ns) && poll(&wake, 1, 0) == 0;
}

int kvs_io_fault_settle(struct kvs_io_engine *engine, int timeout_ms)
{
    struct timespec until = kvs_timespec(kvs_monotonic_ns() + (int64_t)timeout_ms * 1000000);
    struct fault_engine *f = lock(engine);
    int waited = 0, settled;
    /* One look decides: a wake-up that comes right after it belongs to what happens next. */
    while (!(settled = is_settled(f)) && waited != ETIMEDOUT) {
        waited = pthread_cond_timedwait(&f->asleep, &f->lock, &until);
    }
    unlock(f);
    return settled ? 0 : -ETIMEDOUT;
}

void kvs_io_fault_set_history(struct kvs_io_engine *engine, struct kvs_history *history)
{
    ((struct fault_engine *)engine)->history = history;
}
