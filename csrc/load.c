/*
 * load.c: the life of a load as its caller sees it: layers becoming ready, release, cancel, end,
 * drained. How it starts is in load_open.c, which reads are made in plan.c, what happens to bytes
 * in deliver.c.
 *
 * States: RESOLVING (names are walked) -> WAITING (for a share of the pool) -> RUNNING -> ENDED.
 *
 * Invariants:
 *   1. Layer tickets are finished in layer order; layer i is ready when all spans of layers 0..i
 *      are done. layers[i].blocks never grows with i.
 *   2. Exactly one kvs_load_end_locked takes effect; after it no transfer is planned, and results
 *      of those in flight are thrown away.
 *   3. drained is finished when the load has ended and memory_users is 0, never before.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "room.h"
#include "store.h"

void kvs_load_hold_locked(struct kvs_load *load)
{
    load->refs++;
}

static void load_free(struct kvs_load *load)
{
    if (load->layers) {
        for (uint32_t i = 0; i < load->ns->layer_count; i++) {
            if (load->layers[i].ticket) {
                kvs_ticket_drop_locked(load->layers[i].ticket);
            }
        }
    }
    if (load->drained) {
        kvs_ticket_drop_locked(load->drained);
    }
    if (load->block_memory) {
        kvs_pool_give_locked(load->store, load->block_memory);
    }
    if (load->lease) {
        kvs_lease_drop_locked(load->lease);
    }
    atomic_fetch_sub(&load->store->refs, 1);
    free((void *)load->into.targets);
    free((void *)load->into.table);
    free(load->layers);
    free(load->spans);
    free(load->runs);
    free(load);
}

/* The caller holds a reference to the store of its own. */
void kvs_load_drop_locked(struct kvs_load *load)
{
    if (--load->refs == 0) {
        load_free(load);
    }
}

static void release_layer_locked(struct kvs_load *load, uint32_t layer)
{
    struct kvs_load_layer_state *state = &load->layers[layer];
    state->released = 1;
    for (uint32_t i = 0; load->runs && i < load->span_count; i++) {
        struct kvs_run *run = &load->runs[(size_t)layer * load->span_count + i];
        if (run->region) {
            kvs_room_give_locked(load, layer, run->region->bytes);
            kvs_region_drop_locked(load->store, run->region);
            run->region = NULL;
        }
    }
}

static void finish_layer_locked(struct kvs_load *load, uint32_t layer, uint64_t blocks)
{
    struct kvs_load_layer_state *state = &load->layers[layer];
    uint64_t before = layer > 0 ? load->layers[layer - 1].blocks : load->blocks;
    state->blocks = blocks < before ? blocks : before;
    state->ready = 1;
    state->ready_ns = kvs_store_now_ns(load->store);
    kvs_ticket_finish_locked(state->ticket, (int64_t)state->blocks);
    if (load->flags & KVS_LOAD_PREFETCH) {
        release_layer_locked(load, layer);
    }
}

void kvs_load_files_return_locked(struct kvs_load *load)
{
    for (uint32_t i = 0; i < load->span_count; i++) {
        struct kvs_file *file = load->spans[i].file;
        load->spans[i].file = NULL;
        if (file) {
            kvs_file_drop_locked(load->store, file);
        }
    }
}

static void let_spans_go(struct kvs_load *load)
{
    kvs_load_files_return_locked(load);
    for (uint32_t i = 0; i < load->span_count; i++) {
        kvs_extent_unpin_locked(load->store, load->spans[i].extent);
        load->spans[i].extent = NULL;
    }
}

enum kvs_reason kvs_load_reason_locked(const struct kvs_load *load, uint32_t layer)
{
    uint64_t blocks = load->layers[layer].blocks;
    enum kvs_reason reason = KVS_REASON_NONE;
    for (uint32_t i = 0; i <= layer && blocks < load->blocks && !reason; i++) {
        reason = load->layers[i].blocks == blocks ? load->layers[i].reason : reason;
    }
    return reason;
}

void kvs_load_end_locked(struct kvs_load *load, enum kvs_reason reason)
{
    if (load->state == KVS_LOAD_ENDED) {
        return;
    }
    struct kvs_store *store = load->store;
    if (load->state == KVS_LOAD_RUNNING) {
        store->reserved_total -= load->reserved_bytes;
    }
    load->state = KVS_LOAD_ENDED;
    for (uint32_t i = load->layers_ready; i < load->ns->layer_count; i++) {
        release_layer_locked(load, i);
        load->layers[i].reason = (uint8_t)reason;
        finish_layer_locked(load, i, 0);
    }
    load->layers_ready = load->ns->layer_count;
    kvs_load_count_locked(load);
    let_spans_go(load);
    load->lease->loads_running--;
    kvs_list_remove(&load->link);
    if (load->memory_users == 0) {
        kvs_ticket_finish_locked(load->drained, 0);
    }
    kvs_load_admit_locked(store);
    kvs_wake_all(store);
    kvs_load_drop_locked(load);
}

void kvs_load_progress_locked(struct kvs_load *load)
{
    while (load->layers_ready < load->ns->layer_count &&
           load->layers[load->layers_ready].pending == 0) {
        finish_layer_locked(load, load->layers_ready, load->layers[load->layers_ready].good);
        if (load->layers_ready++ == 0) {
            kvs_latency_note(&load->store->latencies[KVS_STAGE_FIRST_LAYER],
                             load->layers[0].ready_ns - load->stats.opened_ns);
        }
    }
    if (load->layers_ready == load->ns->layer_count) {
        kvs_load_end_locked(load, KVS_REASON_NONE);
    }
}

void kvs_load_span_done_locked(struct kvs_load *load, uint32_t layer, uint32_t span)
{
    if (load->state != KVS_LOAD_RUNNING && load->state != KVS_LOAD_WAITING) {
        return;
    }
    struct kvs_run *run = &load->runs[(size_t)layer * load->span_count + span];
    if (run->over) {
        return; /* given up before, when its root went down */
    }
    run->over = 1;
    assert(load->layers[layer].pending > 0);
    load->layers[layer].pending--;
    if (load->state == KVS_LOAD_RUNNING) {
        kvs_load_progress_locked(load);
    }
}

void kvs_load_cut_locked(struct kvs_load *load, uint32_t layer, uint64_t block,
                         enum kvs_reason reason)
{
    uint64_t local = block - load->first;
    for (uint32_t i = layer; i < load->ns->layer_count; i++) {
        if (local < load->layers[i].good) {
            load->layers[i].good = local;
            load->layers[i].reason = (uint8_t)reason;
        }
    }
}

void kvs_load_memory_done_locked(struct kvs_load *load)
{
    assert(load->memory_users > 0);
    if (--load->memory_users == 0 && load->state == KVS_LOAD_ENDED) {
        kvs_ticket_finish_locked(load->drained, 0);
    }
}

/* The layer that is awaited is not wholly planned for want of room: views are being kept. While its
 * reads are under way it is the device that is late. */
static int waits_for_room(const struct kvs_load *load)
{
    int waits = load->state == KVS_LOAD_WAITING;
    for (uint32_t root = 0; root < load->store->root_count; root++) {
        waits |= (load->starved_roots >> root & 1) && load->front_layer[root] <= load->layers_ready;
    }
    return waits;
}

void kvs_load_deadlines_locked(struct kvs_store *store, int64_t now_ns)
{
    for (struct kvs_link *at = store->loads.next; at != &store->loads;) {
        struct kvs_load *load = KVS_ENTRY(at, struct kvs_load, link);
        at = at->next;
        if (load->deadline_ns <= now_ns) {
            kvs_load_end_locked(load, waits_for_room(load) ? KVS_REASON_POOL : KVS_REASON_DEADLINE);
            at = store->loads.next; /* ending one may have ended others */
        }
    }
}

/* ---- what the caller asks ---- */

struct kvs_ticket *kvs_load_layer_ticket(struct kvs_load *load, uint32_t layer)
{
    if (layer >= load->ns->layer_count) {
        return NULL;
    }
    kvs_lock(load->store);
    struct kvs_ticket *ticket = kvs_ticket_hold_locked(load->layers[layer].ticket);
    kvs_unlock(load->store);
    return ticket;
}

struct kvs_ticket *kvs_load_drained(struct kvs_load *load)
{
    kvs_lock(load->store);
    struct kvs_ticket *ticket = kvs_ticket_hold_locked(load->drained);
    kvs_unlock(load->store);
    return ticket;
}

int kvs_load_layer(struct kvs_load *load, uint32_t layer, struct kvs_layer *out)
{
    if (layer >= load->ns->layer_count) {
        return -EINVAL;
    }
    kvs_lock(load->store);
    const struct kvs_load_layer_state *state = &load->layers[layer];
    int ready = state->ready;
    if (ready) {
        *out = (struct kvs_layer){state->blocks, kvs_load_reason_locked(load, layer), 0,
                                  state->ready_ns};
        for (uint32_t i = 0; i < load->span_count && !load->into.targets && !state->released &&
                             load->spans[i].first_block - load->first < state->blocks;
             i++) {
            out->span_count++;
        }
    }
    kvs_unlock(load->store);
    return ready ? 0 : -EAGAIN;
}

int kvs_load_span(struct kvs_load *load, uint32_t layer, uint32_t index, struct kvs_span *out)
{
    int error = -ENOENT;
    if (layer >= load->ns->layer_count) {
        return -EINVAL;
    }
    kvs_lock(load->store);
    const struct kvs_load_layer_state *state = &load->layers[layer];
    if (state->ready && !state->released && !load->into.targets && index < load->span_count) {
        const struct kvs_load_span *span = &load->spans[index];
        const struct kvs_region *region =
            load->runs[(size_t)layer * load->span_count + index].region;
        uint64_t local = span->first_block - load->first;
        if (local < state->blocks) {
            uint64_t left = state->blocks - local;
            out->cells = region ? region->cells +
                                      (size_t)(span->position - region->first) * region->cell_bytes
                                : NULL; /* a layer without parts */
            out->first_block = span->first_block;
            out->block_count = span->count < left ? span->count : left;
            error = 0;
        }
    }
    kvs_unlock(load->store);
    return error;
}

void kvs_load_release(struct kvs_load *load, uint32_t layer)
{
    struct kvs_store *store = load->store;
    if (layer < load->ns->layer_count) {
        kvs_lock(store);
        if (load->layers[layer].ready) {
            release_layer_locked(load, layer);
            kvs_wake_all(store);
        }
        kvs_unlock(store);
    }
}

int kvs_load_block(struct kvs_load *load, const void **data, uint64_t *bytes)
{
    kvs_lock(load->store);
    int error = !load->block_memory ? -EINVAL : 0;
    if (!error && !load->layers[load->ns->layer_count - 1].ready) {
        error = -EAGAIN;
    }
    *data = load->block_memory;
    *bytes = load->blocks * load->ns->block_bytes;
    kvs_unlock(load->store);
    return error;
}

void kvs_load_cancel(struct kvs_load *load)
{
    kvs_lock(load->store);
    kvs_load_end_locked(load, KVS_REASON_CANCELLED);
    kvs_unlock(load->store);
}

void kvs_load_stats(struct kvs_load *load, struct kvs_load_stats *out)
{
    kvs_lock(load->store);
    *out = load->stats;
    kvs_unlock(load->store);
}

void kvs_load_close(struct kvs_load *load)
{
    struct kvs_store *store = load->store;
    kvs_store_hold(store);
    kvs_lock(store);
    kvs_load_end_locked(load, KVS_REASON_CANCELLED);
    for (uint32_t i = 0; i < load->ns->layer_count; i++) {
        release_layer_locked(load, i);
    }
    kvs_load_drop_locked(load);
    kvs_unlock(store);
    kvs_store_drop(store);
}
