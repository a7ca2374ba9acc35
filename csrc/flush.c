/*
 * flush.c: durability for who asks: what was changed on the roots before, by whomever, is on the
 * medium afterwards.
 *
 * The put path never syncs: after a power cut a torn file fails its checks and is a miss.
 *
 * One sync of each root's file system does it. Syncing the directories of new names instead covers
 * the files only where a journal happens to carry them along, and misses what an earlier life or a
 * peer has put and this store's puts rely on.
 *
 * A sync may take long, for what others wrote: one job at a time does it, for all who asked before
 * it began, and slowness of it is no trouble of a device (fs_watch.c). One that takes PATIENCE
 * times io_timeout is given up: who waits for it or behind it is told, and so is whoever asks until
 * it is back. None is begun beside it: it would hang too, and take one more worker each time.
 */
#include <errno.h>
#include <stdlib.h>

#include "store.h"

enum { PATIENCE = 60 }; /* ten minutes */

struct kvs_flush {
    struct kvs_flush *next;
    struct kvs_ticket *ticket;
};

static void finish_locked(struct kvs_flush **flushes, int64_t result)
{
    while (*flushes) {
        struct kvs_flush *flush = *flushes;
        *flushes = flush->next;
        kvs_ticket_finish_locked(flush->ticket, result);
        kvs_ticket_drop_locked(flush->ticket);
        free(flush);
    }
}

/* Until nobody asks any more, or another has taken over. */
static void flush_job(struct kvs_root *root, void *argument)
{
    struct kvs_store *store = root->store;
    uintptr_t life = (uintptr_t)argument;
    kvs_lock(store);
    while (store->flushes && store->flush_life == life) {
        store->syncing = store->flushes;
        store->flushes = NULL;
        store->flush_began_ns = kvs_store_now_ns(store);
        kvs_unlock(store);
        int result = 0;
        for (uint32_t i = 0; i < store->root_count && !result; i++) {
            result = store->fs->calls->sync(store->fs, store->roots[i].fd);
        }
        kvs_lock(store);
        if (store->flush_life == life) {
            finish_locked(&store->syncing, result);
        }
    }
    if (store->flush_life == life) {
        store->flushing = 0;
    }
    kvs_unlock(store);
}

static void all_finish_locked(struct kvs_store *store, int64_t result)
{
    finish_locked(&store->syncing, result);
    finish_locked(&store->flushes, result);
}

void kvs_flushes_refuse_locked(struct kvs_store *store, int error)
{
    all_finish_locked(store, error);
    store->flush_life++;
    store->flushing = 0;
}

void kvs_flushes_round_locked(struct kvs_store *store, int64_t now_ns)
{
    if (store->flushing && (now_ns - store->flush_began_ns) / PATIENCE >= store->io_timeout_ns) {
        all_finish_locked(store, -ETIMEDOUT);
    }
}

int kvs_flush(struct kvs_store *store, struct kvs_ticket **out)
{
    int error = kvs_store_check(store);
    if (error) {
        return error;
    }
    struct kvs_flush *flush = calloc(1, sizeof(*flush));
    struct kvs_ticket *ticket = flush ? kvs_ticket_open(store, 2) : NULL;
    if (!ticket) {
        free(flush);
        return -ENOMEM;
    }
    flush->ticket = ticket;
    kvs_lock(store);
    error = store->closing ? -ESHUTDOWN : 0;
    if (!error && !store->flushing) {
        error = kvs_job_add_anywhere_locked(store, flush_job, (void *)store->flush_life, 0);
        store->flushing = !error;
        store->flush_began_ns = kvs_store_now_ns(store);
    }
    if (error) {
        kvs_ticket_drop_locked(ticket);
        kvs_ticket_drop_locked(ticket);
        free(flush);
    } else {
        flush->next = store->flushes;
        store->flushes = flush;
    }
    kvs_unlock(store);
    if (!error) {
        *out = ticket;
    }
    return error;
}
