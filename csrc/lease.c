/*
 * lease.c: protection of a range of a chain from eviction, until it is released or its time is up.
 *
 * A lease pins extents, no files and no memory. Loads pin what they read themselves, so a lease
 * that ends early takes nothing away from a running load. Lists of pins are here too, also for
 * writers and replays.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store.h"

static struct kvs_lease *same_locked(struct kvs_store *store, const struct kvs_namespace *ns,
                                     const struct kvs_key *keys, uint64_t first, uint64_t end,
                                     const char *owner)
{
    for (struct kvs_link *at = store->leases.next; at != &store->leases; at = at->next) {
        struct kvs_lease *lease = KVS_ENTRY(at, struct kvs_lease, link);
        if (lease->ns == ns && lease->first == first && lease->end == end &&
            strcmp(lease->owner, owner) == 0 &&
            /* All of them: wrapped keys are no chain, the last does not stand for the others. */
            memcmp(&lease->keys[first], &keys[first], (end - first) * sizeof(*keys)) == 0) {
            return lease;
        }
    }
    return NULL;
}

int kvs_pins_add_locked(struct kvs_pins *pins, struct kvs_extent *extent)
{
    if (pins->count == pins->room) {
        uint32_t room = pins->room ? pins->room * 2 : 16;
        struct kvs_extent **grown = realloc(pins->extents, room * sizeof(*grown));
        if (!grown) {
            return -ENOMEM;
        }
        pins->extents = grown;
        pins->room = room;
    }
    kvs_extent_pin_locked(extent);
    pins->extents[pins->count++] = extent;
    return 0;
}

int kvs_pins_add_chain_locked(struct kvs_store *store, struct kvs_namespace *ns,
                              const struct kvs_key *keys, uint64_t first, uint64_t end,
                              struct kvs_pins *pins)
{
    uint64_t at = first;
    int64_t now_s = kvs_store_now_s(store);
    int error = 0;
    while (at < end && !error) {
        uint8_t position = 0;
        struct kvs_extent *extent =
            kvs_extent_lookup_locked(store, ns, &keys[at], now_s, &position);
        if (!extent) {
            break;
        }
        error = kvs_pins_add_locked(pins, extent);
        at += kvs_extent_follow_locked(extent, position, &keys[at], end - at);
    }
    return error;
}

void kvs_pins_drop_locked(struct kvs_store *store, struct kvs_pins *pins)
{
    for (uint32_t i = 0; i < pins->count; i++) {
        kvs_extent_unpin_locked(store, pins->extents[i]);
    }
    pins->count = 0;
}

void kvs_pins_end_locked(struct kvs_store *store, struct kvs_pins *pins)
{
    kvs_pins_drop_locked(store, pins);
    free(pins->extents);
    *pins = (struct kvs_pins){0};
}

static void end_locked(struct kvs_lease *lease)
{
    if (!lease->alive) {
        return;
    }
    lease->alive = 0;
    kvs_list_remove(&lease->link);
    lease->store->lease_count--;
    kvs_pins_end_locked(lease->store, &lease->pins);
}

/* The caller holds a reference to the store of its own. */
void kvs_lease_drop_locked(struct kvs_lease *lease)
{
    if (--lease->refs == 0) {
        end_locked(lease);
        atomic_fetch_sub(&lease->store->refs, 1);
        free(lease->keys);
        free(lease);
    }
}

static int lease_new(struct kvs_cache *cache, const struct kvs_key *keys, uint64_t first,
                     uint64_t end, const char *owner, struct kvs_lease **out)
{
    struct kvs_lease *lease = calloc(1, sizeof(*lease));
    if (lease) {
        lease->keys = malloc((end + 1) * sizeof(*lease->keys));
    }
    if (!lease || !lease->keys) {
        free(lease);
        return -ENOMEM;
    }
    memcpy(lease->keys, keys, end * sizeof(*keys));
    kvs_store_hold(cache->store);
    lease->store = cache->store;
    lease->ns = cache->ns;
    lease->first = first;
    lease->end = end;
    lease->refs = 1;
    strncpy(lease->owner, owner, sizeof(lease->owner) - 1);
    *out = lease;
    return 0;
}

int kvs_lease_open(struct kvs_cache *cache, const struct kvs_key *keys, uint64_t first,
                   uint64_t end, const char *owner, int retention, int64_t timeout_ns,
                   struct kvs_lease **out)
{
    struct kvs_store *store = cache->store;
    int error = kvs_store_check(store);
    if (error) {
        return error;
    }
    if (first > end || end > KVS_CHAIN_BLOCKS_MAX || strlen(owner) >= KVS_OWNER_BYTES ||
        retention >= (int)store->class_count) {
        return -EINVAL;
    }
    kvs_lock(store);
    struct kvs_lease *lease = same_locked(store, cache->ns, keys, first, end, owner);
    if (!lease) {
        error = lease_new(cache, keys, first, end, owner, &lease);
        if (!error) {
            lease->alive = 1;
            kvs_list_add_last(&store->leases, &lease->link);
            store->lease_count++;
            error =
                kvs_pins_add_chain_locked(store, lease->ns, lease->keys, first, end, &lease->pins);
            if (error) {
                kvs_lease_drop_locked(lease);
            }
        }
    }
    if (!error) {
        lease->holds++;
        lease->retention = retention;
        lease->timeout_ns = timeout_ns;
        lease->ends_ns = kvs_later(kvs_store_now_ns(store), timeout_ns);
        *out = lease;
    }
    kvs_unlock(store);
    return error;
}

void kvs_lease_release(struct kvs_lease *lease)
{
    struct kvs_store *store = lease->store;
    kvs_store_hold(store);
    kvs_lock(store);
    if (--lease->holds == 0) {
        end_locked(lease);
        kvs_lease_drop_locked(lease);
    }
    kvs_unlock(store);
    kvs_store_drop(store);
}

int kvs_lease_alive(struct kvs_lease *lease)
{
    kvs_lock(lease->store);
    int alive = lease->alive;
    kvs_unlock(lease->store);
    return alive;
}

void kvs_lease_expire_locked(struct kvs_store *store, int64_t now_ns)
{
    struct kvs_link *at = store->leases.next;
    while (at != &store->leases) {
        struct kvs_lease *lease = KVS_ENTRY(at, struct kvs_lease, link);
        at = at->next;
        if (lease->loads_running > 0) {
            lease->ends_ns = kvs_later(now_ns, lease->timeout_ns);
        } else if (lease->ends_ns <= now_ns) {
            end_locked(lease);
        }
    }
}
