/*
 * plan_pool.c: a span's cells through regions of the pool: those that are there already, those that
 * somebody reads, or a read of their own. plan.c decides the order.
 *
 * Runs on the root's I/O thread under the lock; makes transfers, moves nothing itself.
 *
 * Invariants:
 *   1. A read's range in the file is rounded out to whole pages.
 *   2. A region is of one layer, also where one read fills several: each waits, is verified, is
 *      copied and is kept or evicted alone.
 */
#include <errno.h>
#include <stdlib.h>

#include "plan.h"
#include "room.h"

/* Where a span's cells of a layer lie in the file, and the whole pages around them. */
struct range {
    uint64_t cells, first, end;
};

static struct range range_of(const struct kvs_load *load, uint32_t layer,
                             const struct kvs_load_span *span, uint32_t count)
{
    uint64_t cell = load->ns->cell_bytes[layer];
    uint64_t cells = kvs_span_file_locked(span)->region_offsets[layer] + span->position * cell;
    uint64_t end = cells + count * cell;
    return (struct range){cells, cells / KVS_PLAN_ALIGN * KVS_PLAN_ALIGN,
                          (end + KVS_PLAN_ALIGN - 1) / KVS_PLAN_ALIGN * KVS_PLAN_ALIGN};
}

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

/* How far one read goes that begins with `layer`: the first layer that is not in it, and *bytes of
 * pages. get() wants its block whole: layers whose pages follow each other in the file cost the
 * device one operation. For others the next layer must not hold up this one. */
static uint32_t read_end(const struct kvs_load *load, uint32_t layer,
                         const struct kvs_load_span *span, uint32_t count, uint64_t *bytes)
{
    struct kvs_region **regions = span->extent->regions;
    struct range all = range_of(load, layer, span, count);
    uint32_t end = layer + 1;
    /* What is read for the second time is read alone: those behind it are planned already. */
    int whole = load->flags & KVS_LOAD_BLOCK && span->next_layer == layer && !load->apart;
    for (uint32_t next = end; whole && next < load->ns->layer_count; next++) {
        struct range range = range_of(load, next, span, count);
        if (load->ns->cell_bytes[next] == 0) {
            continue; /* takes no place in the file */
        }
        if (range.first != all.end || range.end - all.first > KVS_PIECE_BYTES ||
            kvs_span_wanted_locked(load, next, span) != count ||
            kvs_region_covers(regions ? regions[next] : NULL, span->position, count) ||
            !kvs_room_for_locked(load, layer, range.end - all.first)) {
            break;
        }
        all.end = range.end;
        end = next + 1;
    }
    *bytes = all.end - all.first;
    return end;
}

static int region_await(struct kvs_region *region, struct kvs_load *load, uint32_t layer,
                        uint32_t span_number, uint32_t count)
{
    const struct kvs_load_span *span = &load->spans[span_number];
    struct range range = range_of(load, layer, span, count);
    region->cells = region->memory + (range.cells - range.first);
    region->layer = layer;
    region->cell_bytes = load->ns->cell_bytes[layer];
    region->first = span->position;
    region->count = (uint8_t)count;
    region->state = KVS_REGION_READING;
    return waiter_add(region, load, layer, span_number);
}

static void region_give_up(struct kvs_store *store, struct kvs_region *region)
{
    if (region) {
        region->state = KVS_REGION_BAD;
        kvs_region_drop_locked(store, region);
    }
}

/* Cuts memory for layers [layer, end) into their regions, one behind the other, and awaits them.
 * Returns the last, which is an earlier one when there is no memory for records; NULL: none. */
static struct kvs_region *regions_await(struct kvs_region *region, struct kvs_load *load,
                                        uint32_t layer, uint32_t end, uint32_t span_number,
                                        uint32_t count)
{
    struct kvs_store *store = load->store;
    struct kvs_region *last = NULL;
    while (region) {
        struct range range = range_of(load, layer, &load->spans[span_number], count);
        uint32_t next = kvs_cells_next(load->ns, layer + 1);
        struct kvs_region *rest =
            next < end ? kvs_region_cut_locked(store, region, range.end - range.first) : NULL;
        if (region_await(region, load, layer, span_number, count) < 0) {
            region_give_up(store, rest);
            region_give_up(store, region);
            break;
        }
        if (last) {
            last->behind = region;
        }
        last = region;
        region = rest;
        layer = next;
    }
    return last;
}

/* Each region takes its layer's place in the RAM tier, and no layer of them is planned again. */
static void regions_planned(struct kvs_load *load, struct kvs_region *first, uint32_t span_number)
{
    struct kvs_load_span *span = &load->spans[span_number];
    uint32_t layer = first->layer;
    for (struct kvs_region *region = first; region; region = region->behind) {
        attach(load->store, region, span->extent);
        load->stats.disk_bytes += (uint64_t)region->count * region->cell_bytes;
        for (; layer < region->layer; layer++) {
            span->next_layer++; /* plan.c counts the last */
            if (load->ns->cell_bytes[layer] == 0) {
                kvs_load_span_done_locked(load, layer, span_number);
            }
        }
    }
}

/* Memory for a read of *bytes; where no piece is large enough for more than `least`, for that. */
static struct kvs_region *read_open(struct kvs_load *load, uint64_t least, uint64_t *bytes)
{
    struct kvs_store *store = load->store;
    struct kvs_region *region = NULL;
    if (*bytes > least) {
        region = kvs_region_open_long_locked(store, *bytes);
        load->apart = !region;
    }
    if (!region) {
        *bytes = least;
        region = kvs_region_open_locked(store, least);
    }
    return region;
}

static int read_into_pool(struct kvs_load *load, uint32_t layer, uint32_t span_number,
                          uint32_t count)
{
    struct kvs_store *store = load->store;
    struct kvs_load_span *span = &load->spans[span_number];
    struct kvs_file *file = kvs_span_file_locked(span);
    struct range range = range_of(load, layer, span, count);
    uint64_t bytes, least = range.end - range.first;
    if (!kvs_room_for_locked(load, layer, least)) {
        return -EAGAIN;
    }
    uint32_t end = read_end(load, layer, span, count, &bytes);
    struct kvs_region *first = read_open(load, least, &bytes);
    if (!first) {
        return -EAGAIN;
    }
    end = bytes > least ? end : layer + 1;
    struct kvs_transfer *read =
        kvs_read_new_locked(KVS_TRANSFER_REGION, file, range.first, first->memory, bytes);
    if (!read) {
        region_give_up(store, first);
        return -EAGAIN;
    }
    struct kvs_region *last = regions_await(first, load, layer, end, span_number, count);
    if (!last) {
        kvs_file_drop_locked(store, file);
        free(read);
        return -EAGAIN;
    }
    read->region = first; /* with the references that open and cut gave */
    read->bytes = range_of(load, last->layer, span, count).end - range.first;
    regions_planned(load, first, span_number);
    kvs_transfer_queue_locked(&store->roots[span->root], read);
    return 0;
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
