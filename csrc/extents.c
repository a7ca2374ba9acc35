/*
 * extents.c: the table of extents and the index of their blocks. Their order of use is in
 * recency.c, their end in expiry.c.
 *
 * Does no I/O and deletes no file: kvs_extent_forget_locked() takes an extent out of sight, leave.c
 * deals with its file.
 *
 * Invariants:
 *   1. LIVE extents, and only they, are in the index and in their root's recency and expiry.
 *   2. All blocks of a file are indexed, also those before the named one: delete must find them.
 *      Lookups for serving skip them.
 *   3. A tag is 64 bits of the key mixed with the namespace. A tag that matches is a promise made
 *      by chance only once in 2^64; the load compares whole keys with the header.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store.h"

uint64_t kvs_tag(const struct kvs_namespace *ns, const struct kvs_key *key)
{
    uint64_t tag;
    memcpy(&tag, key->bytes, sizeof(tag));
    return tag ^ ns->mix;
}

uint64_t kvs_extent_tag_of(void *argument, uint32_t extent, uint8_t position)
{
    struct kvs_store *store = argument;
    return kvs_extent_at(store, extent)->tags[position];
}

/* ---- the table ---- */

/* With its place in the table and what malloc adds. */
static uint64_t record_bytes(uint32_t block_count)
{
    return sizeof(struct kvs_extent) + block_count * sizeof(uint64_t) + 2 * sizeof(void *);
}

uint64_t kvs_index_memory_locked(const struct kvs_store *store)
{
    return kvs_index_bytes(store->index) + store->extents_bytes;
}

static int number_take(struct kvs_store *store, uint32_t *number)
{
    if (store->free_number_count > 0) {
        uint32_t at = --store->free_number_count;
        *number = *(uint32_t *)kvs_levels_at(&store->free_numbers, sizeof(uint32_t), at);
        return 0;
    }
    uint32_t next = store->extent_count;
    if (next == UINT32_MAX ||
        kvs_levels_reach(&store->extents, sizeof(struct kvs_extent *), next) < 0 ||
        kvs_levels_reach(&store->free_numbers, sizeof(uint32_t), next) < 0) {
        return -ENOMEM;
    }
    *number = store->extent_count++;
    return 0;
}

static void number_give_back(struct kvs_store *store, uint32_t number)
{
    uint32_t at = store->free_number_count++;
    *(uint32_t *)kvs_levels_at(&store->free_numbers, sizeof(uint32_t), at) = number;
}

static void table_set(struct kvs_store *store, uint32_t number, struct kvs_extent *extent)
{
    *(struct kvs_extent **)kvs_levels_at(&store->extents, sizeof(extent), number) = extent;
}

int kvs_extent_add_locked(struct kvs_store *store, struct kvs_namespace *ns, uint32_t root,
                          uint32_t block_count, struct kvs_extent **out)
{
    assert(block_count > 0 && block_count <= KVS_EXTENT_BLOCKS_MAX);
    struct kvs_extent *extent = calloc(1, sizeof(*extent) + block_count * sizeof(extent->tags[0]));
    uint32_t number = 0;
    if (!extent || number_take(store, &number) < 0) {
        free(extent);
        return -ENOMEM;
    }
    extent->ns = ns;
    extent->root = (uint8_t)root;
    extent->number = number;
    extent->block_count = (uint8_t)block_count;
    extent->state = KVS_EXTENT_WRITING;
    extent->start = KVS_START_UNKNOWN;
    extent->pins = 1;
    table_set(store, number, extent);
    store->extents_bytes += record_bytes(block_count);
    *out = extent;
    return 0;
}

static void index_remove_all(struct kvs_store *store, struct kvs_extent *extent, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        kvs_index_remove(store->index, extent->tags[i], extent->number, (uint8_t)i);
    }
}

int kvs_extent_publish_locked(struct kvs_store *store, struct kvs_extent *extent)
{
    assert(extent->state == KVS_EXTENT_WRITING);
    struct kvs_root *root = &store->roots[extent->root];
    for (uint32_t i = 0; i < extent->block_count; i++) {
        if (kvs_index_insert(store->index, extent->tags[i], extent->number, (uint8_t)i) < 0) {
            index_remove_all(store, extent, i);
            return -ENOMEM;
        }
    }
    extent->state = KVS_EXTENT_LIVE;
    kvs_recency_add_locked(root, extent);
    kvs_expiry_add_locked(root, extent);
    store->live_extents++;
    store->live_blocks += extent->block_count - extent->named;
    for (uint32_t i = extent->named; i < extent->block_count; i++) {
        kvs_removed_clear_locked(root, extent->tags[i]);
    }
    return 0;
}

void kvs_extent_pin_locked(struct kvs_extent *extent)
{
    extent->pins++;
}

static void record_free(struct kvs_store *store, struct kvs_extent *extent)
{
    if (extent->regions) {
        for (uint32_t i = 0; i < extent->ns->layer_count; i++) {
            if (extent->regions[i]) {
                kvs_region_detach_locked(store, extent->regions[i]);
            }
        }
        free(extent->regions);
        extent->regions = NULL;
    }
    kvs_file_release_locked(store, extent);
    table_set(store, extent->number, NULL);
    store->extents_bytes -= record_bytes(extent->block_count);
    number_give_back(store, extent->number);
    free(extent);
}

void kvs_extent_unpin_locked(struct kvs_store *store, struct kvs_extent *extent)
{
    assert(extent->pins > 0);
    if (--extent->pins == 0 && extent->state != KVS_EXTENT_LIVE) {
        record_free(store, extent);
    }
}

void kvs_extent_forget_locked(struct kvs_store *store, struct kvs_extent *extent,
                              enum kvs_reason reason)
{
    if (extent->state != KVS_EXTENT_LIVE) {
        return;
    }
    extent->pins++; /* so that the record outlives this function */
    extent->state = KVS_EXTENT_GONE;
    kvs_scrub_gone_locked(&store->roots[extent->root], extent);
    index_remove_all(store, extent, extent->block_count);
    kvs_expiry_remove_locked(extent);
    kvs_list_remove(&extent->lru);
    kvs_list_remove(&extent->dirty);
    store->live_extents--;
    store->live_blocks -= extent->block_count - extent->named;
    for (uint32_t i = extent->named; reason && i < extent->block_count; i++) {
        kvs_removed_note_locked(&store->roots[extent->root], extent->tags[i], reason);
    }
    kvs_extent_unpin_locked(store, extent);
}

void kvs_extents_free(struct kvs_store *store)
{
    for (uint32_t i = 0; i < store->extent_count; i++) {
        struct kvs_extent *extent = kvs_extent_at(store, i);
        if (extent) {
            free(extent->regions);
            free(extent);
        }
    }
    kvs_levels_shrink(&store->extents, 0);
    kvs_levels_shrink(&store->free_numbers, 0);
}

/* ---- finding ---- */

struct kvs_extent *kvs_extent_holder_locked(struct kvs_store *store, const struct kvs_namespace *ns,
                                            const struct kvs_key *key)
{
    struct kvs_index_cursor cursor = {0};
    while (kvs_index_find(store->index, kvs_tag(ns, key), &cursor)) {
        struct kvs_extent *extent = kvs_extent_at(store, cursor.extent);
        if (extent->ns == ns) {
            return extent;
        }
    }
    return NULL;
}

struct kvs_extent *kvs_extent_lookup_locked(struct kvs_store *store, struct kvs_namespace *ns,
                                            const struct kvs_key *key, int64_t now_s,
                                            uint8_t *position)
{
    struct kvs_index_cursor cursor = {0};
    uint64_t tag = kvs_tag(ns, key);
    struct kvs_extent *expired = NULL;
    while (kvs_index_find(store->index, tag, &cursor)) {
        struct kvs_extent *extent = kvs_extent_at(store, cursor.extent);
        if (cursor.position < extent->named || extent->ns != ns ||
            kvs_root_down_locked(&store->roots[extent->root])) {
            continue;
        }
        if (extent->valid_until_s > now_s) {
            *position = cursor.position;
            return extent;
        }
        if (!expired) {
            expired = extent;
            *position = cursor.position;
        }
    }
    return expired;
}

struct kvs_extent *kvs_extent_named_locked(struct kvs_store *store, uint32_t root,
                                           const struct kvs_namespace *ns,
                                           const struct kvs_key *name)
{
    struct kvs_index_cursor cursor = {0};
    while (kvs_index_find(store->index, kvs_tag(ns, name), &cursor)) {
        struct kvs_extent *extent = kvs_extent_at(store, cursor.extent);
        if (extent->ns == ns && extent->root == root && cursor.position == extent->named &&
            memcmp(&extent->name, name, KVS_KEY_BYTES) == 0) {
            return extent;
        }
    }
    return NULL;
}

uint32_t kvs_extent_follow_locked(struct kvs_extent *extent, uint8_t position,
                                  const struct kvs_key *keys, uint64_t count)
{
    uint32_t followed = 0;
    while (followed < count && position + followed < extent->block_count &&
           extent->tags[position + followed] == kvs_tag(extent->ns, &keys[followed])) {
        followed++;
    }
    return followed;
}
