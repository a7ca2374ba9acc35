/*
 * stage.c: from the caller's tensors to whole regions in the pool: the copier thread gathers the
 * parts of each cell and takes its checksum. What is whole goes to the disk: send.c.
 *
 * The copier is one thread per store, so that neither the event loop nor a prefill copies. It may
 * wait for room; it never waits without something in flight that will give room, else it drops.
 *
 * Invariants:
 *   1. A cell is staged at most once; have[] says which are.
 *   2. staging_bytes counts regions that are STAGING; they hold at most half of the pool.
 *   3. Sources are not touched after the put's ticket is finished.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "room.h"
#include "store.h"
#include "xxh3.h"

enum { ROOM_WAIT_MS = 20, ROOM_WAIT_MAX_S = 5 };

uint64_t kvs_staged_bytes(const struct kvs_writer *writer, uint32_t layer, uint64_t blocks)
{
    uint64_t bytes = blocks * writer->ns->cell_bytes[layer];
    return (bytes + KVS_ARENA_UNIT_BYTES - 1) / KVS_ARENA_UNIT_BYTES * KVS_ARENA_UNIT_BYTES;
}

static int staging_fits_locked(struct kvs_store *store, uint64_t bytes)
{
    return store->staging_bytes + bytes <= kvs_arena_bytes(store->arena) / 2 &&
           kvs_pool_room_locked(store) >= kvs_load_promised_locked(store, NULL) + bytes;
}

/* How far one write goes that begins with `layer`: the first layer that is not in it, and *bytes.
 * A single block comes whole, so its layers wait for each other; a layer of a prefill for none. */
static uint32_t write_end(const struct kvs_writer *writer, const struct kvs_writer_extent *made,
                          uint32_t layer, uint64_t *bytes)
{
    uint32_t end = layer + 1;
    int together = writer->flags & KVS_WRITER_SINGLE && !made->apart;
    *bytes = kvs_staged_bytes(writer, layer, made->count_max);
    for (uint32_t next = kvs_cells_next(writer->ns, end);
         together && next < writer->ns->layer_count; next = kvs_cells_next(writer->ns, end)) {
        uint64_t more = kvs_staged_bytes(writer, next, made->count_max);
        if (*bytes + more > KVS_PIECE_BYTES || made->extent->regions[next] ||
            made->layer_sent[next]) {
            break;
        }
        *bytes += more;
        end = next + 1;
    }
    return end;
}

/* Cuts memory for layers [layer, end) into their regions, one behind the other: fewer, when there
 * is no memory for records. */
static void stage_attach_locked(struct kvs_writer *writer, struct kvs_writer_extent *made,
                                struct kvs_region *region, uint32_t layer, uint32_t end)
{
    struct kvs_store *store = writer->store;
    while (region) {
        uint32_t next = kvs_cells_next(writer->ns, layer + 1);
        region->behind =
            next < end ? kvs_region_cut_locked(store, region,
                                               kvs_staged_bytes(writer, layer, made->count_max))
                       : NULL;
        region->layer = layer;
        region->cell_bytes = writer->ns->cell_bytes[layer];
        region->count = (uint8_t)made->count_max;
        region->state = KVS_REGION_STAGING;
        kvs_region_attach_locked(region, made->extent);
        store->staging_bytes += region->bytes;
        region = region->behind;
        layer = next;
    }
}

static struct kvs_region *stage_open_locked(struct kvs_writer *writer,
                                            struct kvs_writer_extent *made, uint32_t layer)
{
    struct kvs_store *store = writer->store;
    uint64_t bytes;
    struct kvs_region *region = NULL;
    uint32_t end = write_end(writer, made, layer, &bytes);
    if (end > layer + 1 && staging_fits_locked(store, bytes)) {
        region = kvs_region_open_long_locked(store, bytes);
        made->apart = !region;
    }
    if (!region) {
        end = layer + 1;
        bytes = kvs_staged_bytes(writer, layer, made->count_max);
        region = staging_fits_locked(store, bytes) ? kvs_region_open_locked(store, bytes) : NULL;
    }
    if (region) {
        stage_attach_locked(writer, made, region, layer, end);
    }
    return region;
}

/* Room comes when writes finish, when a file is there that whole layers wait for, or when loads
 * release; with nothing of that under way there is no hope. */
static int wait_for_room_locked(struct kvs_store *store, const struct timespec *began)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    if ((store->writes_in_flight == 0 && store->births == 0 && kvs_list_empty(&store->loads)) ||
        until.tv_sec - began->tv_sec > ROOM_WAIT_MAX_S) {
        return 0;
    }
    until.tv_nsec += ROOM_WAIT_MS * 1000000l;
    until.tv_sec += until.tv_nsec / KVS_NS_PER_S;
    until.tv_nsec %= KVS_NS_PER_S;
    pthread_cond_timedwait(&store->changed, &store->lock, &until);
    return 1;
}

/* The layer's staging region, waiting for room if need be; NULL: dropped. */
static struct kvs_region *stage_region_locked(struct kvs_writer *writer,
                                              struct kvs_writer_extent *made, uint32_t layer)
{
    struct timespec began;
    clock_gettime(CLOCK_MONOTONIC, &began);
    /* A layer that was sent is whole: a cell put again is ignored, its region may be gone. */
    while (made->state != KVS_MADE_DROPPED && writer->state != KVS_WRITER_DONE &&
           !made->layer_sent[layer]) {
        struct kvs_region *region = made->extent->regions[layer];
        if (region) {
            return region->state == KVS_REGION_STAGING ? region : NULL;
        }
        region = stage_open_locked(writer, made, layer);
        if (region) {
            return region;
        }
        kvs_made_send_apart_locked(writer->store);
        if (!wait_for_room_locked(writer->store, &began)) {
            kvs_made_drop_locked(writer, made);
        }
    }
    return NULL;
}

static void gather(const struct kvs_namespace *ns, const struct kvs_put *put, uint64_t index,
                   uint8_t *cell)
{
    const uint32_t *bytes = &ns->part_bytes[ns->part_first[put->layer]];
    for (uint32_t part = 0; part < ns->part_counts[put->layer]; part++) {
        const struct kvs_source *source = &put->sources[part];
        memcpy(cell, (const uint8_t *)source->base + index * source->block_stride, bytes[part]);
        cell += bytes[part];
    }
}

/* Blocks [first, end) of the put, all in `made`. Returns the cells dropped. */
static uint64_t stage_run(struct kvs_put *put, struct kvs_writer_extent *made, uint64_t first,
                          uint64_t end)
{
    struct kvs_writer *writer = put->writer;
    struct kvs_store *store = writer->store;
    uint32_t layer = put->layer, cell_bytes = writer->ns->cell_bytes[layer];
    uint32_t added = 0;
    kvs_lock(store);
    struct kvs_region *region = stage_region_locked(writer, made, layer);
    if (!region) {
        int sent = made->layer_sent[layer] && made->state != KVS_MADE_DROPPED;
        kvs_unlock(store);
        return sent ? 0 : end - first;
    }
    kvs_region_hold_locked(store, region);
    if (made->fixed) {
        kvs_made_create_locked(writer, made);
    }
    kvs_unlock(store);
    for (uint64_t block = first; block < end; block++) {
        size_t position = (size_t)(block - made->first);
        size_t slot = (size_t)layer * made->count_max + position;
        if (!made->have[slot]) { /* written by this thread only */
            uint8_t *cell = region->cells + position * cell_bytes;
            gather(writer->ns, put, block - put->first, cell);
            made->checksums[slot] = kvs_xxh3(cell, cell_bytes);
            made->have[slot] = 1;
            added++;
        }
    }
    kvs_lock(store);
    kvs_region_drop_locked(store, region);
    if (made->state == KVS_MADE_DROPPED) {
        added = 0;
    }
    made->layer_have[layer] += added;
    made->cells_missing -= added;
    store->stats.puts_bytes += (uint64_t)added * cell_bytes;
    kvs_made_send_locked(writer, made);
    int dropped = made->state == KVS_MADE_DROPPED;
    kvs_unlock(store);
    return dropped ? end - first : 0;
}

/* The extents to be made that a put touches; blocks between them are resident already. Holding the
 * writer keeps the list's entries alive; the list itself may grow, so it is read under the lock. */
static uint64_t put_run(struct kvs_put *put)
{
    struct kvs_writer *writer = put->writer;
    struct kvs_store *store = writer->store;
    uint64_t dropped = 0, end = put->first + put->count;
    kvs_lock(store);
    for (uint32_t i = 0; i < writer->made_count; i++) {
        struct kvs_writer_extent *made = writer->made[i];
        uint64_t from = made->first > put->first ? made->first : put->first;
        uint64_t until = made->first + made->count < end ? made->first + made->count : end;
        if (from < until && writer->ns->cell_bytes[put->layer] > 0) {
            kvs_unlock(store);
            dropped += stage_run(put, made, from, until);
            kvs_lock(store);
        }
    }
    kvs_unlock(store);
    return dropped;
}

void *kvs_copier_thread(void *argument)
{
    struct kvs_store *store = argument;
    kvs_lock(store);
    for (;;) {
        struct kvs_put *put = store->puts;
        if (!put && store->closing > 1) {
            break;
        }
        if (!put) {
            pthread_cond_wait(&store->put_ready, &store->lock);
            continue;
        }
        store->puts = put->next;
        if (!store->puts) {
            store->puts_tail = &store->puts;
        }
        kvs_unlock(store);
        uint64_t dropped = put_run(put);
        kvs_lock(store);
        put->writer->puts_pending--;
        store->put_count--;
        kvs_ticket_finish_locked(put->ticket, (int64_t)dropped);
        kvs_ticket_drop_locked(put->ticket);
        kvs_writer_progress_locked(put->writer);
        kvs_writer_drop_locked(put->writer);
        free(put);
    }
    kvs_unlock(store);
    return NULL;
}
