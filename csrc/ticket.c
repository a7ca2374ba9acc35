/*
 * ticket.c: completions, and the queues that carry them to event loops.
 *
 * A ticket is finished once, under the store's lock; whoever blocks on it is woken through a
 * condition of all tickets, whoever sent it to a queue finds its token there. A queue writes its
 * eventfd only when it goes from empty to non-empty, so a loop is woken once per batch.
 *
 * Does not know what a ticket stands for.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "store.h"

struct kvs_ticket *kvs_ticket_open(struct kvs_store *store, int refs)
{
    struct kvs_ticket *ticket = calloc(1, sizeof(*ticket));
    if (!ticket) {
        return NULL;
    }
    kvs_store_hold(store);
    ticket->store = store;
    ticket->refs = refs;
    return ticket;
}

struct kvs_ticket *kvs_ticket_hold_locked(struct kvs_ticket *ticket)
{
    ticket->refs++;
    return ticket;
}

static void queue_push_locked(struct kvs_queue *queue, uint64_t token)
{
    if (queue->count == queue->room) {
        /* Room doubles; the ring is laid out anew from its head. */
        uint32_t room = queue->room * 2;
        uint64_t *tokens = malloc(room * sizeof(*tokens));
        if (!tokens) {
            return; /* the waiter falls to its own deadline */
        }
        for (uint32_t i = 0; i < queue->count; i++) {
            tokens[i] = queue->tokens[(queue->head + i) % queue->room];
        }
        free(queue->tokens);
        queue->tokens = tokens;
        queue->room = room;
        queue->head = 0;
    }
    queue->tokens[(queue->head + queue->count) % queue->room] = token;
    if (queue->count++ == 0) {
        eventfd_write(queue->fd, 1);
    }
}

void kvs_ticket_finish_locked(struct kvs_ticket *ticket, int64_t result)
{
    assert(!ticket->done);
    ticket->done = 1;
    ticket->result = result;
    if (ticket->queue) {
        queue_push_locked(ticket->queue, ticket->token);
        ticket->queue = NULL;
    }
    pthread_cond_broadcast(&ticket->store->ticket_done);
    pthread_cond_broadcast(&ticket->store->changed);
}

/* The store may go with the ticket: the caller must hold a reference of its own. */
void kvs_ticket_drop_locked(struct kvs_ticket *ticket)
{
    assert(ticket->refs > 0);
    if (--ticket->refs > 0) {
        return;
    }
    struct kvs_store *store = ticket->store;
    int others = atomic_fetch_sub(&store->refs, 1) - 1;
    assert(others > 0);
    (void)others;
    free(ticket);
}

void kvs_ticket_close(struct kvs_ticket *ticket)
{
    struct kvs_store *store = ticket->store;
    kvs_store_hold(store);
    kvs_lock(store);
    kvs_ticket_drop_locked(ticket);
    kvs_unlock(store);
    kvs_store_drop(store);
}

static void deadline_of(int64_t timeout_ns, struct timespec *out)
{
    clock_gettime(CLOCK_MONOTONIC, out);
    int64_t ns = out->tv_nsec + timeout_ns % KVS_NS_PER_S;
    out->tv_sec += timeout_ns / KVS_NS_PER_S + ns / KVS_NS_PER_S;
    out->tv_nsec = ns % KVS_NS_PER_S;
}

int kvs_ticket_wait(struct kvs_ticket *ticket, int64_t timeout_ns)
{
    struct kvs_store *store = ticket->store;
    struct timespec until;
    if (timeout_ns >= 0) {
        deadline_of(timeout_ns, &until);
    }
    int error = kvs_store_check(store) == -ECHILD ? -ECHILD : 0;
    if (error) {
        return error;
    }
    kvs_lock(store);
    while (!ticket->done && error != ETIMEDOUT) {
        error = timeout_ns < 0 ? pthread_cond_wait(&store->ticket_done, &store->lock)
                               : pthread_cond_timedwait(&store->ticket_done, &store->lock, &until);
    }
    int done = ticket->done;
    kvs_unlock(store);
    return done ? 0 : -ETIMEDOUT;
}

int kvs_ticket_done(struct kvs_ticket *ticket, int64_t *result)
{
    kvs_lock(ticket->store);
    int done = ticket->done;
    if (done) {
        *result = ticket->result;
    }
    kvs_unlock(ticket->store);
    return done;
}

void kvs_ticket_send(struct kvs_ticket *ticket, struct kvs_queue *queue, uint64_t token)
{
    kvs_lock(ticket->store);
    ticket->token = token;
    if (ticket->done && queue) {
        queue_push_locked(queue, token);
    } else if (!ticket->done) {
        ticket->queue = queue;
    }
    kvs_unlock(ticket->store);
}

int kvs_queue_open(struct kvs_store *store, struct kvs_queue **out)
{
    struct kvs_queue *queue = calloc(1, sizeof(*queue));
    if (!queue) {
        return -ENOMEM;
    }
    queue->room = 64;
    queue->tokens = malloc(queue->room * sizeof(*queue->tokens));
    queue->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!queue->tokens || queue->fd < 0) {
        int error = queue->fd < 0 ? -errno : -ENOMEM;
        if (queue->fd >= 0) {
            close(queue->fd);
        }
        free(queue->tokens);
        free(queue);
        return error;
    }
    kvs_store_hold(store);
    queue->store = store;
    *out = queue;
    return 0;
}

int kvs_queue_fd(const struct kvs_queue *queue)
{
    return queue->fd;
}

uint32_t kvs_queue_take(struct kvs_queue *queue, uint64_t *tokens, uint32_t max)
{
    kvs_lock(queue->store);
    uint32_t taken = queue->count < max ? queue->count : max;
    for (uint32_t i = 0; i < taken; i++) {
        tokens[i] = queue->tokens[(queue->head + i) % queue->room];
    }
    queue->head = (queue->head + taken) % queue->room;
    queue->count -= taken;
    if (queue->count == 0) {
        eventfd_t ignored;
        eventfd_read(queue->fd, &ignored);
    }
    kvs_unlock(queue->store);
    return taken;
}

/* Tickets that still point here must be closed or sent elsewhere first by the caller; the binding
 * closes a loop's queue only after it detached every waiter of that loop. */
void kvs_queue_close(struct kvs_queue *queue)
{
    struct kvs_store *store = queue->store;
    close(queue->fd);
    free(queue->tokens);
    free(queue);
    kvs_store_drop(store);
}
