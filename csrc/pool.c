/*
 * pool.c: regions of the arena, and the RAM tier they form when nobody uses them.
 *
 * Takes and gives memory, counts, evicts cached regions least recently used first. Reads nothing,
 * copies nothing.
 *
 * Invariants:
 *   1. A region is in store->cached exactly when it is READY, whole, attached and refs == 0.
 *   2. A region with refs == 0 that is not cached does not exist: its memory went back.
 *   3. extent->regions[layer] is the region's only anchor; a second one for the same layer replaces
 *      it (the first lives on detached until its readers are done).
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "store.h"

static void region_free(struct kvs_store *store, struct kvs_region *region)
{
    assert(region->refs == 0 && !region->waiters && !region->behind);
    kvs_pool_give_locked(store, region->memory);
    store->region_count--;
    free(region);
}

static void uncache(struct kvs_store *store, struct kvs_region *region)
{
    if (region->lru.next) {
        kvs_list_remove(&region->lru);
        store->cached_bytes -= region->bytes;
    }
}

void kvs_region_detach_locked(struct kvs_store *store, struct kvs_region *region)
{
    assert(region->extent && region->extent->regions[region->layer] == region);
    region->extent->regions[region->layer] = NULL;
    region->extent = NULL;
    if (region->refs == 0) {
        uncache(store, region);
        region_free(store, region);
    }
}

void kvs_region_attach_locked(struct kvs_region *region, struct kvs_extent *extent)
{
    assert(extent->regions && !extent->regions[region->layer]);
    extent->regions[region->layer] = region;
    region->extent = extent;
}

/* Memory from the arena; cached regions make room, the least recently used first, until that many
 * bytes of them are gone. */
static void *take_locked(struct kvs_store *store, uint64_t bytes, uint64_t evict_bytes)
{
    uint64_t evicted = 0;
    void *memory = kvs_arena_take(store->arena, bytes);
    while (!memory && evicted < evict_bytes && !kvs_list_empty(&store->cached)) {
        struct kvs_region *oldest = KVS_ENTRY(store->cached.prev, struct kvs_region, lru);
        evicted += oldest->bytes;
        kvs_region_detach_locked(store, oldest);
        memory = kvs_arena_take(store->arena, bytes);
    }
    return memory;
}

void *kvs_pool_take_locked(struct kvs_store *store, uint64_t bytes)
{
    return take_locked(store, bytes, UINT64_MAX);
}

void kvs_pool_give_locked(struct kvs_store *store, void *memory)
{
    kvs_arena_give(store->arena, memory);
    kvs_wake_all(store);
    pthread_cond_broadcast(&store->changed);
}

uint64_t kvs_pool_room_locked(struct kvs_store *store)
{
    return kvs_arena_free_bytes(store->arena) + store->cached_bytes;
}

static struct kvs_region *open_locked(struct kvs_store *store, uint64_t bytes, uint64_t evict_bytes)
{
    struct kvs_region *region = calloc(1, sizeof(*region));
    if (!region) {
        return NULL;
    }
    region->memory = take_locked(store, bytes, evict_bytes);
    if (!region->memory) {
        free(region);
        return NULL;
    }
    region->cells = region->memory;
    region->bytes =
        (bytes + KVS_ARENA_UNIT_BYTES - 1) / KVS_ARENA_UNIT_BYTES * KVS_ARENA_UNIT_BYTES;
    region->refs = 1;
    store->region_count++;
    return region;
}

struct kvs_region *kvs_region_open_locked(struct kvs_store *store, uint64_t bytes)
{
    return open_locked(store, bytes, UINT64_MAX);
}

/* In a pool that kept views have cut up, a long piece may not come though all the rest is evicted.
 * So the RAM tier pays twice the piece at most. */
struct kvs_region *kvs_region_open_long_locked(struct kvs_store *store, uint64_t bytes)
{
    return open_locked(store, bytes, 2 * bytes);
}

struct kvs_region *kvs_region_cut_locked(struct kvs_store *store, struct kvs_region *region,
                                         uint64_t bytes)
{
    assert(bytes % KVS_ARENA_UNIT_BYTES == 0 && bytes < region->bytes);
    struct kvs_region *rest = calloc(1, sizeof(*rest));
    if (rest) {
        kvs_arena_cut(store->arena, region->memory, bytes);
        rest->memory = rest->cells = region->memory + bytes;
        rest->bytes = region->bytes - bytes;
        rest->refs = 1;
        region->bytes = bytes;
        store->region_count++;
    }
    return rest;
}

void kvs_region_hold_locked(struct kvs_store *store, struct kvs_region *region)
{
    uncache(store, region);
    region->refs++;
}

void kvs_region_drop_locked(struct kvs_store *store, struct kvs_region *region)
{
    assert(region->refs > 0);
    if (--region->refs > 0) {
        return;
    }
    int whole = region->state == KVS_REGION_READY && region->good == region->count;
    if (whole && region->extent && region->extent->state != KVS_EXTENT_GONE && !store->closing) {
        kvs_list_add_first(&store->cached, &region->lru);
        store->cached_bytes += region->bytes;
        if (!kvs_list_empty(&store->loads)) {
            kvs_wake_all(store);
        }
        pthread_cond_broadcast(&store->changed);
        return;
    }
    if (region->extent) {
        region->extent->regions[region->layer] = NULL;
        region->extent = NULL;
    }
    region_free(store, region);
}

/* Also those that somebody still reads: their memory stays with the last reader, but they serve
 * nobody else. (The I/O thread lets go of a region a moment after its load has seen it.) */
static void drop_regions_locked(struct kvs_store *store, struct kvs_extent *extent)
{
    for (uint32_t layer = 0; layer < extent->ns->layer_count; layer++) {
        struct kvs_region *region = extent->regions[layer];
        if (region && region->state == KVS_REGION_READY) {
            kvs_region_detach_locked(store, region);
        }
    }
}

int kvs_drop_ram(struct kvs_store *store)
{
    int error = kvs_store_check(store);
    if (error) {
        return error;
    }
    kvs_lock(store);
    for (uint32_t i = 0; i < store->extent_count; i++) {
        if (kvs_extent_at(store, i) && kvs_extent_at(store, i)->regions) {
            drop_regions_locked(store, kvs_extent_at(store, i));
        }
    }
    kvs_unlock(store);
    return 0;
}
