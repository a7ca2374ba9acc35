/*
 * load_open.c: the start of a load: its memory, its spans (runs of blocks that lie in one extent),
 * its share of the pool. From here on plan.c drives it.
 *
 * Invariants:
 *   1. Spans are in chain order without a gap; the first block the index does not know ends the
 *      good prefix, what follows is not looked at.
 *   2. A load that could never fit the pool is refused here, not left to wait.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "room.h"
#include "store.h"

/* Spans for what the index knows; the first block it does not know ends the load's good prefix. */
void kvs_load_spans_locked(struct kvs_load *load)
{
    struct kvs_store *store = load->store;
    const struct kvs_key *keys = load->lease->keys;
    int64_t now_s = kvs_store_now_s(store);
    uint64_t at = load->first, end = load->first + load->blocks;
    enum kvs_reason reason = KVS_REASON_NONE;
    while (at < end && !reason) {
        uint8_t position = 0;
        struct kvs_extent *extent =
            kvs_extent_lookup_locked(store, load->ns, &keys[at], now_s, &position);
        if (!extent) {
            reason = kvs_miss_reason_locked(store, load->ns, &keys[at]);
        } else if (extent->valid_until_s <= now_s) {
            reason = KVS_REASON_EXPIRED;
        } else {
            struct kvs_load_span *span = &load->spans[load->span_count++];
            *span = (struct kvs_load_span){.extent = extent, .first_block = at};
            span->position = position;
            span->root = extent->root;
            load->span_roots |= 1u << extent->root;
            span->count = (uint8_t)kvs_extent_follow_locked(extent, position, &keys[at], end - at);
            kvs_extent_pin_locked(extent);
            kvs_file_want_locked(store, extent);
            at += span->count;
        }
    }
    if (reason) {
        kvs_load_cut_locked(load, 0, at, reason);
    }
    for (uint32_t i = load->span_count; i > 0; i--) {
        kvs_extent_touch_locked(store, load->spans[i - 1].extent, load->lease->retention);
    }
    for (uint32_t i = 0; i < load->ns->layer_count; i++) {
        load->layers[i].pending = load->span_count;
    }
    load->state = KVS_LOAD_WAITING;
    load->runs = calloc((size_t)load->ns->layer_count * load->span_count + 1, sizeof(*load->runs));
    if (!load->runs) {
        kvs_load_end_locked(load, KVS_REASON_POOL);
        return;
    }
    kvs_load_admit_locked(store);
}

static void resolve_job(struct kvs_root *root, void *argument)
{
    struct kvs_load *load = argument;
    struct kvs_store *store = root->store;
    kvs_walk(root, load->ns, load->lease->keys, load->lease->end);
    kvs_lock(store);
    if (load->state == KVS_LOAD_RESOLVING) {
        kvs_load_spans_locked(load);
    }
    kvs_load_drop_locked(load);
    kvs_unlock(store);
}

static int into_copy(struct kvs_load *load, const struct kvs_into *into)
{
    const struct kvs_namespace *ns = load->ns;
    uint32_t page = into->page_tokens, block = ns->block_tokens;
    if (page == 0 || (page % block != 0 && block % page != 0) ||
        (page > block && load->first * block % page != 0)) {
        return -EINVAL;
    }
    uint64_t pages = (load->blocks * block + page - 1) / page;
    if (into->table && into->table_entries < pages) {
        return -EINVAL;
    }
    for (uint32_t i = 0; page != block && i < ns->part_total; i++) {
        if (ns->part_bytes[i] % block != 0) {
            return -EINVAL; /* tokens of this part cannot be told apart */
        }
    }
    struct kvs_target *targets = malloc((ns->part_total + 1) * sizeof(*targets));
    int32_t *table = into->table ? malloc((pages + 1) * sizeof(*table)) : NULL;
    if (!targets || (into->table && !table)) {
        free(targets);
        free(table);
        return -ENOMEM;
    }
    memcpy(targets, into->targets, ns->part_total * sizeof(*targets));
    if (table) {
        memcpy(table, into->table, pages * sizeof(*table));
    }
    load->into = (struct kvs_into){targets, page, table, pages};
    return 0;
}

/* get(): the block lies in one piece of the pool, as if that were caller memory. */
static int block_memory_locked(struct kvs_load *load)
{
    const struct kvs_namespace *ns = load->ns;
    struct kvs_target *targets = calloc(ns->part_total + 1, sizeof(*targets));
    if (!targets) {
        return -ENOMEM;
    }
    uint64_t bytes = load->blocks * ns->block_bytes;
    if (kvs_pool_room_locked(load->store) >= kvs_load_promised_locked(load->store, load) + bytes) {
        load->block_memory = kvs_pool_take_locked(load->store, bytes);
    }
    if (!load->block_memory) {
        free(targets);
        return -ENOBUFS;
    }
    uint8_t *at = load->block_memory;
    for (uint32_t i = 0; i < ns->part_total; i++) {
        targets[i] = (struct kvs_target){at, ns->block_bytes};
        at += ns->part_bytes[i];
    }
    load->into = (struct kvs_into){targets, ns->block_tokens, NULL, 0};
    return 0;
}

/* Pool bytes that the load must be able to hold at once: its largest layer, or, when regions only
 * pass through on their way to the caller, a few of them. */
static uint64_t reserve_of(const struct kvs_load *load, int passing)
{
    const struct kvs_namespace *ns = load->ns;
    uint64_t region = ns->extent_blocks * ns->largest_cell + 2 * KVS_ARENA_UNIT_BYTES;
    uint64_t layer = load->blocks * (ns->largest_cell + 2 * KVS_ARENA_UNIT_BYTES);
    uint64_t spans = load->blocks / ns->extent_blocks + 2;
    uint64_t grown = load->blocks * ns->largest_cell + spans * 2 * KVS_ARENA_UNIT_BYTES;
    layer = grown < layer ? grown : layer;
    return passing && 4 * region < layer ? 4 * region : layer;
}

static int load_new(struct kvs_lease *lease, uint32_t flags, struct kvs_load **out)
{
    struct kvs_store *store = lease->store;
    struct kvs_load *load = calloc(1, sizeof(*load));
    if (!load) {
        return -ENOMEM;
    }
    kvs_store_hold(store);
    load->store = store;
    load->ns = lease->ns;
    load->first = lease->first;
    load->blocks = lease->end - lease->first;
    load->flags = flags;
    load->refs = 1;
    load->layers = calloc(load->ns->layer_count, sizeof(*load->layers));
    load->spans = calloc(load->blocks + 1, sizeof(*load->spans));
    load->drained = kvs_ticket_open(store, 1);
    int error = load->layers && load->spans && load->drained ? 0 : -ENOMEM;
    for (uint32_t i = 0; !error && i < load->ns->layer_count; i++) {
        load->layers[i].good = load->blocks;
        load->layers[i].ticket = kvs_ticket_open(store, 1);
        error = load->layers[i].ticket ? 0 : -ENOMEM;
    }
    *out = load;
    return error;
}

static void load_start_locked(struct kvs_load *load, struct kvs_lease *lease, int64_t deadline_ns)
{
    struct kvs_store *store = load->store;
    enum kvs_reason reason;
    load->lease = lease;
    lease->refs++;
    lease->loads_running++;
    load->stats.opened_ns = kvs_store_now_ns(store);
    load->deadline_ns = kvs_later(load->stats.opened_ns, deadline_ns);
    load->refs++; /* the list's */
    kvs_list_add_last(&store->loads, &load->link);
    kvs_match_locked(store, load->ns, lease->keys, lease->end, &reason);
    if ((reason == KVS_REASON_PENDING || reason == KVS_REASON_WARMING) &&
        kvs_job_add_anywhere_locked(store, resolve_job, load, 1) == 0) {
        load->refs++;
        load->state = KVS_LOAD_RESOLVING;
        return;
    }
    kvs_load_spans_locked(load);
}

int kvs_load_open(struct kvs_lease *lease, const struct kvs_into *into, uint32_t flags,
                  int64_t deadline_ns, uint64_t *needed_bytes, struct kvs_load **out)
{
    struct kvs_store *store = lease->store;
    struct kvs_load *load = NULL;
    int error = kvs_store_check(store);
    if (error) {
        return error;
    }
    if (!lease->ns->has_layout || deadline_ns < 0 || (into && flags)) {
        return -EINVAL;
    }
    error = load_new(lease, flags, &load);
    if (!error && into) {
        error = into_copy(load, into);
    }
    kvs_lock(store);
    if (!error) {
        load->reserved_bytes = reserve_of(load, into || (flags & KVS_LOAD_BLOCK));
        uint64_t block_bytes = flags & KVS_LOAD_BLOCK ? load->blocks * load->ns->block_bytes : 0;
        *needed_bytes = (load->reserved_bytes + block_bytes) / 7 * 8 + KVS_ARENA_UNIT_BYTES;
        if (load->reserved_bytes + block_bytes > kvs_arena_bytes(store->arena) / 8 * 7) {
            error = -E2BIG;
        } else if (flags & KVS_LOAD_BLOCK) {
            error = block_memory_locked(load);
        }
    }
    error = !error && store->closing ? -ESHUTDOWN : error;
    if (!error) {
        load_start_locked(load, lease, deadline_ns);
        *out = load;
    } else if (load) {
        kvs_load_drop_locked(load);
    }
    kvs_unlock(store);
    return error;
}
