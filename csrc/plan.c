/*
 * plan.c: which cells are read next. Layer 0 of all blocks first, then 1, 2 ...; across loads the
 * one furthest behind in layers goes first, the older on a tie.
 *
 * Runs on the root's I/O thread under the lock; makes transfers, moves nothing itself.
 *
 * Invariants:
 *   1. On one root no span of layer l + 1 is planned before every span of layer l was.
 *   2. A load takes pool memory beyond its reservation only from what no other load is promised.
 *   3. A read's range in the file is rounded out to 4096 and goes to the pool; only a range that is
 *      aligned on both sides goes straight to caller memory: no byte outside its cells is written.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"
#include "room.h"

/* A device serves all that it was given at the same time: with more, layer 0 of a load may come no
 * sooner than what was asked for after it. What this costs in bandwidth: docs/ARCHITECTURE.md. */
enum { ALIGN = 4096, READ_BYTES_IN_FLIGHT_MAX = 16 << 20 };

struct kvs_transfer *kvs_read_new_locked(enum kvs_transfer_kind kind, struct kvs_file *file,
                                         uint64_t offset, uint8_t *memory, uint64_t bytes)
{
    struct kvs_transfer *transfer = malloc(sizeof(*transfer));
    if (transfer) {
        *transfer = (struct kvs_transfer){.kind = kind, .fd = file->fd, .file = file};
        transfer->file_offset = offset;
        transfer->memory = memory;
        transfer->bytes = bytes;
        transfer->again = file->extent ? file->extent->unreadable : 0;
        kvs_file_ref_locked(file);
    }
    return transfer;
}

struct kvs_file *kvs_span_file_locked(const struct kvs_load_span *span)
{
    return span->file ? span->file : span->extent->file;
}

/* ---- through the pool ---- */

int kvs_region_covers(const struct kvs_region *region, uint32_t first, uint32_t count)
{
    return region && region->state != KVS_REGION_BAD && region->state != KVS_REGION_STAGING &&
           region->first <= first && first + count <= (uint32_t)region->first + region->count;
}

static int waiter_add(struct kvs_region *region, struct kvs_load *load, uint32_t layer,
                      uint32_t span)
{
    struct kvs_waiter *waiter = malloc(sizeof(*waiter));
    if (!waiter) {
        return -EAGAIN;
    }
    *waiter = (struct kvs_waiter){region->waiters, load, layer, span};
    region->waiters = waiter;
    kvs_load_hold_locked(load);
    kvs_room_take_locked(load, layer, region->bytes);
    return 0;
}

/* In the pool already: a view at once, or a copy by the I/O thread. */
static int take_from_ram(struct kvs_load *load, uint32_t layer, uint32_t span,
                         struct kvs_region *region)
{
    struct kvs_store *store = load->store;
    uint64_t cells = load->spans[span].count;
    if (!load->into.targets) {
        if (!kvs_room_for_locked(load, layer, region->bytes)) {
            return -EAGAIN;
        }
        kvs_region_hold_locked(store, region);
        load->runs[(size_t)layer * load->span_count + span].region = region;
        kvs_room_take_locked(load, layer, region->bytes);
        load->stats.ram_bytes += cells * region->cell_bytes;
        kvs_load_span_done_locked(load, layer, span);
        return 0;
    }
    struct kvs_transfer *copy = calloc(1, sizeof(*copy));
    if (!copy || waiter_add(region, load, layer, span) < 0) {
        free(copy);
        return -EAGAIN;
    }
    kvs_region_hold_locked(store, region);
    copy->kind = KVS_TRANSFER_HIT;
    copy->region = region;
    kvs_ending_add_locked(&store->roots[load->spans[span].root], copy);
    load->stats.ram_bytes += cells * region->cell_bytes;
    return 0;
}

/* A new region that takes the layer's place in the RAM tier, if the old one there lets it. */
static void attach(struct kvs_store *store, struct kvs_region *region, struct kvs_extent *extent)
{
    if (!extent->regions) {
        extent->regions = calloc(extent->ns->layer_count, sizeof(*extent->regions));
    }
    if (!extent->regions || extent->state != KVS_EXTENT_LIVE) {
        return;
    }
    struct kvs_region *old = extent->regions[region->layer];
    if (old && old->state == KVS_REGION_READING) {
        return;
    }
    if (old) {
        kvs_region_detach_locked(store, old);
    }
    kvs_region_attach_locked(region, extent);
}

static int read_into_pool(struct kvs_load *load, uint32_t layer, uint32_t span_number,
                          uint32_t count)
{
    struct kvs_store *store = load->store;
    struct kvs_load_span *span = &load->spans[span_number];
    uint64_t cell = load->ns->cell_bytes[layer];
    uint64_t start = kvs_span_file_locked(span)->region_offsets[layer] + span->position * cell;
    uint64_t first = start / ALIGN * ALIGN;
    uint64_t bytes = (start + count * cell + ALIGN - 1) / ALIGN * ALIGN - first;
    if (!kvs_room_for_locked(load, layer, bytes)) {
        return -EAGAIN;
    }
    struct kvs_region *region = kvs_region_open_locked(store, bytes);
    if (!region) {
        return -EAGAIN;
    }
    region->cells = region->memory + (start - first);
    region->layer = layer;
    region->cell_bytes = (uint32_t)cell;
    region->first = span->position;
    region->count = (uint8_t)count;
    region->state = KVS_REGION_READING;
    struct kvs_transfer *read = kvs_read_new_locked(KVS_TRANSFER_REGION, kvs_span_file_locked(span),
                                                    first, region->memory, bytes);
    if (!read || waiter_add(region, load, layer, span_number) < 0) {
        if (read) {
            kvs_file_drop_locked(store, read->file);
            free(read);
        }
        region->state = KVS_REGION_BAD;
        kvs_region_drop_locked(store, region);
        return -EAGAIN;
    }
    read->region = region; /* with the reference that open gave */
    attach(store, region, span->extent);
    kvs_transfer_queue_locked(&store->roots[span->root], read);
    load->stats.disk_bytes += count * cell;
    return 0;
}

uint32_t kvs_span_wanted_locked(const struct kvs_load *load, uint32_t layer,
                                const struct kvs_load_span *span)
{
    uint64_t local = span->first_block - load->first, good = load->layers[layer].good;
    if (span->failed || local >= good) {
        return 0;
    }
    return good - local < span->count ? (uint32_t)(good - local) : span->count;
}

int kvs_plan_region_locked(struct kvs_load *load, uint32_t layer, uint32_t span_number)
{
    struct kvs_load_span *span = &load->spans[span_number];
    struct kvs_extent *extent = span->extent;
    uint32_t count = kvs_span_wanted_locked(load, layer, span);
    struct kvs_region *region = extent->regions ? extent->regions[layer] : NULL;
    int reread = load->runs[(size_t)layer * load->span_count + span_number].reread;
    if (count == 0) {
        kvs_load_span_done_locked(load, layer, span_number);
        return 0;
    }
    if (!reread && kvs_region_covers(region, span->position, count)) {
        if (region->state == KVS_REGION_READY) {
            return take_from_ram(load, layer, span_number, region);
        }
        load->stats.ram_bytes += (uint64_t)count * region->cell_bytes;
        return waiter_add(region, load, layer, span_number);
    }
    return read_into_pool(load, layer, span_number, count);
}

/* ---- the order ---- */

/* The span's open file with the very keys that were asked for. 1: yes, or failed; 0: not yet.
 * Held while the cache has places; other spans are read through files that come and go. */
static int span_attach(struct kvs_load *load, struct kvs_load_span *span)
{
    struct kvs_store *store = load->store;
    struct kvs_extent *extent = span->extent;
    enum kvs_reason reason = extent->open_reason;
    if (span->file || span->failed) {
        return 1;
    }
    if (extent->file) {
        const struct kvs_key *keys = &load->lease->keys[span->first_block];
        if (memcmp(&extent->file->keys[span->position], keys, span->count * sizeof(*keys)) == 0) {
            if (store->file_count <= store->file_max / 2) {
                span->file = kvs_file_hold_locked(store, extent);
            }
            return 1;
        }
        reason = KVS_REASON_FOREIGN; /* two keys, one tag */
    } else if (extent->opening || (!reason && extent->state == KVS_EXTENT_LIVE)) {
        kvs_file_want_locked(store, extent);
        return 0;
    }
    span->failed = 1;
    kvs_load_cut_locked(load, 0, span->first_block, reason ? reason : KVS_REASON_EVICTED);
    return 1;
}

/* Plans one span of the load on this root. 1: did; 0: nothing can be done now. */
static int plan_one(struct kvs_root *root, struct kvs_load *load)
{
    uint32_t layer = load->front_layer[root->number];
    uint32_t none = load->span_count, waiting = none; /* the first that has no open file yet */
    for (uint32_t i = load->span_hint[root->number]; i < load->span_count; i++) {
        struct kvs_load_span *span = &load->spans[i];
        if (span->root != root->number || span->next_layer != layer) {
            continue;
        }
        if (!span_attach(load, span)) {
            waiting = i < waiting ? i : waiting;
            continue;
        }
        int error = load->ns->cell_bytes[layer] == 0 ? 0 : kvs_plan_direct_locked(load, layer, i);
        if (load->ns->cell_bytes[layer] == 0) {
            kvs_load_span_done_locked(load, layer, i);
        } else if (error == -ENOTSUP) {
            error = kvs_plan_region_locked(load, layer, i);
        }
        if (error) {
            load->starved_roots |= 1u << root->number;
            load->span_hint[root->number] = waiting < none ? waiting : i;
            return 0;
        }
        load->starved_roots &= ~(1u << root->number);
        span->next_layer++;
        load->span_hint[root->number] = waiting < none ? waiting : i + 1;
        return 1;
    }
    load->span_hint[root->number] = waiting < none ? waiting : 0;
    if (waiting == none && layer < load->ns->layer_count) {
        load->front_layer[root->number]++;
        return 1;
    }
    return 0;
}

/* The load that is furthest behind, among those not tried in this round. */
static struct kvs_load *next_load(struct kvs_root *root, uint64_t round)
{
    struct kvs_load *best = NULL;
    struct kvs_link *head = &root->store->loads;
    for (struct kvs_link *at = head->next; at != head; at = at->next) {
        struct kvs_load *load = KVS_ENTRY(at, struct kvs_load, link);
        uint32_t layer = load->front_layer[root->number];
        if (load->state == KVS_LOAD_RUNNING && load->tried_round[root->number] != round &&
            layer < load->ns->layer_count && (!best || layer < best->front_layer[root->number])) {
            best = load;
        }
    }
    return best;
}

/* No more is planned than can be submitted: a queue would make loads that start later wait. */
static int can_submit_more(const struct kvs_root *root)
{
    return root->reads_queued < root->slot_count - root->ops_in_flight &&
           root->bytes_in_flight + root->read_bytes_queued < root->bytes_in_flight_max &&
           root->read_bytes_in_flight + root->read_bytes_queued < READ_BYTES_IN_FLIGHT_MAX;
}

void kvs_plan_reads_locked(struct kvs_root *root)
{
    struct kvs_load *load;
    uint64_t round = ++root->plan_round;
    kvs_load_admit_locked(root->store);
    while (can_submit_more(root) && (load = next_load(root, round)) != NULL) {
        kvs_load_hold_locked(load);
        if (!plan_one(root, load)) {
            load->tried_round[root->number] = round;
        }
        kvs_load_drop_locked(load);
    }
}
