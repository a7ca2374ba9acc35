/*
 * flush.c: durability for who asks: fsync of every directory that got a name since the last flush.
 *
 * The put path never syncs: after a power cut a torn file fails its checks and is a miss.
 */
#include <errno.h>
#include <stdio.h>

#include "store.h"

static int flush_namespace(struct kvs_root *root, struct kvs_namespace *ns)
{
    struct kvs_store *store = root->store;
    char path[KVS_PATH_BYTES];
    int result = 0;
    for (uint32_t bucket = 0; bucket < KVS_BUCKETS; bucket++) {
        uint8_t bit = (uint8_t)(1u << (bucket % 8));
        uint8_t *dirty = &ns->bucket_dirty[root->number][bucket / 8];
        kvs_lock(store);
        int sync = *dirty & bit;
        *dirty = (uint8_t)(*dirty & ~bit);
        kvs_unlock(store);
        if (sync) {
            snprintf(path, sizeof(path), "%s/%03x", ns->name, bucket);
            int error = store->fs->calls->sync_directory(store->fs, root->fd, path);
            if (error) {
                kvs_lock(store);
                *dirty |= bit; /* the next flush owes it still */
                kvs_unlock(store);
            }
            result = result ? result : error;
        }
    }
    int error = store->fs->calls->sync_directory(store->fs, root->fd, ns->name);
    return result ? result : error == -ENOENT ? 0 : error;
}

static int any_down_locked(const struct kvs_store *store)
{
    int down = 0;
    for (uint32_t i = 0; i < store->root_count; i++) {
        down |= kvs_root_down_locked(&store->roots[i]);
    }
    return down;
}

static void flush_job(struct kvs_root *root, void *argument)
{
    struct kvs_ticket *ticket = argument;
    struct kvs_store *store = root->store;
    int result = 0;
    /* One at a time: a flush must not answer while another is still at a directory it took. */
    kvs_lock(store);
    while (store->flushing && !any_down_locked(store)) {
        pthread_cond_wait(&store->changed, &store->lock);
    }
    if (store->flushing) { /* it may be kept by a device that does not answer */
        kvs_ticket_finish_locked(ticket, -EHOSTDOWN);
        kvs_ticket_drop_locked(ticket);
        kvs_unlock(store);
        return;
    }
    store->flushing = 1;
    kvs_unlock(store);
    for (uint32_t i = 0; i < store->root_count; i++) {
        int synced = store->fs->calls->sync_directory(store->fs, store->roots[i].fd, ".");
        result = result ? result : synced;
        kvs_lock(store);
        uint32_t count = store->namespace_count;
        kvs_unlock(store);
        for (uint32_t j = 0; j < count; j++) {
            kvs_lock(store);
            struct kvs_namespace *ns = store->namespaces[j];
            kvs_unlock(store);
            int error = flush_namespace(&store->roots[i], ns);
            result = result ? result : error;
        }
    }
    kvs_lock(store);
    store->flushing = 0;
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
