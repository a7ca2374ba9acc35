/*
 * match.c: which leading blocks of a chain are here. In memory (match), and by walking names on
 * disk where the index does not know (find: a peer, or an owner whose scan still runs).
 *
 * A hit is no promise: an extent may be gone when the load comes; the load then says so.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store.h"

enum { NEAR = 4, FAR = 8 }; /* extents ahead of the one that is looked up */

enum kvs_reason kvs_miss_reason_locked(struct kvs_store *store, struct kvs_namespace *ns,
                                       const struct kvs_key *key)
{
    const struct kvs_extent *holder = kvs_extent_holder_locked(store, ns, key);
    int down = holder && kvs_root_down_locked(&store->roots[holder->root]);
    return down ? KVS_REASON_ROOT_DOWN : kvs_removed_reason_locked(store, kvs_tag(ns, key));
}

/* The same, or that a walk could find it. */
static enum kvs_reason walk_reason_locked(struct kvs_store *store, struct kvs_namespace *ns,
                                          const struct kvs_key *key)
{
    enum kvs_reason reason = kvs_miss_reason_locked(store, ns, key);
    uint64_t tag = kvs_tag(ns, key);
    for (uint32_t i = 0; i < store->root_count; i++) {
        const struct kvs_root *root = &store->roots[i];
        if (kvs_root_down_locked(root)) {
            continue;
        }
        if ((!root->is_owner || root->warming) && !kvs_absent_known_locked(store, tag)) {
            return root->warming ? KVS_REASON_WARMING : KVS_REASON_PENDING;
        }
    }
    return reason;
}

uint64_t kvs_match_locked(struct kvs_store *store, struct kvs_namespace *ns,
                          const struct kvs_key *keys, uint64_t count, enum kvs_reason *reason)
{
    uint64_t at = 0;
    int64_t now_s = kvs_store_now_s(store);
    *reason = KVS_REASON_NONE;
    while (at < count) {
        uint8_t position = 0;
        struct kvs_extent *extent =
            kvs_extent_lookup_locked(store, ns, &keys[at], now_s, &position);
        if (!extent) {
            *reason = walk_reason_locked(store, ns, &keys[at]);
            break;
        }
        if (extent->valid_until_s <= now_s) {
            /* A peer may not know that another process renewed it: a walk reads its times. */
            int sure = store->roots[extent->root].is_owner ||
                       kvs_absent_known_locked(store, kvs_tag(ns, &keys[at]));
            *reason = sure ? KVS_REASON_EXPIRED : KVS_REASON_PENDING;
            break;
        }
        uint32_t followed = kvs_extent_follow_locked(extent, position, &keys[at], count - at);
        at += followed;
        /* Those behind it are likely to be as long. */
        if (at + FAR * followed < count) {
            kvs_index_prefetch(store->index, kvs_tag(ns, &keys[at + NEAR * followed]),
                               kvs_tag(ns, &keys[at + FAR * followed]));
        }
    }
    return at;
}

static void count_lookup(struct kvs_cache *cache, uint64_t blocks, uint64_t count,
                         enum kvs_reason reason)
{
    struct kvs_store *store = cache->store;
    store->stats.lookups++;
    store->stats.hit_tokens += blocks * cache->ns->block_tokens;
    store->stats.missed_tokens += (count - blocks) * cache->ns->block_tokens;
    store->stats.hit_blocks += blocks;
    store->stats.missed_blocks += count - blocks;
    if (reason) {
        store->stats.misses_by_reason[reason] += count - blocks;
    }
}

int kvs_match(struct kvs_cache *cache, const struct kvs_key *keys, uint64_t count,
              struct kvs_match *out)
{
    struct kvs_store *store = cache->store;
    int error = kvs_store_check(store);
    if (error) {
        return error;
    }
    kvs_lock(store);
    out->blocks = kvs_match_locked(store, cache->ns, keys, count, &out->reason);
    count_lookup(cache, out->blocks, count, out->reason);
    kvs_unlock(store);
    return 0;
}

int kvs_contains(struct kvs_cache *cache, const struct kvs_key *key)
{
    struct kvs_store *store = cache->store;
    int error = kvs_store_check(store);
    if (error) {
        return error;
    }
    enum kvs_reason reason;
    kvs_lock(store);
    uint64_t blocks = kvs_match_locked(store, cache->ns, key, 1, &reason);
    kvs_unlock(store);
    return (int)blocks;
}

/* An extent that expired as far as we know: another process may have renewed it. 1: it is good. */
static int renewed_elsewhere(struct kvs_store *store, struct kvs_extent *extent)
{
    kvs_times_refresh(&store->roots[extent->root], extent);
    kvs_lock(store);
    int good = extent->state == KVS_EXTENT_LIVE && extent->valid_until_s > kvs_store_now_s(store);
    kvs_extent_unpin_locked(store, extent);
    kvs_unlock(store);
    return good;
}

int kvs_walk_step(struct kvs_store *store, struct kvs_namespace *ns, const struct kvs_key *key)
{
    uint8_t order[KVS_ROOTS_MAX], position;
    kvs_lock(store);
    struct kvs_extent *known =
        kvs_extent_lookup_locked(store, ns, key, kvs_store_now_s(store), &position);
    if (known) {
        kvs_extent_pin_locked(known);
    }
    kvs_unlock(store);
    if (known) {
        return renewed_elsewhere(store, known);
    }
    kvs_root_order(store, key, order);
    for (uint32_t i = 0; i < store->root_count; i++) {
        struct kvs_extent *extent = NULL;
        if (kvs_adopt(&store->roots[order[i]], ns, key, 1, &extent) == KVS_REASON_NONE) {
            return renewed_elsewhere(store, extent);
        }
    }
    return 0;
}

/* ---- probes: grid positions are the likely names, so several workers open them ahead ---- */

struct probe {
    struct kvs_namespace *ns;
    atomic_uint refs, next;
    uint32_t count;
    struct kvs_key keys[];
};

static void probe_job(struct kvs_root *root, void *argument)
{
    struct probe *probe = argument;
    uint32_t at;
    while ((at = atomic_fetch_add(&probe->next, 1)) < probe->count) {
        /* The first name that is missing ends the chain for all of them. */
        if (!kvs_walk_step(root->store, probe->ns, &probe->keys[at])) {
            atomic_store(&probe->next, probe->count);
        }
    }
    if (atomic_fetch_sub(&probe->refs, 1) == 1) {
        free(probe);
    }
}

static void probes_start(struct kvs_root *root, struct kvs_namespace *ns,
                         const struct kvs_key *keys, uint64_t from, uint64_t count)
{
    uint64_t grid = ns->extent_blocks;
    uint64_t first = (from / grid + 1) * grid;
    uint64_t names = first < count ? (count - first + grid - 1) / grid : 0;
    uint32_t helpers = names < KVS_FILE_WORKERS - 1 ? (uint32_t)names : KVS_FILE_WORKERS - 1;
    struct probe *probe = names ? malloc(sizeof(*probe) + names * sizeof(probe->keys[0])) : NULL;
    if (!probe) {
        return;
    }
    probe->ns = ns;
    probe->count = (uint32_t)names;
    atomic_init(&probe->next, 0);
    atomic_init(&probe->refs, helpers + 1);
    for (uint64_t i = 0; i < names; i++) {
        probe->keys[i] = keys[first + i * grid];
    }
    kvs_lock(root->store);
    for (uint32_t i = 0; i < helpers; i++) {
        if (kvs_job_add_locked(root, probe_job, probe, 1) < 0) {
            atomic_fetch_sub(&probe->refs, 1);
        }
    }
    kvs_unlock(root->store);
    if (atomic_fetch_sub(&probe->refs, 1) == 1) {
        free(probe);
    }
}

uint64_t kvs_walk(struct kvs_root *root, struct kvs_namespace *ns, const struct kvs_key *keys,
                  uint64_t count)
{
    struct kvs_store *store = root->store;
    enum kvs_reason reason;
    kvs_lock(store);
    uint64_t known = kvs_match_locked(store, ns, keys, count, &reason);
    kvs_unlock(store);
    if (known < count && kvs_walk_step(store, ns, &keys[known])) {
        probes_start(root, ns, keys, known, count);
    }
    for (uint64_t steps = 0; steps <= count; steps++) {
        kvs_lock(store);
        uint64_t at = kvs_match_locked(store, ns, keys, count, &reason);
        int closing = store->closing;
        kvs_unlock(store);
        if (at == count || closing) {
            return at;
        }
        if (!kvs_walk_step(store, ns, &keys[at])) {
            kvs_lock(store);
            kvs_absent_note_locked(store, kvs_tag(ns, &keys[at]));
            kvs_unlock(store);
            return at;
        }
    }
    return known;
}

struct find {
    struct kvs_namespace *ns;
    struct kvs_ticket *ticket;
    uint64_t count;
    struct kvs_key keys[];
};

static void find_job(struct kvs_root *root, void *argument)
{
    struct find *find = argument;
    uint64_t blocks = kvs_walk(root, find->ns, find->keys, find->count);
    kvs_lock(root->store);
    kvs_ticket_finish_locked(find->ticket, (int64_t)blocks);
    kvs_ticket_drop_locked(find->ticket);
    kvs_unlock(root->store);
    free(find);
}

int kvs_find(struct kvs_cache *cache, const struct kvs_key *keys, uint64_t count,
             struct kvs_ticket **out)
{
    struct kvs_store *store = cache->store;
    int error = kvs_store_check(store);
    if (error) {
        return error;
    }
    struct find *find = malloc(sizeof(*find) + count * sizeof(find->keys[0]));
    struct kvs_ticket *ticket = find ? kvs_ticket_open(store, 2) : NULL;
    if (!ticket) {
        free(find);
        return -ENOMEM;
    }
    find->ns = cache->ns;
    find->ticket = ticket;
    find->count = count;
    memcpy(find->keys, keys, count * sizeof(find->keys[0]));
    kvs_lock(store);
    enum kvs_reason reason;
    uint64_t blocks = kvs_match_locked(store, cache->ns, keys, count, &reason);
    int walk = !store->closing && (reason == KVS_REASON_PENDING || reason == KVS_REASON_WARMING) &&
               kvs_job_add_anywhere_locked(store, find_job, find, 1) == 0;
    if (!walk) {
        kvs_ticket_finish_locked(ticket, (int64_t)blocks);
        kvs_ticket_drop_locked(ticket);
        free(find);
    }
    kvs_unlock(store);
    *out = ticket;
    return 0;
}
