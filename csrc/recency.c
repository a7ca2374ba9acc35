/*
 * recency.c: which extents were used last, per root. What the next victim of eviction is, what a
 * use changes, and the order after a scan.
 *
 * Invariants:
 *   1. A use, a new extent and a victim cost the same whatever a root holds.
 *   2. Within one second of use the deeper block counts as older: parents outlive children.
 *
 * The order of what a scan found is made of times on disk. There may be millions, so they are
 * sorted without the lock and put in place a few at a time; what is used meanwhile is in `used`
 * already, and the oldest are always at the end.
 */
#include <errno.h>
#include <stdlib.h>

#include "store.h"

enum {
    AT_ONCE = 256,    /* extents that one holding of the lock reads or puts in place */
    PINNED_MAX = 4096 /* extents in use, passed over in one search for a victim */
};

void kvs_recency_open(struct kvs_root *root)
{
    kvs_list_init(&root->recency.used);
    kvs_list_init(&root->recency.read);
}

void kvs_recency_add_locked(struct kvs_root *root, struct kvs_extent *extent)
{
    kvs_list_add_first(&root->recency.used, &extent->lru);
}

static struct kvs_extent *unpinned_last(const struct kvs_link *list, int *passed)
{
    for (struct kvs_link *at = list->prev; at != list && *passed < PINNED_MAX; at = at->prev) {
        struct kvs_extent *extent = KVS_ENTRY(at, struct kvs_extent, lru);
        if (extent->pins == 0) {
            return extent;
        }
        ++*passed;
    }
    return NULL;
}

struct kvs_extent *kvs_recency_victim_locked(struct kvs_root *root)
{
    int passed = 0;
    struct kvs_extent *victim = unpinned_last(&root->recency.read, &passed);
    return victim ? victim : unpinned_last(&root->recency.used, &passed);
}

int64_t kvs_longest_ttl_s(const struct kvs_store *store)
{
    int64_t longest = 0;
    for (uint32_t i = 0; i < store->class_count; i++) {
        longest = store->classes[i].ttl_s > longest ? store->classes[i].ttl_s : longest;
    }
    return longest;
}

void kvs_extent_touch_locked(struct kvs_store *store, struct kvs_extent *extent, int retention)
{
    if (extent->state != KVS_EXTENT_LIVE) {
        return;
    }
    int64_t now_s = kvs_store_now_s(store);
    uint32_t class_number = retention >= 0 ? (uint32_t)retention : extent->class_number;
    int64_t until = now_s + store->classes[class_number].ttl_s;
    if (until > extent->valid_until_s) {
        extent->valid_until_s = until;
    }
    extent->last_use_s = now_s;
    extent->times_ours = 1;
    kvs_recency_add_locked(&store->roots[extent->root], extent);
    kvs_times_mark_locked(store, extent);
}

void kvs_chain_touch_locked(struct kvs_store *store, struct kvs_namespace *ns,
                            const struct kvs_key *keys, uint64_t count, int retention)
{
    uint64_t at = count;
    int64_t now_s = kvs_store_now_s(store);
    while (at > 0) {
        uint8_t position = 0;
        struct kvs_extent *extent =
            kvs_extent_lookup_locked(store, ns, &keys[at - 1], now_s, &position);
        uint64_t step = 1;
        if (extent) {
            kvs_extent_touch_locked(store, extent, retention);
            step += (uint64_t)(position - extent->named);
        }
        at = step < at ? at - step : 0;
    }
}

/* ---- after a scan ---- */

struct use {
    int64_t last_use_s;
    uint32_t start, number;
};

static int older_first(const void *a, const void *b)
{
    const struct use *left = a, *right = b;
    if (left->last_use_s != right->last_use_s) {
        return left->last_use_s < right->last_use_s ? -1 : 1;
    }
    if (left->start != right->start) {
        return left->start > right->start ? -1 : 1;
    }
    return 0;
}

static int is_of(const struct kvs_root *root, const struct kvs_extent *extent)
{
    return extent && extent->root == root->number && extent->state == KVS_EXTENT_LIVE;
}

/* All uses of the root's extents below number `room`; how many. */
static uint32_t uses_read(struct kvs_root *root, struct use *uses, uint32_t room)
{
    struct kvs_store *store = root->store;
    uint32_t count = 0;
    for (uint32_t from = 0; from < room; from += AT_ONCE) {
        kvs_lock(store);
        for (uint32_t i = from; i < room && i - from < AT_ONCE; i++) {
            const struct kvs_extent *extent = kvs_extent_at(store, i);
            if (is_of(root, extent)) {
                uses[count++] = (struct use){extent->last_use_s, extent->start, i};
            }
        }
        kvs_unlock(store);
    }
    return count;
}

/* What was used since, or has gone, is not touched. */
static void uses_put_in_place(struct kvs_root *root, const struct use *uses, uint32_t count)
{
    struct kvs_store *store = root->store;
    for (uint32_t from = 0; from < count; from += AT_ONCE) {
        kvs_lock(store);
        for (uint32_t i = from; i < count && i - from < AT_ONCE; i++) {
            struct kvs_extent *extent = kvs_extent_at(store, uses[i].number);
            if (is_of(root, extent) && extent->last_use_s == uses[i].last_use_s &&
                extent->start == uses[i].start) {
                kvs_list_add_first(&root->recency.read, &extent->lru);
            }
        }
        kvs_unlock(store);
    }
}

int kvs_recency_sort(struct kvs_root *root)
{
    struct kvs_store *store = root->store;
    kvs_lock(store);
    uint32_t room = store->extent_count;
    kvs_unlock(store);
    struct use *uses = malloc((room + 1) * sizeof(*uses));
    if (!uses) {
        return -ENOMEM;
    }
    uint32_t count = uses_read(root, uses, room);
    qsort(uses, count, sizeof(*uses), older_first);
    uses_put_in_place(root, uses, count);
    free(uses);
    return 0;
}
