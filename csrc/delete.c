/*
 * delete.c: forgetting every extent that holds a key, so that it stays forgotten.
 *
 * A file that holds the key may be one that this store has not met: named by another key, and made
 * by a peer or in an earlier life. So an owner drops what it knows, has its roots looked through
 * (scan.c) from then on, and drops what that found; then the ticket is done. Deletes that come
 * together share a look. A peer drops what it has met and what the key names.
 *
 * Invariants:
 *   1. A delete that waits is in store->deletes, and a look that it needs is queued or running. It
 *      does not wait for a root that is down, and fails then: what is there comes back with it.
 *   2. Deletes are slow jobs (pace.c): many at once are paced and do not hold up loads.
 */
#include <errno.h>
#include <stdlib.h>

#include "store.h"

struct kvs_delete {
    struct kvs_delete *next; /* in store->deletes, until the looks are over */
    struct kvs_namespace *ns;
    struct kvs_ticket *ticket;
    int64_t dropped; /* extents, or a negative errno: a file could not be unlinked */
    int again;       /* looks[] is set: the second time */
    uint64_t looks[KVS_ROOTS_MAX]; /* the look of each root that has to have ended */
    struct kvs_key key;
};

/* Every extent that holds the key, also where it is not served under its name; files go at once. */
static void forget_all(struct kvs_store *store, struct kvs_delete *delete)
{
    kvs_lock(store);
    struct kvs_extent *extent;
    while ((extent = kvs_extent_holder_locked(store, delete->ns, &delete->key)) != NULL) {
        struct kvs_root *root = &store->roots[extent->root];
        kvs_leave_locked(store, extent, KVS_REASON_DELETED);
        store->stats.deleted_extents++;
        kvs_unlock(store);
        int error = kvs_leave(root, extent);
        if (delete->dropped >= 0) {
            delete->dropped = error ? error : delete->dropped + 1;
        }
        kvs_lock(store);
    }
    kvs_unlock(store);
}

static void finish_locked(struct kvs_delete *delete, int64_t result)
{
    kvs_ticket_finish_locked(delete->ticket, result);
    kvs_ticket_drop_locked(delete->ticket);
    free(delete);
}

static int looked_locked(struct kvs_store *store, const struct kvs_delete *delete)
{
    int over = 1;
    for (uint32_t i = 0; i < store->root_count; i++) {
        struct kvs_root *root = &store->roots[i];
        int looks = root->is_owner && !kvs_root_down_locked(root);
        if (looks && root->looks_ended < delete->looks[i]) {
            kvs_look_soon_locked(root);
            over = 0;
        }
    }
    return over;
}

/* A root that could not be looked through may hold the key still. */
static int64_t look_error_locked(const struct kvs_store *store, int64_t dropped)
{
    for (uint32_t i = 0; i < store->root_count && dropped >= 0; i++) {
        const struct kvs_root *root = &store->roots[i];
        int error = kvs_root_down_locked(root) ? -EHOSTDOWN : root->look_error;
        dropped = error ? error : dropped;
    }
    return dropped;
}

static void delete_job(struct kvs_root *root, void *argument)
{
    struct kvs_delete *delete = argument;
    struct kvs_store *store = root->store;
    if (!delete->again) {
        kvs_walk_step(store, delete->ns, &delete->key);
    }
    forget_all(store, delete);
    kvs_lock(store);
    if (delete->again) {
        finish_locked(delete, look_error_locked(store, delete->dropped));
    } else {
        delete->again = 1;
        for (uint32_t i = 0; i < store->root_count; i++) {
            delete->looks[i] = store->roots[i].looks_begun + 1;
        }
        delete->next = store->deletes;
        store->deletes = delete;
        kvs_deletes_resume_locked(store);
    }
    kvs_unlock(store);
}

void kvs_deletes_resume_locked(struct kvs_store *store)
{
    struct kvs_delete **at = &store->deletes;
    while (*at) {
        struct kvs_delete *delete = *at;
        if (!store->closing && !looked_locked(store, delete)) {
            at = &delete->next;
            continue;
        }
        *at = delete->next;
        int error = store->closing ? -ESHUTDOWN /* the workers of this root may have left */
                                   : kvs_job_add_slow_locked(kvs_root_in_use_locked(store),
                                                             delete_job, delete, 0);
        if (error) {
            finish_locked(delete, error);
        }
    }
}

int kvs_delete(struct kvs_cache *cache, const struct kvs_key *key, struct kvs_ticket **out)
{
    struct kvs_store *store = cache->store;
    int error = kvs_store_check(store);
    if (error) {
        return error;
    }
    struct kvs_delete *delete = calloc(1, sizeof(*delete));
    struct kvs_ticket *ticket = delete ? kvs_ticket_open(store, 2) : NULL;
    if (!ticket) {
        free(delete);
        return -ENOMEM;
    }
    delete->ns = cache->ns;
    delete->ticket = ticket;
    delete->key = *key;
    kvs_lock(store);
    error = store->closing
                ? -ESHUTDOWN
                : kvs_job_add_slow_locked(kvs_root_in_use_locked(store), delete_job, delete, 0);
    if (error) {
        kvs_ticket_drop_locked(ticket);
        kvs_ticket_drop_locked(ticket);
        free(delete);
    }
    kvs_unlock(store);
    if (!error) {
        *out = ticket;
    }
    return error;
}
