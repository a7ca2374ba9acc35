/*
 * plan_direct.c: reads of a span straight into caller memory (of get(): into the block), where both
 * sides are aligned. What cannot go so goes through the pool; plan.c decides the order.
 *
 * Runs on the root's I/O thread under the lock; makes transfers, moves nothing itself.
 *
 * Invariant: only ranges that are aligned on both sides are read: no byte outside the wanted cells
 * is written.
 */
#include <errno.h>

#include "plan.h"

static int direct_possible(const struct kvs_load *load, uint32_t layer)
{
    const struct kvs_namespace *ns = load->ns;
    return load->into.targets && ns->part_counts[layer] == 1 &&
           load->into.page_tokens % ns->block_tokens == 0 &&
           load->into.targets[ns->part_first[layer]].base;
}

/* The next run of the span, from cell `at` on, whose blocks follow each other in caller memory.
 * Returns its length; 0 when the block is not wanted. */
static uint32_t direct_run(const struct kvs_load *load, uint32_t layer, uint64_t local,
                           uint32_t count, uint8_t **memory)
{
    uint64_t cell = load->ns->cell_bytes[layer];
    int wanted;
    *memory = kvs_into_block(load, layer, local, &wanted);
    if (!wanted) {
        return 0;
    }
    uint32_t length = 1;
    while (length < count && length * cell < KVS_PIECE_BYTES) {
        uint8_t *next = kvs_into_block(load, layer, local + length, &wanted);
        if (!wanted || next != *memory + length * cell) {
            break;
        }
        length++;
    }
    return length;
}

static int direct_aligned(const struct kvs_load *load, uint32_t layer,
                          const struct kvs_load_span *span, uint32_t count)
{
    uint64_t cell = load->ns->cell_bytes[layer];
    uint64_t local = span->first_block - load->first;
    for (uint32_t at = 0; at < count;) {
        uint8_t *memory;
        uint32_t length = direct_run(load, layer, local + at, count - at, &memory);
        uint64_t offset =
            kvs_span_file_locked(span)->region_offsets[layer] + (span->position + at) * cell;
        if (length && ((offset | length * cell | (uintptr_t)memory) & (KVS_PLAN_ALIGN - 1))) {
            return 0;
        }
        at += length ? length : 1;
    }
    return 1;
}

/* Nothing of it in the pool, nothing of it given up. */
static int direct_wanted(const struct kvs_load *load, uint32_t layer,
                         const struct kvs_load_span *span, uint32_t count)
{
    struct kvs_region **regions = span->extent->regions;
    return count > 0 && direct_possible(load, layer) &&
           !kvs_region_covers(regions ? regions[layer] : NULL, span->position, count);
}

/* get() wants its block whole: layers from `layer` on that follow each other in the file as they do
 * in memory are one read, which costs the device less than one a layer. For others the next layer
 * must not hold up this one. *bytes: of their cells. */
static uint32_t direct_layers(const struct kvs_load *load, uint32_t layer,
                              const struct kvs_load_span *span, const uint8_t *memory,
                              uint64_t *bytes)
{
    const uint32_t *cells = load->ns->cell_bytes;
    const uint64_t *offsets = kvs_span_file_locked(span)->region_offsets;
    uint32_t next = layer + 1;
    int whole = load->flags & KVS_LOAD_BLOCK, wanted;
    while (whole && next < load->ns->layer_count && cells[next] % KVS_PLAN_ALIGN == 0) {
        if (!direct_wanted(load, next, span, kvs_span_wanted_locked(load, next, span)) ||
            kvs_into_block(load, next, 0, &wanted) != memory + *bytes ||
            offsets[next] + (uint64_t)span->position * cells[next] !=
                offsets[layer] + (uint64_t)span->position * cells[layer] + *bytes) {
            break;
        }
        *bytes += cells[next++];
    }
    return next - layer;
}

static int direct_add(struct kvs_load *load, uint32_t layer, uint32_t span_number, uint32_t at,
                      uint32_t length, uint8_t *memory)
{
    struct kvs_load_span *span = &load->spans[span_number];
    struct kvs_file *file = kvs_span_file_locked(span);
    uint64_t cell = load->ns->cell_bytes[layer], bytes = length * cell;
    uint64_t offset = file->region_offsets[layer] + (span->position + at) * cell;
    uint32_t layers = direct_layers(load, layer, span, memory, &bytes);
    struct kvs_transfer *read =
        kvs_read_new_locked(KVS_TRANSFER_DIRECT, file, offset, memory, bytes);
    if (!read) {
        return -ENOMEM;
    }
    read->load = load;
    read->layer = layer;
    read->layers = layers;
    read->span = span_number;
    read->position = (uint8_t)(span->position + at);
    read->count = (uint8_t)length;
    kvs_load_hold_locked(load);
    load->memory_users++;
    for (uint32_t i = layer; i < layer + layers; i++) {
        load->runs[(size_t)i * load->span_count + span_number].direct_pending++;
    }
    span->next_layer += layers - 1; /* plan.c counts the first */
    load->stats.disk_bytes += bytes;
    load->stats.direct_bytes += bytes;
    kvs_transfer_queue_locked(&load->store->roots[span->root], read);
    return 0;
}

int kvs_plan_direct_locked(struct kvs_load *load, uint32_t layer, uint32_t span_number)
{
    struct kvs_load_span *span = &load->spans[span_number];
    uint32_t count = kvs_span_wanted_locked(load, layer, span);
    if (!direct_wanted(load, layer, span, count) || !direct_aligned(load, layer, span, count)) {
        return -ENOTSUP;
    }
    uint64_t local = span->first_block - load->first;
    struct kvs_run *run = &load->runs[(size_t)layer * load->span_count + span_number];
    for (uint32_t at = 0; at < count;) {
        uint8_t *memory;
        uint32_t length = direct_run(load, layer, local + at, count - at, &memory);
        if (length && direct_add(load, layer, span_number, at, length, memory) < 0) {
            kvs_load_cut_locked(load, layer, span->first_block + at, KVS_REASON_POOL);
            break;
        }
        at += length ? length : 1;
    }
    if (run->direct_pending == 0) {
        kvs_load_span_done_locked(load, layer, span_number); /* no block of it was wanted */
    }
    return 0;
}
