/*
 * io_threads.c: the engine that works everywhere: threads that call pread and pwrite.
 *
 * For systems where io_uring is refused, and for file systems (tmpfs) where it would only hand each
 * read to a kernel thread. Costs 2-3 times the CPU per read. Registered memory means nothing here.
 *
 * Invariants:
 *   - in_flight <= depth counts operations from submit to reap; each is in exactly one place: the
 *     queue, a worker's hands, or the done list. Both arrays hold `depth`, so neither overflows.
 *   - Workers write wake_fd only under the lock and only while `reaping` says that reap sleeps on
 *     it; reap drains it after clearing `reaping`. So a wake-up never outlives what it announced.
 */
#define _GNU_SOURCE 1 /* ppoll */
#include "io.h"
#include "io_wait.h"

#include <assert.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_LIMIT = 16384, THREAD_LIMIT = 1024 };

struct threads_engine {
    struct kvs_io_engine face;
    pthread_mutex_t lock;
    pthread_cond_t work; /* the queue is not empty, or closing */
    struct kvs_io_op **queue;
    unsigned queue_head, queue_count; /* a ring of depth entries */
    struct kvs_io_op **done;
    unsigned done_count;
    unsigned in_flight;
    int reaping;
    int closing;
    pthread_t *threads;
    unsigned thread_count;
};

static int32_t transfer(const struct kvs_io_op *op)
{
    ssize_t moved;
    do { /* workers block every signal: at most a debugger or a freezer interrupts */
        moved = op->kind == KVS_IO_READ ? pread(op->fd, op->buffer, op->bytes, (off_t)op->offset)
                                        : pwrite(op->fd, op->buffer, op->bytes, (off_t)op->offset);
    } while (moved < 0 && errno == EINTR);
    return moved < 0 ? -errno : (int32_t)moved;
}

static void *worker(void *arg)
{
    struct threads_engine *t = arg;
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (t->queue_count == 0 && !t->closing) {
            pthread_cond_wait(&t->work, &t->lock);
        }
        if (t->queue_count == 0) {
            break;
        }
        struct kvs_io_op *op = t->queue[t->queue_head];
        t->queue_head = (t->queue_head + 1) % t->face.depth;
        t->queue_count--;
        pthread_mutex_unlock(&t->lock);

        int32_t result = transfer(op);

        pthread_mutex_lock(&t->lock);
        op->result = result;
        t->done[t->done_count++] = op;
        if (t->reaping) {
            kvs_wake_write(t->face.wake_fd);
        }
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static int threads_submit(struct kvs_io_engine *engine, struct kvs_io_op *const *ops,
                          unsigned count)
{
    struct threads_engine *t = (struct threads_engine *)engine;
    unsigned taken = 0;
    pthread_mutex_lock(&t->lock);
    for (; taken < count && t->in_flight < t->face.depth; taken++) {
        assert(ops[taken]->bytes > 0 && ops[taken]->bytes <= KVS_IO_MAX_BYTES);
        t->queue[(t->queue_head + t->queue_count) % t->face.depth] = ops[taken];
        t->queue_count++;
        t->in_flight++;
    }
    if (taken == 1) {
        pthread_cond_signal(&t->work);
    } else if (taken > 1) {
        pthread_cond_broadcast(&t->work);
    }
    pthread_mutex_unlock(&t->lock);
    return (int)taken;
}

/* Moves up to max finished operations out, oldest first. Called with the lock held. */
static unsigned take_done(struct threads_engine *t, struct kvs_io_op **done, unsigned max)
{
    unsigned taken = t->done_count < max ? t->done_count : max;
    memcpy(done, t->done, taken * sizeof *done);
    t->done_count -= taken;
    memmove(t->done, t->done + taken, t->done_count * sizeof *done);
    t->in_flight -= taken;
    return taken;
}

static int threads_reap(struct kvs_io_engine *engine, struct kvs_io_op **done, unsigned max,
                        int64_t timeout_ns)
{
    struct threads_engine *t = (struct threads_engine *)engine;
    assert(max > 0);
    int64_t deadline_ns = kvs_deadline_after(kvs_monotonic_ns(), timeout_ns);
    int woken = 0, expired = 0, error = 0;
    unsigned taken;
    pthread_mutex_lock(&t->lock);
    while ((taken = take_done(t, done, max)) == 0 && !woken && !expired && error == 0) {
        t->reaping = 1;
        pthread_mutex_unlock(&t->lock);
        int64_t left_ns = kvs_remaining_ns(deadline_ns);
        expired = left_ns == 0;
        struct timespec left = kvs_timespec(left_ns);
        struct pollfd wake = {.fd = t->face.wake_fd, .events = POLLIN};
        int ready = ppoll(&wake, 1, left_ns < 0 ? NULL : &left, NULL);
        error = ready < 0 && errno != EINTR ? -errno : 0;
        pthread_mutex_lock(&t->lock);
        t->reaping = 0;
        woken = kvs_wake_drain(t->face.wake_fd);
    }
    pthread_mutex_unlock(&t->lock);
    return taken > 0 ? (int)taken : error;
}

static int threads_register_memory(struct kvs_io_engine *engine, void *base, uint64_t bytes)
{
    (void)engine;
    (void)base;
    (void)bytes;
    return -EOPNOTSUPP;
}

static void threads_stop(struct threads_engine *t)
{
    pthread_mutex_lock(&t->lock);
    t->closing = 1;
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&t->lock);
    for (unsigned i = 0; i < t->thread_count; i++) {
        pthread_join(t->threads[i], NULL);
    }
}

static void threads_free(struct threads_engine *t)
{
    if (t->face.wake_fd >= 0) {
        close(t->face.wake_fd);
    }
    pthread_cond_destroy(&t->work);
    pthread_mutex_destroy(&t->lock);
    free(t->queue);
    free(t->done);
    free(t->threads);
    free(t);
}

static void threads_close(struct kvs_io_engine *engine)
{
    struct threads_engine *t = (struct threads_engine *)engine;
    assert(t->in_flight == 0);
    threads_stop(t);
    threads_free(t);
}

static const struct kvs_io_engine_calls THREADS_CALLS = {
    .submit = threads_submit,
    .reap = threads_reap,
    .register_memory = threads_register_memory,
    .close = threads_close,
};

/* Signals stay with the host program's own threads. */
static int threads_start(struct threads_engine *t, unsigned thread_count)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int result = 0;
    while (t->thread_count < thread_count && result == 0) {
        result = -pthread_create(&t->threads[t->thread_count], NULL, worker, t);
        t->thread_count += result == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return result;
}

int kvs_io_threads_open(unsigned depth, unsigned thread_count, struct kvs_io_engine **out)
{
    if (depth == 0 || depth > DEPTH_LIMIT || thread_count == 0 || thread_count > THREAD_LIMIT) {
        return -EINVAL;
    }
    struct threads_engine *t = calloc(1, sizeof *t);
    if (t == NULL) {
        return -ENOMEM;
    }
    t->face = (struct kvs_io_engine){
        .calls = &THREADS_CALLS, .name = "threads", .wake_fd = kvs_wake_open(), .depth = depth};
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->work, NULL);
    t->queue = calloc(depth, sizeof *t->queue);
    t->done = calloc(depth, sizeof *t->done);
    t->threads = calloc(thread_count, sizeof *t->threads);
    int result = t->face.wake_fd < 0 ? t->face.wake_fd : 0;
    if (t->queue == NULL || t->done == NULL || t->threads == NULL) {
        result = -ENOMEM;
    }
    if (result == 0) {
        result = threads_start(t, thread_count);
    }
    if (result < 0) {
        threads_stop(t); /* those that did start */
        threads_free(t);
        return result;
    }
    *out = &t->face;
    return 0;
}
