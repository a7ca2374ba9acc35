/*
 * deliver.c: what happens to bytes after a read: verify every cell, copy to callers, tell loads.
 *
 * Runs on I/O threads, without the lock while it hashes and copies: the memory it touches is held
 * by a region reference or counted in load->memory_users.
 *
 * A cell that fails its check is read once more into pool memory (a caller who scribbles over his
 * own pages must not condemn good data), with those of the same read; if it fails again its extent
 * goes to quarantine.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"
#include "room.h"
#include "store.h"
#include "xxh3.h"

/* Leading cells whose checksum holds. */
static uint32_t verify(const struct kvs_file *file, uint32_t layer, uint32_t position,
                       const uint8_t *cells, uint64_t cell_bytes, uint32_t count)
{
    const uint64_t *sums = &file->checksums[(size_t)layer * file->block_count + position];
    for (uint32_t i = 0; i < count; i++) {
        if (kvs_xxh3(cells + i * cell_bytes, cell_bytes) != sums[i]) {
            return i;
        }
    }
    return count;
}

/* ---- caller memory ---- */

uint8_t *kvs_into_block(const struct kvs_load *load, uint32_t layer, uint64_t local_block,
                        int *wanted)
{
    const struct kvs_namespace *ns = load->ns;
    const struct kvs_into *into = &load->into;
    uint32_t part = ns->part_first[layer];
    uint64_t token = local_block * ns->block_tokens;
    uint64_t page = token / into->page_tokens, inside = token % into->page_tokens;
    int64_t entry = into->table ? into->table[page] : (int64_t)page;
    *wanted = entry >= 0;
    if (entry < 0) {
        return NULL;
    }
    return (uint8_t *)into->targets[part].base + (uint64_t)entry * into->targets[part].page_stride +
           inside / ns->block_tokens * ns->part_bytes[part];
}

/* One part of one block, page by page. */
static void copy_part(const struct kvs_load *load, uint32_t part, uint64_t local_block,
                      const uint8_t *source)
{
    const struct kvs_namespace *ns = load->ns;
    const struct kvs_into *into = &load->into;
    const struct kvs_target *target = &into->targets[part];
    uint64_t token = local_block * ns->block_tokens, end = token + ns->block_tokens;
    uint64_t bytes = ns->part_bytes[part];
    while (target->base && token < end) {
        uint64_t page = token / into->page_tokens, inside = token % into->page_tokens;
        uint64_t tokens = into->page_tokens - inside;
        tokens = tokens < end - token ? tokens : end - token;
        int64_t entry = into->table ? into->table[page] : (int64_t)page;
        uint64_t piece = bytes * tokens / ns->block_tokens;
        if (entry >= 0) {
            memcpy((uint8_t *)target->base + (uint64_t)entry * target->page_stride +
                       bytes * inside / ns->block_tokens,
                   source, piece);
        }
        source += piece;
        token += tokens;
    }
}

void kvs_into_copy(const struct kvs_load *load, uint32_t layer, uint64_t local_block,
                   const uint8_t *cells, uint32_t count)
{
    const struct kvs_namespace *ns = load->ns;
    uint32_t first = ns->part_first[layer];
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *source = cells + (size_t)i * ns->cell_bytes[layer];
        for (uint32_t part = first; part < first + ns->part_counts[layer]; part++) {
            copy_part(load, part, local_block + i, source);
            source += ns->part_bytes[part];
        }
    }
}

/* ---- loads that wait for a region ---- */

static void copy_to_waiter(struct kvs_store *store, struct kvs_region *region,
                           struct kvs_load *load, uint32_t layer, const struct kvs_load_span *span,
                           uint32_t good)
{
    const uint8_t *cells =
        region->cells + (size_t)(span->position - region->first) * region->cell_bytes;
    uint64_t local = span->first_block - load->first;
    load->memory_users++;
    load->stats.bounced_bytes += (uint64_t)good * region->cell_bytes;
    kvs_unlock(store);
    kvs_into_copy(load, layer, local, cells, good);
    kvs_lock(store);
    kvs_room_give_locked(load, layer, region->bytes);
    kvs_load_memory_done_locked(load);
}

static void deliver_one_locked(struct kvs_store *store, struct kvs_region *region,
                               const struct kvs_waiter *waiter)
{
    struct kvs_load *load = waiter->load;
    const struct kvs_load_span *span = &load->spans[waiter->span];
    if (load->state != KVS_LOAD_RUNNING) {
        return;
    }
    if (load->runs[(size_t)waiter->layer * load->span_count + waiter->span].over) {
        kvs_room_give_locked(load, waiter->layer, region->bytes);
        return;
    }
    uint32_t ahead = (uint32_t)(span->position - region->first);
    uint32_t good = region->good > ahead ? region->good - ahead : 0;
    good = good < span->count ? good : span->count;
    uint32_t asked = region->count - ahead < span->count ? region->count - ahead : span->count;
    if (good < asked) {
        kvs_load_cut_locked(load, waiter->layer, span->first_block + good,
                            (enum kvs_reason)region->reason);
    }
    if (load->into.targets) {
        copy_to_waiter(store, region, load, waiter->layer, span, good);
    } else {
        kvs_region_hold_locked(store, region);
        load->runs[(size_t)waiter->layer * load->span_count + waiter->span].region = region;
    }
    kvs_load_span_done_locked(load, waiter->layer, waiter->span);
}

/* Takes the caller's reference to the region. It is dropped before anyone who was told can get the
 * lock: who drops the RAM tier after a load gets rid of all that the load read. */
void kvs_deliver_waiters(struct kvs_store *store, struct kvs_region *region)
{
    kvs_lock(store);
    while (region->waiters) {
        struct kvs_waiter *waiter = region->waiters;
        region->waiters = waiter->next;
        deliver_one_locked(store, region, waiter);
        kvs_load_drop_locked(waiter->load);
        free(waiter);
    }
    kvs_region_drop_locked(store, region);
    kvs_unlock(store);
}

/* ---- the end of a read ---- */

static enum kvs_reason reason_of_error(int error)
{
    /* End of file inside a region: the file was cut short. */
    if (error == -ENODATA) {
        return KVS_REASON_DAMAGED;
    }
    return kvs_busy_error(error) ? KVS_REASON_BUSY : KVS_REASON_IO_ERROR;
}

static void transfer_free_locked(struct kvs_store *store, struct kvs_transfer *transfer)
{
    kvs_file_drop_locked(store, transfer->file);
    free(transfer);
}

/* What came of each region of the read. Nobody looks at it before they are told, so it needs no
 * lock. Returns the last reason that is none. */
static enum kvs_reason regions_judge(const struct kvs_transfer *transfer)
{
    enum kvs_reason worst = KVS_REASON_NONE;
    for (struct kvs_region *region = transfer->region; region; region = region->behind) {
        enum kvs_reason reason = KVS_REASON_NONE;
        region->good = 0;
        if (transfer->error) {
            reason = reason_of_error(transfer->error);
        } else {
            region->good = (uint8_t)verify(transfer->file, region->layer, region->first,
                                           region->cells, region->cell_bytes, region->count);
            reason = region->good < region->count ? KVS_REASON_DAMAGED : KVS_REASON_NONE;
        }
        region->reason = (uint8_t)reason;
        worst = reason ? reason : worst;
    }
    return worst;
}

/* Once more: what failed its check, and what the device refused as one of several layers. One does
 * not use up the other: damage is what was read twice and wrong twice. */
static int read_again(struct kvs_transfer *transfer)
{
    uint8_t *again = transfer->error ? &transfer->again_refused : &transfer->again_checked;
    int worth = !transfer->error || (transfer->region->behind && kvs_device_error(transfer->error));
    int first = worth && !*again;
    *again |= (uint8_t)first;
    return first;
}

static int region_read_done(struct kvs_root *root, struct kvs_transfer *transfer)
{
    struct kvs_store *store = root->store;
    enum kvs_reason reason = regions_judge(transfer);
    if (reason && read_again(transfer)) {
        return 1;
    }
    kvs_lock(store);
    struct kvs_extent *extent = transfer->file->extent;
    for (struct kvs_region *at = transfer->region; at; at = at->behind) {
        at->state = at->reason ? KVS_REGION_BAD : KVS_REGION_READY;
    }
    if (reason == KVS_REASON_DAMAGED && extent) {
        kvs_quarantine_locked(store, extent, reason);
    } else if (kvs_device_error(transfer->error) && extent) {
        kvs_extent_unreadable_locked(root, extent, transfer->again);
    }
    kvs_unlock(store);
    for (struct kvs_region *at = transfer->region, *behind; at; at = behind) {
        behind = at->behind;
        at->behind = NULL;
        kvs_deliver_waiters(store, at);
    }
    kvs_lock(store);
    transfer_free_locked(store, transfer);
    kvs_unlock(store);
    return 0;
}

/* What failed its check is read again from the very file: its extent may have let go of it. */
static void file_keep_locked(struct kvs_load *load, const struct kvs_transfer *transfer)
{
    struct kvs_load_span *span = &load->spans[transfer->span];
    if (load->state == KVS_LOAD_RUNNING && !kvs_span_file_locked(span)) {
        kvs_file_ref_locked(transfer->file);
        span->file = transfer->file;
    }
}

/* The last transfer of a span that went straight to the caller. */
static void direct_span_done_locked(struct kvs_load *load, uint32_t layer, uint32_t span)
{
    struct kvs_run *run = &load->runs[(size_t)layer * load->span_count + span];
    if (load->state != KVS_LOAD_RUNNING || --run->direct_pending > 0) {
        return;
    }
    if (!run->reread || run->over) {
        kvs_load_span_done_locked(load, layer, span);
    } else if (kvs_plan_region_locked(load, layer, span) < 0) {
        kvs_load_cut_locked(load, layer, load->spans[span].first_block, KVS_REASON_POOL);
        kvs_load_span_done_locked(load, layer, span);
    }
}

static void direct_read_done(struct kvs_root *root, struct kvs_transfer *transfer)
{
    struct kvs_store *store = root->store;
    struct kvs_load *load = transfer->load;
    uint32_t first = transfer->layer, count = transfer->layers;
    uint8_t good[KVS_LAYERS_MAX] = {0}; /* leading cells by layer */
    const uint8_t *cells = transfer->memory;
    for (uint32_t i = 0; i < count && !transfer->error; i++) {
        uint64_t bytes = load->ns->cell_bytes[first + i];
        good[i] = (uint8_t)verify(transfer->file, first + i, transfer->position, cells, bytes,
                                  transfer->count);
        cells += transfer->count * bytes;
    }
    kvs_lock(store);
    struct kvs_run *run = &load->runs[(size_t)first * load->span_count + transfer->span];
    for (uint32_t i = 0; i < count && load->state == KVS_LOAD_RUNNING; i++) {
        run->reread |= good[i] < transfer->count;
        run += load->span_count;
    }
    file_keep_locked(load, transfer);
    /* First the caller's memory is let go (the reread counts for itself when it copies). */
    kvs_load_memory_done_locked(load);
    for (uint32_t i = 0; i < count; i++) {
        direct_span_done_locked(load, first + i, transfer->span);
    }
    kvs_load_drop_locked(load);
    transfer_free_locked(store, transfer);
    kvs_unlock(store);
}

int kvs_transfer_read_done(struct kvs_root *root, struct kvs_transfer *transfer)
{
    if (transfer->kind == KVS_TRANSFER_REGION) {
        return region_read_done(root, transfer);
    }
    assert(transfer->kind == KVS_TRANSFER_DIRECT);
    direct_read_done(root, transfer);
    return 0;
}
