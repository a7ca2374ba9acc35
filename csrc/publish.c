/*
 * publish.c: a whole file gets its header, its times and then a name.
 *
 * Runs on file workers. Nobody sees a file before its last byte and its times are written; a file
 * is never changed after it has a name.
 *
 * When the name is taken: the winner covers our blocks: renew it and drop ours. It is shorter or
 * branches: ours is linked under the first of its keys that the winner lacks. It is torn or
 * foreign: it is moved aside and ours takes the name.
 *
 * Invariant: every try for a name moves forward in the extent's keys or removes what stood in the
 * way, so naming ends.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "buckets.h"
#include "store.h"

static int header_write(struct kvs_root *root, struct kvs_writer *writer,
                        struct kvs_writer_extent *made)
{
    struct kvs_store *store = root->store;
    struct kvs_namespace *ns = writer->ns;
    struct kvs_extent_header *header = calloc(1, sizeof(*header));
    void *buffer = aligned_alloc(KVS_FORMAT_PAGE_BYTES, made->header_bytes);
    uint64_t *checksums = malloc((size_t)ns->layer_count * made->count * sizeof(*checksums));
    int error = -ENOMEM;
    if (header && buffer && checksums) {
        int single = writer->flags & KVS_WRITER_SINGLE;
        const struct kvs_class *class = &store->classes[writer->class_number];
        header->layer_count = ns->layer_count;
        header->block_count = made->count;
        header->block_tokens = ns->block_tokens;
        header->header_bytes = made->header_bytes;
        header->file_bytes = made->file_bytes;
        memcpy(header->fingerprint, ns->fingerprint, sizeof(header->fingerprint));
        header->start = single ? KVS_FORMAT_START_UNKNOWN : made->first;
        header->parent_known = !single && made->first > 0;
        if (header->parent_known) {
            header->parent = writer->keys[made->first - 1];
        }
        memcpy(header->class_name, class->name, sizeof(header->class_name));
        header->created_s = kvs_store_now_s(store);
        header->ttl_s = class->ttl_s;
        memcpy(header->keys, &writer->keys[made->first], made->count * sizeof(header->keys[0]));
        for (uint32_t layer = 0; layer < ns->layer_count; layer++) {
            memcpy(&checksums[(size_t)layer * made->count],
                   &made->checksums[(size_t)layer * made->count_max],
                   made->count * sizeof(*checksums));
        }
        kvs_format_encode(
            header, ns->cell_bytes, checksums,
            made->with_extras ? &writer->extras[made->first] : NULL,
            made->with_ids ? &writer->token_ids[made->first * ns->block_tokens] : NULL, buffer);
        error = store->fs->calls->write_at(store->fs, made->temp.fd, buffer, made->header_bytes, 0);
        made->extent->created_s = header->created_s;
    }
    free(checksums);
    free(buffer);
    free(header);
    return error;
}

/* 0: the name is free. */
static int winner_move(struct kvs_root *root, struct kvs_namespace *ns, const struct kvs_key *name,
                       enum kvs_reason reason)
{
    char path[KVS_PATH_BYTES];
    if (reason == KVS_REASON_FOREIGN) {
        return kvs_refused_move(root, ns, name);
    }
    kvs_path_of(ns, name, path);
    kvs_judge_begin(root);
    int error = kvs_quarantine_move(root, path);
    kvs_judge_end(root);
    return error;
}

/* How many of our blocks from `named` on the winner of that name has, and holds it for good. */
static uint32_t winner_renew(struct kvs_root *root, struct kvs_writer *writer,
                             struct kvs_writer_extent *made, uint32_t named, int *retry)
{
    struct kvs_store *store = root->store;
    const struct kvs_key *ours = &writer->keys[made->first + named];
    struct kvs_extent *winner = NULL;
    uint32_t followed = 0;
    enum kvs_reason reason = kvs_adopt(root, writer->ns, ours, 1, &winner);
    if (reason == KVS_REASON_IO_ERROR) { /* once may be chance */
        reason = kvs_adopt(root, writer->ns, ours, 1, &winner);
    }
    /* A file that vanished left the name free; the owner moves aside what is damaged (adopt.c has),
     * foreign or cannot be read. */
    int moves = reason == KVS_REASON_FOREIGN || reason == KVS_REASON_IO_ERROR;
    *retry = reason == KVS_REASON_ABSENT || (reason == KVS_REASON_DAMAGED && root->is_owner);
    if (moves && root->is_owner) {
        *retry = winner_move(root, writer->ns, ours, reason) == 0;
    }
    if (reason) {
        return 0;
    }
    kvs_lock(store);
    *retry = winner->state != KVS_EXTENT_LIVE; /* gone a moment ago: deleted, or replaced */
    if (!*retry) {
        followed = kvs_extent_follow_locked(winner, winner->named, ours, made->count - named);
        kvs_extent_touch_locked(store, winner, writer->class_number);
    }
    kvs_extent_unpin_locked(store, winner);
    kvs_unlock(store);
    return followed;
}

enum naming { NAMED, COVERED, FAILED };

/* Links the file under the first of its keys that nobody holds yet. */
static enum naming name_take(struct kvs_root *root, struct kvs_writer *writer,
                             struct kvs_writer_extent *made, uint32_t *named)
{
    struct kvs_fs *fs = root->store->fs;
    char path[KVS_PATH_BYTES], bucket[KVS_PATH_BYTES];
    uint32_t tries = 0, evictions = 0;
    *named = 0;
    while (*named < made->count && tries++ < 2 * KVS_EXTENT_BLOCKS_MAX) {
        const struct kvs_key *key = &writer->keys[made->first + *named];
        kvs_path_of(writer->ns, key, path);
        int error = kvs_bucket_make(root, writer->ns, key, bucket);
        if (error == 0) {
            kvs_name_clear(root, writer->ns, key);
            error = fs->calls->link(fs, root->fd, &made->temp, path);
            if (error == 0) {
                return NAMED;
            }
        }
        if (kvs_evict_helps(root, error, &evictions)) {
            continue; /* a directory needed a block or an inode */
        }
        if (error == -ENOENT || error == -ENOTDIR) {
            kvs_bucket_forget(root, writer->ns, key); /* its directory was taken from under us */
            continue;
        }
        if (error != -EEXIST) {
            return FAILED;
        }
        int retry = 0;
        uint32_t followed = winner_renew(root, writer, made, *named, &retry);
        if (followed == 0 && !retry) {
            return FAILED;
        }
        *named += followed;
    }
    return *named == made->count ? COVERED : FAILED;
}

/* Between link and here another worker may have adopted the file by its name. One file is one
 * extent: that record goes, and what it was renewed to is kept. */
static void adopted_replace_locked(struct kvs_root *root, struct kvs_extent *ours)
{
    struct kvs_store *store = root->store;
    struct kvs_extent *adopted =
        kvs_extent_named_locked(store, root->number, ours->ns, &ours->name);
    if (!adopted) {
        return;
    }
    if (adopted->valid_until_s > ours->valid_until_s) {
        ours->valid_until_s = adopted->valid_until_s;
    }
    kvs_room_refund_locked(root, adopted->physical_bytes);
    adopted->physical_bytes = 0;
    kvs_extent_forget_locked(store, adopted, KVS_REASON_NONE);
}

static void published_locked(struct kvs_writer *writer, struct kvs_writer_extent *made,
                             uint32_t named, const struct kvs_fs_stat *stat)
{
    struct kvs_store *store = writer->store;
    struct kvs_root *root = &store->roots[made->root];
    struct kvs_extent *extent = made->extent;
    for (uint32_t i = 0; i < made->count; i++) {
        extent->tags[i] = kvs_tag(writer->ns, &writer->keys[made->first + i]);
    }
    extent->named = (uint8_t)named;
    extent->name = writer->keys[made->first + named];
    extent->class_number = writer->class_number;
    if (!(writer->flags & KVS_WRITER_SINGLE)) {
        extent->start = (uint32_t)made->first;
    }
    /* From here on the file is charged with what it really takes. */
    extent->physical_bytes = stat->physical_bytes ? stat->physical_bytes : made->charged_bytes;
    root->used_bytes += extent->physical_bytes;
    kvs_room_refund_locked(root, made->charged_bytes);
    made->charged_bytes = 0;
    made->state = KVS_MADE_PUBLISHED;
    adopted_replace_locked(root, extent);
    writer->stats.extents++;
    store->stats.published_extents++;
    if (kvs_extent_publish_locked(store, extent) < 0) {
        /* On disk, not in the index: found by name or rescan, and charged then. */
        extent->state = KVS_EXTENT_GONE;
        kvs_room_refund_locked(root, extent->physical_bytes);
    }
}

static int publish_one(struct kvs_writer *writer, struct kvs_writer_extent *made)
{
    struct kvs_store *store = writer->store;
    struct kvs_root *root = &store->roots[made->root];
    struct kvs_fs *fs = store->fs;
    struct kvs_extent *extent = made->extent;
    struct kvs_fs_stat stat;
    uint32_t named = 0;
    kvs_worker_at(root);
    int error = header_write(root, writer, made);
    kvs_lock(store);
    root->device_written_bytes += error ? 0 : made->header_bytes;
    extent->last_use_s = extent->written_use_s = kvs_store_now_s(store);
    extent->valid_until_s = extent->last_use_s + store->classes[writer->class_number].ttl_s;
    extent->times_ours = 1;
    kvs_unlock(store);
    if (!error) {
        error = fs->calls->set_times(fs, made->temp.fd, extent->last_use_s, extent->valid_until_s);
    }
    if (!error) {
        error = fs->calls->stat_fd(fs, made->temp.fd, &stat);
    }
    uint32_t lost = root->lost | __atomic_load_n(&fs->lost, __ATOMIC_RELAXED);
    if (!error && lost & KVS_FS_LOST_DIRECT) {
        /* Not every file system without it passes a later flush() on to where its data goes. */
        error = fs->calls->sync_file(fs, made->temp.fd);
    }
    enum naming naming = error ? FAILED : name_take(root, writer, made, &named);
    kvs_lock(store);
    if (naming == NAMED) {
        published_locked(writer, made, named, &stat);
    } else {
        if (naming == COVERED) {
            store->stats.lost_to_eexist_bytes += made->file_bytes;
        }
        kvs_made_drop_locked(writer, made);
        if (naming == COVERED) { /* not dropped for want of anything: the blocks are there */
            writer->stats.blocks_dropped -= made->count;
            store->stats.dropped_blocks -= made->count;
        }
    }
    kvs_unlock(store);
    if (naming == NAMED) {
        fs->calls->close(fs, made->temp.fd);
        made->temp.fd = -1;
    }
    return naming == FAILED ? -EIO : 0;
}

void kvs_publish_job(struct kvs_root *root, void *argument)
{
    struct kvs_writer *writer = argument;
    struct kvs_store *store = root->store;
    for (uint32_t i = 0; i < writer->made_count; i++) {
        kvs_lock(store);
        int ready = writer->made[i]->state == KVS_MADE_READY;
        kvs_unlock(store);
        if (!ready || publish_one(writer, writer->made[i]) < 0) {
            break;
        }
    }
    kvs_lock(store);
    kvs_chain_touch_locked(store, writer->ns, writer->keys, writer->count, writer->class_number);
    kvs_writer_end_locked(writer);
    kvs_writer_drop_locked(writer);
    kvs_unlock(store);
}
