/*
 * flush.c: durability for who asks: what was changed on the roots before, by whomever, is on the
 * medium afterwards.
 *
 * The put path never syncs: after a power cut a torn file fails its checks and is a miss.
 *
 * One sync of each root's file system does it. Syncing the directories of new names instead covers
 * the files only where a journal happens to carry them along, and misses what an earlier life or a
 * peer has put and this store's puts rely on.
 */
#include <errno.h>

#include "store.h"

static void flush_job(struct kvs_root *root, void *argument)
{
    struct kvs_ticket *ticket = argument;
    struct kvs_store *store = root->store;
    int result = 0;
    for (uint32_t i = 0; i < store->root_count; i++) {
        int error = store->fs->calls->sync(store->fs, store->roots[i].fd);
        result = result ? result : error;
    }
    kvs_lock(store);
    kvs_ticket_finish_locked(ticket, result);
    kvs_ticket_drop_locked(ticket);
    kvs_unlock(store);
}

int kvs_flush(struct kvs_store *store, struct kvs_ticket **out)
{
    int error = kvs_store_check(store);
    if (error) {
        return error;
    }
    struct kvs_ticket *ticket = kvs_ticket_open(store, 2);
    if (!ticket) {
        return -ENOMEM;
    }
    kvs_lock(store);
    error = store->closing ? -ESHUTDOWN : kvs_job_add_anywhere_locked(store, flush_job, ticket, 0);
    if (error) {
        kvs_ticket_drop_locked(ticket);
        kvs_ticket_drop_locked(ticket);
    }
    kvs_unlock(store);
    if (!error) {
        *out = ticket;
    }
    return error;
}
