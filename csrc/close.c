/*
 * close.c: the end of a store: what still runs is ended in order, and nobody waits without a bound.
 *
 * No new work (closing 1), loads end, writers end or finish their commit, I/O drains and its
 * threads leave (closing 2), times are written, file workers run dry, engines and files are closed.
 *
 * Invariants:
 *   1. Memory in flight stays mapped. A root whose device does not answer in time is closed by its
 *      thread that is left behind, which holds the store until then.
 *   2. A forked child ends nothing of its parent's.
 */
#include <errno.h>
#include <time.h>

#include "store.h"

enum { COMMIT_WAIT_S = 10 };

static void end_loads_and_writers_locked(struct kvs_store *store)
{
    while (!kvs_list_empty(&store->loads)) {
        kvs_load_end_locked(KVS_ENTRY(store->loads.next, struct kvs_load, link), KVS_REASON_CLOSED);
    }
    for (struct kvs_link *at = store->writers.next; at != &store->writers;) {
        struct kvs_writer *writer = KVS_ENTRY(at, struct kvs_writer, link);
        at = at->next;
        if (writer->state == KVS_WRITER_OPEN) {
            kvs_writer_end_locked(writer);
        }
    }
}

/* Commits under way are finished, for a while; then they are given up like the others. */
static void finish_commits_locked(struct kvs_store *store)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += COMMIT_WAIT_S;
    int error = 0;
    while (!kvs_list_empty(&store->writers) && error != ETIMEDOUT) {
        error = pthread_cond_timedwait(&store->changed, &store->lock, &until);
    }
    for (struct kvs_link *at = store->writers.next; at != &store->writers;) {
        struct kvs_writer *writer = KVS_ENTRY(at, struct kvs_writer, link);
        at = at->next;
        if (!writer->publishing) { /* else its job runs before the workers leave */
            kvs_writer_end_locked(writer);
        }
    }
}

static void ram_drop_all_locked(struct kvs_store *store)
{
    while (!kvs_list_empty(&store->cached)) {
        kvs_region_detach_locked(store, KVS_ENTRY(store->cached.prev, struct kvs_region, lru));
    }
    for (struct kvs_link *at = store->files.next; at != &store->files;) {
        struct kvs_file *file = KVS_ENTRY(at, struct kvs_file, lru);
        at = at->next;
        if (file->extent) { /* else a transfer has it, and closes it when it ends */
            kvs_file_release_locked(store, file->extent);
        }
    }
}

static void deadline_after(int64_t ns, struct timespec *out)
{
    clock_gettime(CLOCK_MONOTONIC, out);
    ns += out->tv_nsec;
    out->tv_sec += ns / KVS_NS_PER_S;
    out->tv_nsec = ns % KVS_NS_PER_S;
}

static int all_stopped_locked(const struct kvs_store *store)
{
    int all = 1;
    for (uint32_t i = 0; i < store->root_count; i++) {
        all &= store->roots[i].stopped;
    }
    return all;
}

/* What a device has to answer for: in a thread of its own, left behind when it does not. */
static void *closer(void *argument)
{
    struct kvs_root *root = argument;
    struct kvs_store *store = root->store;
    struct timespec until;
    kvs_root_stop(root);
    deadline_after(store->io_timeout_ns / 2, &until);
    kvs_lock(store);
    root->stopped = 1;
    pthread_cond_broadcast(&store->changed);
    /* Workers of one root may be at files of another: all leave first, those that can. */
    for (int error = 0; !all_stopped_locked(store) && error != ETIMEDOUT;) {
        error = pthread_cond_timedwait(&store->changed, &store->lock, &until);
    }
    kvs_unlock(store);
    kvs_root_close(root);
    kvs_lock(store);
    root->closed = 1;
    pthread_cond_broadcast(&store->changed);
    kvs_unlock(store);
    kvs_store_drop(store);
    return NULL;
}

/* A bit for each. */
static uint32_t roots_open_locked(const struct kvs_store *store)
{
    uint32_t open = 0;
    for (uint32_t i = 0; i < store->root_count; i++) {
        open |= store->roots[i].closed ? 0 : 1u << i;
    }
    return open;
}

/* The roots that did not answer in io_timeout. */
static uint32_t roots_close(struct kvs_store *store)
{
    struct timespec until;
    deadline_after(store->io_timeout_ns, &until);
    for (uint32_t i = 0; i < store->root_count; i++) {
        pthread_t thread;
        kvs_store_hold(store);
        if (pthread_create(&thread, NULL, closer, &store->roots[i]) == 0) {
            pthread_detach(thread);
        } else {
            closer(&store->roots[i]);
        }
    }
    int error = 0;
    kvs_lock(store);
    while (roots_open_locked(store) && error != ETIMEDOUT) {
        error = pthread_cond_timedwait(&store->changed, &store->lock, &until);
    }
    uint32_t left = roots_open_locked(store);
    kvs_unlock(store);
    return left;
}

uint32_t kvs_close(struct kvs_store *store)
{
    if (kvs_store_check(store) == -ECHILD) {
        return 0; /* in a child: nothing here is ours to end */
    }
    kvs_lock(store);
    int first = store->closing == 0;
    store->closing = first ? 1 : store->closing;
    atomic_store(&store->is_closing, 1);
    if (!first) {
        kvs_unlock(store);
        return 0;
    }
    end_loads_and_writers_locked(store);
    finish_commits_locked(store);
    store->closing = 2;
    pthread_cond_broadcast(&store->put_ready);
    pthread_cond_broadcast(&store->keeper_wake);
    kvs_unlock(store);
    if (store->copier_running) {
        pthread_join(store->copier, NULL);
    }
    if (store->keeper_running) {
        pthread_join(store->keeper, NULL);
    }
    kvs_times_flush_all(store);
    kvs_lock(store);
    for (uint32_t i = 0; i < store->root_count; i++) {
        kvs_leave_again_locked(&store->roots[i]);
    }
    ram_drop_all_locked(store);
    kvs_unlock(store);
    uint32_t left = roots_close(store);
    kvs_lock(store);
    kvs_flushes_refuse_locked(store, -ESHUTDOWN); /* a sync that was left behind */
    kvs_unlock(store);
    kvs_store_drop(store);
    return left;
}
