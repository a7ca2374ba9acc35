/*
 * plan.c: which cells are read next. Layer 0 of all blocks first, then 1, 2 ...; across loads the
 * one furthest behind in layers goes first, the older on a tie. Where the bytes go: plan_direct.c,
 * plan_pool.c.
 *
 * Runs on the root's I/O thread under the lock; makes transfers, moves nothing itself.
 *
 * Invariants:
 *   1. On one root no span of layer l + 1 is planned before every span of layer l was.
 *   2. A load takes pool memory beyond its reservation only from what no other load is promised.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"
#include "room.h"

/* A device serves all that it was given at the same time: with more, layer 0 of a load may come no
 * sooner than what was asked for after it. What this costs in bandwidth: docs/ARCHITECTURE.md. */
enum { READ_BYTES_IN_FLIGHT_MAX = 16 << 20 };

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

uint32_t kvs_span_wanted_locked(const struct kvs_load *load, uint32_t layer,
                                const struct kvs_load_span *span)
{
    uint64_t local = span->first_block - load->first, good = load->layers[layer].good;
    if (span->failed || local >= good) {
        return 0;
    }
    return good - local < span->count ? (uint32_t)(good - local) : span->count;
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
