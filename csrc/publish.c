/*
 * publish.c: the file of an extent: made without a name, filled, then linked under a key.
 *
 * Runs on file workers. Nobody sees a file before its last byte and its times are written; a file
 * is never changed after it has a name.
 *
 * When the name is taken: the winner covers our blocks: renew it and drop ours. It is shorter or
 * branches: ours is linked under the first of its keys that the winner lacks. It is torn or foreign:
 * it is moved aside and ours takes the name.
 *
 * Invariants:
 *   1. Bytes are charged before fallocate and refunded when the file is given up.
 *   2. Every try for a name moves forward in the extent's keys or removes what stood in the way.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store.h"

/* ---- birth ---- */

struct birth {
    struct kvs_writer *writer; /* held */
    struct kvs_writer_extent *made;
};

static int extras_present(const struct kvs_writer *writer, const struct kvs_writer_extent *made)
{
    static const struct kvs_key none;
    for (uint32_t i = 0; writer->extras && i < made->count; i++) {
        if (memcmp(&writer->extras[made->first + i], &none, sizeof(none)) != 0) {
            return 1;
        }
    }
    return 0;
}

static int bucket_make(struct kvs_root *root, struct kvs_namespace *ns, const struct kvs_key *key,
                       char *path)
{
    struct kvs_store *store = root->store;
    uint32_t bucket;
    kvs_bucket_of(ns, key, path, &bucket);
    uint8_t bit = (uint8_t)(1u << (bucket % 8));
    kvs_lock(store);
    int there = ns->bucket_made[root->number][bucket / 8] & bit;
    kvs_unlock(store);
    int error = there ? 0 : store->fs->calls->make_directory(store->fs, root->fd, path);
    kvs_lock(store);
    if (error == 0) {
        ns->bucket_made[root->number][bucket / 8] |= bit;
    }
    ns->bucket_dirty[root->number][bucket / 8] |= bit;
    kvs_unlock(store);
    return error;
}

/* A peer publishes only while an owner keeps the root in bounds. */
static int owner_missing(struct kvs_root *root)
{
    char holder[128];
    if (root->is_owner) {
        return 0;
    }
    int lock_fd;
    struct kvs_fs *fs = root->store->fs;
    int error = fs->calls->lock(fs, root->fd, "owner.lock", holder, sizeof(holder), &lock_fd);
    if (error == 0) {
        fs->calls->unlock(fs, root->fd, "owner.lock", lock_fd);
    }
    return error != -EBUSY;
}

/* A file system may be fuller than it says (or out of inodes): evict and try again while that
 * makes progress, a bounded number of times. */
static int file_allocate(struct kvs_root *root, int fd, uint64_t bytes)
{
    struct kvs_fs *fs = root->store->fs;
    int error = fs->calls->allocate(fs, fd, bytes);
    for (int i = 0; (error == -ENOSPC || error == -EDQUOT) && i < 8; i++) {
        if (kvs_evict_one(root, 1) < 0) {
            break;
        }
        error = fs->calls->allocate(fs, fd, bytes);
    }
    return error;
}

static int file_make(struct kvs_root *root, struct kvs_writer *writer,
                     struct kvs_writer_extent *made, struct kvs_fs_temp *temp)
{
    struct kvs_fs *fs = root->store->fs;
    char bucket[KVS_PATH_BYTES], fallback[KVS_PATH_BYTES];
    int error = bucket_make(root, writer->ns, &writer->keys[made->first], bucket);
    if (error < 0) {
        return error;
    }
    snprintf(fallback, sizeof(fallback), "%s/tmp", writer->ns->name);
    error = fs->calls->open_temp(fs, root->fd, bucket, fallback, temp);
    if (error < 0) {
        return error;
    }
    error = file_allocate(root, temp->fd, made->file_bytes);
    if (error < 0) {
        fs->calls->close(fs, temp->fd);
        if (temp->name[0]) {
            fs->calls->unlink(fs, root->fd, temp->name);
        }
        temp->fd = -1;
    }
    return error;
}

static void create_job(struct kvs_root *root, void *argument)
{
    struct birth birth = *(struct birth *)argument;
    struct kvs_writer *writer = birth.writer;
    struct kvs_writer_extent *made = birth.made;
    struct kvs_store *store = root->store;
    struct kvs_fs_temp temp = {.fd = -1};
    free(argument);
    made->with_extras = (uint32_t)extras_present(writer, made);
    int error = kvs_format_geometry(writer->ns->layer_count, writer->ns->cell_bytes, made->count,
                                    (int)made->with_extras, &made->header_bytes,
                                    made->region_offsets, &made->file_bytes);
    if (!error && owner_missing(root)) {
        error = -EPERM;
    }
    if (!error) {
        error = kvs_room_charge(root, made->file_bytes);
        made->charged_bytes = error ? 0 : made->file_bytes;
    }
    if (!error) {
        error = file_make(root, writer, made, &temp);
    }
    kvs_lock(store);
    made->temp = temp;
    if (made->state == KVS_MADE_CREATING && !error) {
        made->state = KVS_MADE_READY;
        kvs_made_send_locked(writer, made);
    } else {
        made->state = made->state == KVS_MADE_CREATING ? KVS_MADE_FRESH : made->state;
        kvs_made_drop_locked(writer, made);
    }
    kvs_writer_progress_locked(writer);
    kvs_writer_drop_locked(writer);
    kvs_unlock(store);
}

void kvs_made_create_locked(struct kvs_writer *writer, struct kvs_writer_extent *made)
{
    if (made->state != KVS_MADE_FRESH) {
        return;
    }
    made->extent->block_count = (uint8_t)made->count;
    struct birth *birth = malloc(sizeof(*birth));
    if (!birth) {
        kvs_made_drop_locked(writer, made);
        return;
    }
    *birth = (struct birth){writer, made};
    made->state = KVS_MADE_CREATING;
    kvs_writer_hold_locked(writer);
    if (kvs_job_add_locked(&writer->store->roots[made->root], create_job, birth, 0) < 0) {
        made->state = KVS_MADE_FRESH;
        kvs_made_drop_locked(writer, made);
        kvs_writer_drop_locked(writer);
        free(birth);
    }
}

/* ---- giving up ---- */

struct discard {
    struct kvs_fs_temp temp;
    uint64_t bytes;
};

static void discard_job(struct kvs_root *root, void *argument)
{
    struct discard *discard = argument;
    struct kvs_fs *fs = root->store->fs;
    if (discard->temp.fd >= 0) {
        fs->calls->close(fs, discard->temp.fd);
        if (discard->temp.name[0]) {
            fs->calls->unlink(fs, root->fd, discard->temp.name);
        }
    }
    kvs_lock(root->store);
    kvs_room_refund_locked(root, discard->bytes);
    kvs_unlock(root->store);
    free(discard);
}

static void discard_later_locked(struct kvs_root *root, struct kvs_writer_extent *made)
{
    struct discard *discard = malloc(sizeof(*discard));
    if ((made->temp.fd < 0 && made->charged_bytes == 0) || !discard) {
        free(discard);
        return;
    }
    *discard = (struct discard){made->temp, made->charged_bytes};
    made->temp.fd = -1;
    made->charged_bytes = 0;
    if (kvs_job_add_locked(root, discard_job, discard, 0) < 0) {
        free(discard);
    }
}

/* May be called again: what could not be given back while writes were in flight goes then. */
void kvs_made_drop_locked(struct kvs_writer *writer, struct kvs_writer_extent *made)
{
    struct kvs_store *store = writer->store;
    if (made->state == KVS_MADE_PUBLISHED) {
        return;
    }
    if (made->state != KVS_MADE_DROPPED) {
        int creating = made->state == KVS_MADE_CREATING;
        made->state = KVS_MADE_DROPPED;
        writer->stats.blocks_dropped += made->count;
        store->stats.dropped_blocks += made->count;
        kvs_stage_clear_locked(writer, made);
        if (creating) {
            return; /* the create job comes back here */
        }
    }
    if (made->writes_in_flight == 0) {
        discard_later_locked(&store->roots[made->root], made);
    }
}

/* ---- a name ---- */

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
        header->created_s = store->clock->wall_s(store->clock);
        header->ttl_s = class->ttl_s;
        memcpy(header->keys, &writer->keys[made->first], made->count * sizeof(header->keys[0]));
        for (uint32_t layer = 0; layer < ns->layer_count; layer++) {
            memcpy(&checksums[(size_t)layer * made->count],
                   &made->checksums[(size_t)layer * made->count_max],
                   made->count * sizeof(*checksums));
        }
        kvs_format_encode(header, ns->cell_bytes, checksums,
                          made->with_extras ? &writer->extras[made->first] : NULL, buffer);
        error = store->fs->calls->write_at(store->fs, made->temp.fd, buffer, made->header_bytes, 0);
        made->extent->created_s = header->created_s;
    }
    free(checksums);
    free(buffer);
    free(header);
    return error;
}

/* How many of our blocks from `named` on the winner of that name has, and holds it for good. */
static uint32_t winner_renew(struct kvs_root *root, struct kvs_writer *writer,
                             struct kvs_writer_extent *made, uint32_t named, int *aside)
{
    struct kvs_store *store = root->store;
    const struct kvs_key *ours = &writer->keys[made->first + named];
    struct kvs_extent *winner = NULL;
    uint32_t followed = 0;
    enum kvs_reason reason = kvs_adopt(root, writer->ns, ours, &winner);
    /* Adopting moved a damaged or foreign file aside; one that vanished left the name free. */
    *aside = reason == KVS_REASON_DAMAGED || reason == KVS_REASON_FOREIGN ||
             reason == KVS_REASON_ABSENT;
    if (reason) {
        return 0;
    }
    kvs_lock(store);
    followed = kvs_extent_follow_locked(winner, winner->named, ours, made->count - named);
    kvs_extent_touch_locked(store, winner, writer->class_number);
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
    uint32_t tries = 0;
    *named = 0;
    while (*named < made->count && tries++ < 2 * KVS_EXTENT_BLOCKS_MAX) {
        const struct kvs_key *key = &writer->keys[made->first + *named];
        kvs_path_of(writer->ns, key, path);
        if (bucket_make(root, writer->ns, key, bucket) < 0) {
            return FAILED;
        }
        int error = fs->calls->link(fs, root->fd, &made->temp, path);
        if (error == 0) {
            return NAMED;
        }
        if (error != -EEXIST) {
            return FAILED;
        }
        int aside = 0;
        uint32_t followed = winner_renew(root, writer, made, *named, &aside);
        if (followed == 0 && !(aside && root->is_owner)) {
            return FAILED;
        }
        *named += followed;
    }
    return *named == made->count ? COVERED : FAILED;
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
    extent->scanned = 1;
    if (!(writer->flags & KVS_WRITER_SINGLE)) {
        extent->start = made->first;
    }
    /* From here on the file is charged with what it really takes. */
    extent->physical_bytes = stat->physical_bytes ? stat->physical_bytes : made->charged_bytes;
    root->used_bytes += extent->physical_bytes;
    kvs_room_refund_locked(root, made->charged_bytes);
    made->charged_bytes = 0;
    made->state = KVS_MADE_PUBLISHED;
    writer->stats.extents++;
    store->stats.published_extents++;
    if (kvs_extent_publish_locked(store, extent) < 0) {
        extent->state = KVS_EXTENT_GONE; /* on disk, not in the index: found by name or rescan */
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
    int error = header_write(root, writer, made);
    kvs_lock(store);
    extent->last_use_s = extent->written_use_s = kvs_store_now_s(store);
    extent->valid_until_s = extent->last_use_s + store->classes[writer->class_number].ttl_s;
    kvs_unlock(store);
    if (!error) {
        error = fs->calls->set_times(fs, made->temp.fd, extent->last_use_s, extent->valid_until_s);
    }
    if (!error) {
        error = fs->calls->stat_fd(fs, made->temp.fd, &stat);
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
    kvs_writer_end_locked(writer, KVS_REASON_NONE);
    kvs_writer_drop_locked(writer);
    kvs_unlock(store);
}

/* ---- flush ---- */

static int flush_namespace(struct kvs_root *root, struct kvs_namespace *ns)
{
    struct kvs_store *store = root->store;
    char path[KVS_PATH_BYTES];
    int result = 0;
    for (uint32_t bucket = 0; bucket < KVS_BUCKETS; bucket++) {
        uint8_t bit = (uint8_t)(1u << (bucket % 8));
        uint8_t *dirty = &ns->bucket_dirty[root->number][bucket / 8];
        kvs_lock(store);
        int sync = *dirty & bit;
        *dirty = (uint8_t)(*dirty & ~bit);
        kvs_unlock(store);
        if (sync) {
            snprintf(path, sizeof(path), "%s/%03x", ns->name, bucket);
            int error = store->fs->calls->sync_directory(store->fs, root->fd, path);
            result = result ? result : error;
        }
    }
    int error = store->fs->calls->sync_directory(store->fs, root->fd, ns->name);
    return result ? result : error == -ENOENT ? 0 : error;
}

static void flush_job(struct kvs_root *root, void *argument)
{
    struct kvs_ticket *ticket = argument;
    struct kvs_store *store = root->store;
    int result = 0;
    for (uint32_t i = 0; i < store->root_count; i++) {
        kvs_lock(store);
        uint32_t count = store->namespace_count;
        kvs_unlock(store);
        for (uint32_t j = 0; j < count; j++) {
            kvs_lock(store);
            struct kvs_namespace *ns = store->namespaces[j];
            kvs_unlock(store);
            int error = flush_namespace(&store->roots[i], ns);
            result = result ? result : error;
        }
    }
    kvs_lock(store);
    kvs_ticket_finish_locked(ticket, result);
    kvs_ticket_drop_locked(ticket);
    kvs_unlock(store);
}

int kvs_flush(struct kvs_store *store, struct kvs_ticket **out)
{
    int error = kvs_store_check(store);
    if (error) {
        return error;
    }
    struct kvs_ticket *ticket = kvs_ticket_open(store, 2);
    if (!ticket) {
        return -ENOMEM;
    }
    kvs_lock(store);
    error = store->closing ? -ESHUTDOWN
                           : kvs_job_add_locked(&store->roots[0], flush_job, ticket, 0);
    if (error) {
        kvs_ticket_drop_locked(ticket);
        kvs_ticket_drop_locked(ticket);
    }
    kvs_unlock(store);
    if (!error) {
        *out = ticket;
    }
    return error;
}
