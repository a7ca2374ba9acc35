/*
 * extents.c: the table of extents and what is kept sorted about them: the index of their blocks,
 * recency per root (LRU); expiry per root (a heap) is in expiry.c.
 *
 * Does no I/O and deletes no file: kvs_extent_forget_locked() takes an extent out of sight, leave.c
 * deals with its file.
 *
 * Invariants:
 *   1. LIVE extents, and only they, are in the index, in their root's LRU list and in its heap.
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
    return store->extents[extent]->tags[position];
}

/* ---- the table ---- */

static int number_take(struct kvs_store *store, uint32_t *number)
{
    if (store->free_number_count > 0) {
        *number = store->free_numbers[--store->free_number_count];
        return 0;
    }
    if (store->extent_count == store->extent_room) {
        uint32_t room = store->extent_room ? store->extent_room * 2 : 256;
        struct kvs_extent **extents = realloc(store->extents, room * sizeof(*extents));
        if (!extents) {
            return -ENOMEM;
        }
        store->extents = extents;
        uint32_t *numbers = realloc(store->free_numbers, room * sizeof(*numbers));
        if (!numbers) {
            return -ENOMEM;
        }
        store->free_numbers = numbers;
        store->extent_room = room;
    }
    *number = store->extent_count++;
    return 0;
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
    extent->root = root;
    extent->number = number;
    extent->block_count = (uint8_t)block_count;
    extent->state = KVS_EXTENT_WRITING;
    extent->start = KVS_FORMAT_START_UNKNOWN;
    extent->pins = 1;
    store->extents[number] = extent;
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
    if (kvs_expiry_add_locked(root, extent) < 0) {
        index_remove_all(store, extent, extent->block_count);
        return -ENOMEM;
    }
    extent->state = KVS_EXTENT_LIVE;
    kvs_list_add_first(&root->lru, &extent->lru);
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
    store->extents[extent->number] = NULL;
    store->free_numbers[store->free_number_count++] = extent->number;
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
    kvs_expiry_remove_locked(&store->roots[extent->root], extent);
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
        struct kvs_extent *extent = store->extents[i];
        if (extent) {
            free(extent->regions);
            free(extent);
        }
    }
    free(store->extents);
    free(store->free_numbers);
    for (uint32_t i = 0; i < store->root_count; i++) {
        free(store->roots[i].expiry);
    }
}

/* ---- finding and touching ---- */

struct kvs_extent *kvs_extent_holder_locked(struct kvs_store *store, const struct kvs_namespace *ns,
                                            const struct kvs_key *key)
{
    struct kvs_index_cursor cursor = {0};
    while (kvs_index_find(store->index, kvs_tag(ns, key), &cursor)) {
        if (store->extents[cursor.extent]->ns == ns) {
            return store->extents[cursor.extent];
        }
    }
    return NULL;
}

struct kvs_extent *kvs_extent_lookup_locked(struct kvs_store *store, struct kvs_namespace *ns,
                                            const struct kvs_key *key, uint8_t *position)
{
    struct kvs_index_cursor cursor = {0};
    uint64_t tag = kvs_tag(ns, key);
    int64_t now_s = kvs_store_now_s(store);
    struct kvs_extent *expired = NULL;
    while (kvs_index_find(store->index, tag, &cursor)) {
        struct kvs_extent *extent = store->extents[cursor.extent];
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
        struct kvs_extent *extent = store->extents[cursor.extent];
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
    kvs_list_add_first(&store->roots[extent->root].lru, &extent->lru);
    kvs_times_mark_locked(store, extent);
}

void kvs_chain_touch_locked(struct kvs_store *store, struct kvs_namespace *ns,
                            const struct kvs_key *keys, uint64_t count, int retention)
{
    uint64_t at = count;
    while (at > 0) {
        uint8_t position = 0;
        struct kvs_extent *extent = kvs_extent_lookup_locked(store, ns, &keys[at - 1], &position);
        uint64_t step = 1;
        if (extent) {
            kvs_extent_touch_locked(store, extent, retention);
            step += (uint64_t)(position - extent->named);
        }
        at = step < at ? at - step : 0;
    }
}

/* Oldest last; within one second the deeper block counts as older: parents outlive children. */
static int older_first(const void *a, const void *b)
{
    const struct kvs_extent *left = *(struct kvs_extent *const *)a;
    const struct kvs_extent *right = *(struct kvs_extent *const *)b;
    if (left->last_use_s != right->last_use_s) {
        return left->last_use_s < right->last_use_s ? -1 : 1;
    }
    if (left->start != right->start) {
        return left->start > right->start ? -1 : 1;
    }
    return 0;
}

int kvs_extent_order_by_use_locked(struct kvs_root *root)
{
    uint32_t count = root->expiry_count;
    struct kvs_extent **sorted = malloc((count + 1) * sizeof(*sorted));
    if (!sorted) {
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < count; i++) {
        sorted[i] = root->expiry[i];
    }
    qsort(sorted, count, sizeof(*sorted), older_first);
    for (uint32_t i = 0; i < count; i++) {
        kvs_list_add_first(&root->lru, &sorted[i]->lru);
    }
    free(sorted);
    return 0;
}
