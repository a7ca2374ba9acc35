/*
 * send.c: from whole regions in the pool to the disk: what is one write, when it goes, and what
 * becomes of the regions afterwards. How they are filled: stage.c.
 *
 * Runs under the lock, on the thread that completed a layer, made the file, or ended a write.
 *
 * Invariants:
 *   1. A layer is sent once, when it is whole and the file is there.
 *   2. A region is attached to the extent until its write is back: it is what `behind` leads to.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store.h"

/* The regions from `first` on that are behind each other, as one write. */
static void send_locked(struct kvs_writer *writer, struct kvs_writer_extent *made,
                        struct kvs_region *first)
{
    struct kvs_store *store = writer->store;
    struct kvs_transfer *write = calloc(1, sizeof(*write));
    if (!write) {
        kvs_made_drop_locked(writer, made);
        return;
    }
    write->kind = KVS_TRANSFER_WRITE;
    write->fd = made->temp.fd;
    write->file_offset = made->region_offsets[first->layer];
    write->memory = first->memory;
    write->region = first;
    write->writer = writer;
    write->made = made;
    for (struct kvs_region *region = first; region; region = region->behind) {
        uint64_t cells = (uint64_t)made->count * region->cell_bytes;
        uint64_t bytes = kvs_staged_bytes(writer, region->layer, made->count);
        memset(region->memory + cells, 0, bytes - cells); /* padding on disk is zero */
        write->bytes += bytes;
        kvs_region_hold_locked(store, region);
        made->layer_sent[region->layer] = 1;
    }
    kvs_writer_hold_locked(writer);
    made->writes_in_flight++;
    store->writes_in_flight++;
    kvs_transfer_queue_locked(&store->roots[made->root], write);
    kvs_root_wake(&store->roots[made->root]);
}

void kvs_made_send_locked(struct kvs_writer *writer, struct kvs_writer_extent *made)
{
    uint32_t next;
    for (uint32_t layer = 0; layer < writer->ns->layer_count && made->state == KVS_MADE_READY;
         layer = next) {
        struct kvs_region *region = made->extent->regions[layer];
        int whole = 1;
        next = layer + 1;
        if (!region || made->layer_sent[layer]) {
            continue;
        }
        for (const struct kvs_region *at = region; at; at = at->behind) {
            whole &= made->layer_have[at->layer] == made->count;
            next = at->layer + 1;
        }
        if (whole) {
            send_locked(writer, made, region);
        }
    }
}

void kvs_made_send_apart_locked(struct kvs_store *store)
{
    for (struct kvs_link *at = store->writers.next; at != &store->writers; at = at->next) {
        struct kvs_writer *writer = KVS_ENTRY(at, struct kvs_writer, link);
        for (uint32_t i = 0; writer->flags & KVS_WRITER_SINGLE && i < writer->made_count; i++) {
            struct kvs_writer_extent *made = writer->made[i];
            for (uint32_t layer = 0;
                 layer < writer->ns->layer_count && made->state == KVS_MADE_READY; layer++) {
                struct kvs_region *region = made->extent->regions[layer];
                if (region && !made->layer_sent[layer]) {
                    region->behind = NULL;
                }
            }
            kvs_made_send_locked(writer, made);
        }
    }
}

static void staged_release_locked(struct kvs_store *store, struct kvs_region *region)
{
    store->staging_bytes -= region->bytes;
    kvs_region_drop_locked(store, region); /* the reference of the staging itself */
}

/* A region is a RAM hit from now on, evictable, if it reached the disk. */
static void staged_end_locked(struct kvs_writer *writer, const struct kvs_writer_extent *made,
                              struct kvs_region *region, int error)
{
    struct kvs_store *store = writer->store;
    int dropped = made->state == KVS_MADE_DROPPED;
    if (!error) {
        writer->stats.bytes_written += (uint64_t)made->count * region->cell_bytes;
        store->stats.written_bytes += (uint64_t)made->count * region->cell_bytes;
    }
    region->behind = NULL;
    region->count = (uint8_t)made->count;
    region->good = dropped ? 0 : region->count;
    region->state = dropped ? KVS_REGION_BAD : KVS_REGION_READY;
    staged_release_locked(store, region);
    kvs_region_drop_locked(store, region);
}

void kvs_made_written(struct kvs_transfer *write)
{
    struct kvs_writer *writer = write->writer;
    struct kvs_writer_extent *made = write->made;
    struct kvs_store *store = writer->store;
    kvs_lock(store);
    made->writes_in_flight--;
    store->writes_in_flight--;
    if (write->error) {
        if (write->error == -ENOSPC || write->error == -EDQUOT) {
            store->roots[made->root].writes_full = 1;
        }
        kvs_made_drop_locked(writer, made);
    }
    for (struct kvs_region *region = write->region, *behind; region; region = behind) {
        behind = region->behind;
        staged_end_locked(writer, made, region, write->error);
    }
    if (made->state == KVS_MADE_DROPPED) {
        kvs_made_drop_locked(writer, made); /* the last write out closes the file */
    }
    kvs_writer_progress_locked(writer);
    kvs_writer_drop_locked(writer);
    pthread_cond_broadcast(&store->changed);
    kvs_unlock(store);
    free(write);
}

/* Staged regions that are not on their way to the disk. */
void kvs_stage_clear_locked(struct kvs_writer *writer, struct kvs_writer_extent *made)
{
    for (uint32_t i = 0; i < writer->ns->layer_count; i++) {
        struct kvs_region *region = made->extent->regions[i];
        if (region && region->state == KVS_REGION_STAGING && !made->layer_sent[i]) {
            region->state = KVS_REGION_BAD;
            region->behind = NULL;
            staged_release_locked(writer->store, region);
        }
    }
}
