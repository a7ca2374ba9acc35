/*
 * birth.c: an extent to be made, before it has a name: its record, room in the budget, a nameless
 * file of the final length, and giving all of it back when the extent is dropped.
 *
 * Runs on file workers, except where a name ends in _locked (any thread).
 *
 * Invariants:
 *   1. Bytes are charged before fallocate and refunded when the file is given up.
 *   2. A dropped extent gives its file back only after the last write on it came back.
 *   3. Of one writer and root one file is made at a time, in the order of the chain: the last room
 *      goes to the block that comes first, without which those behind it would not be published.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buckets.h"
#include "store.h"

struct kvs_discard {
    struct kvs_job job; /* the first: a worker frees both */
    struct kvs_fs_temp temp;
    uint64_t bytes;
};

void kvs_made_free(struct kvs_writer_extent *made)
{
    free(made->discard);
    free(made->have);
    free(made->layer_sent);
    free(made->layer_have);
    free(made->checksums);
    free(made->region_offsets);
    free(made);
}

uint32_t kvs_place_of_locked(struct kvs_store *store, const struct kvs_key *key)
{
    uint8_t order[KVS_ROOTS_MAX];
    uint32_t at = 0;
    kvs_root_order(store, key, order);
    while (at + 1 < store->root_count && kvs_root_down_locked(&store->roots[order[at]])) {
        at++;
    }
    return order[at];
}

void kvs_made_place_locked(struct kvs_writer *writer, struct kvs_writer_extent *made)
{
    made->root = kvs_place_of_locked(writer->store, &writer->keys[made->first]);
    if (made->extent) {
        made->extent->root = (uint8_t)made->root;
    }
}

int kvs_made_new_locked(struct kvs_writer *writer, uint64_t first, uint32_t count,
                        uint32_t count_max, int fixed)
{
    struct kvs_namespace *ns = writer->ns;
    struct kvs_writer_extent **grown =
        realloc(writer->made, (writer->made_count + 1) * sizeof(*grown));
    struct kvs_writer_extent *made = calloc(1, sizeof(*made));
    if (grown) {
        writer->made = grown;
    }
    if (!grown || !made) {
        free(made);
        return -ENOMEM;
    }
    size_t cells = (size_t)ns->layer_count * count_max;
    made->have = calloc(cells, 1);
    made->layer_sent = calloc(ns->layer_count, 1);
    made->layer_have = calloc(ns->layer_count, sizeof(*made->layer_have));
    made->checksums = calloc(cells, sizeof(*made->checksums));
    made->region_offsets = calloc(ns->layer_count, sizeof(*made->region_offsets));
    made->first = first;
    kvs_made_place_locked(writer, made);
    if (!made->have || !made->layer_sent || !made->layer_have || !made->checksums ||
        !made->region_offsets ||
        kvs_extent_add_locked(writer->store, ns, made->root, count_max, &made->extent) < 0) {
        kvs_made_free(made);
        return -ENOMEM;
    }
    made->extent->regions = calloc(ns->layer_count, sizeof(*made->extent->regions));
    if (!made->extent->regions) {
        kvs_extent_unpin_locked(writer->store, made->extent);
        kvs_made_free(made);
        return -ENOMEM;
    }
    made->count = count;
    made->count_max = count_max;
    made->fixed = (uint8_t)fixed;
    made->temp.fd = -1;
    for (uint32_t i = 0; i < ns->layer_count; i++) {
        made->cells_missing += ns->cell_bytes[i] ? count : 0;
    }
    grown[writer->made_count++] = made;
    return 0;
}

struct birth {
    struct kvs_writer *writer; /* held; its keys may move while it is extended */
    struct kvs_writer_extent *made;
    struct kvs_key first; /* key of its first block */
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

/* Token ids serve tools alone: an extent whose header they would make too long does without. */
static int geometry_of(const struct kvs_namespace *ns, struct kvs_writer_extent *made)
{
    int error = -EINVAL;
    if (made->with_ids) {
        error = kvs_format_geometry(ns->layer_count, ns->cell_bytes, made->count,
                                    (int)made->with_extras, ns->block_tokens, &made->header_bytes,
                                    made->region_offsets, &made->file_bytes);
        made->with_ids = error == 0;
    }
    if (error) {
        error = kvs_format_geometry(ns->layer_count, ns->cell_bytes, made->count,
                                    (int)made->with_extras, 0, &made->header_bytes,
                                    made->region_offsets, &made->file_bytes);
    }
    return error;
}

/* A peer publishes only while an owner keeps the root in bounds. */
static int owner_missing(struct kvs_root *root)
{
    struct kvs_store *store = root->store;
    char holder[128];
    kvs_lock(store);
    int64_t now_ns = kvs_store_now_ns(store);
    int sure =
        root->is_owner || (root->owner_seen_ns && now_ns - root->owner_seen_ns < KVS_NS_PER_S);
    kvs_unlock(store);
    if (sure) {
        return 0;
    }
    int lock_fd;
    int error =
        store->fs->calls->lock(store->fs, root->fd, "owner.lock", holder, sizeof(holder), &lock_fd);
    if (error == 0) {
        store->fs->calls->unlock(store->fs, root->fd, "owner.lock", lock_fd);
    }
    kvs_lock(store);
    root->owner_seen_ns = error == -EBUSY ? now_ns : 0;
    kvs_unlock(store);
    return error != -EBUSY;
}

static int nameless_open(struct kvs_root *root, const struct birth *birth, struct kvs_fs_temp *temp)
{
    struct kvs_fs *fs = root->store->fs;
    char bucket[KVS_PATH_BYTES], fallback[KVS_PATH_BYTES];
    int error = kvs_bucket_make(root, birth->writer->ns, &birth->first, bucket);
    if (error < 0) {
        return error;
    }
    snprintf(fallback, sizeof(fallback), "%s/tmp", birth->writer->ns->name);
    error = fs->calls->open_temp(fs, root->fd, bucket, fallback, temp);
    if (error == -ENOENT || error == -ENOTDIR) {
        /* An operator removed or replaced the directory under us: make it again, once. */
        kvs_bucket_forget(root, birth->writer->ns, &birth->first);
        error = kvs_bucket_make(root, birth->writer->ns, &birth->first, bucket);
        error = error ? error : fs->calls->open_temp(fs, root->fd, bucket, fallback, temp);
    }
    return error;
}

/* A disk whose writes said that it is full, though it let us allocate. */
static void write_full_heal(struct kvs_root *root)
{
    uint32_t tries = 0;
    kvs_lock(root->store);
    int full = root->writes_full;
    root->writes_full = 0;
    kvs_unlock(root->store);
    if (full) {
        kvs_evict_helps(root, -ENOSPC, &tries);
    }
}

/* A file system may be fuller than it says, or out of inodes or quota. */
static int file_make(struct kvs_root *root, const struct birth *birth, struct kvs_fs_temp *temp)
{
    struct kvs_fs *fs = root->store->fs;
    uint32_t tries = 0;
    int error;
    write_full_heal(root);
    do {
        error = nameless_open(root, birth, temp);
    } while (error && kvs_evict_helps(root, error, &tries));
    if (error < 0) {
        return error;
    }
    do {
        error = fs->calls->allocate(fs, temp->fd, birth->made->file_bytes);
    } while (error && kvs_evict_helps(root, error, &tries));
    if (error < 0) {
        fs->calls->close(fs, temp->fd);
        if (temp->name[0]) {
            fs->calls->unlink(fs, root->fd, temp->name);
        }
        temp->fd = -1;
    }
    return error;
}

/* The next extent that waits for its file. One whose job cannot be added is dropped: go on. */
static void create_next_locked(struct kvs_writer *writer, uint32_t root)
{
    for (uint32_t i = 0; i < writer->made_count && !writer->creating[root]; i++) {
        if (writer->made[i]->wanted && writer->made[i]->root == root) {
            kvs_made_create_locked(writer, writer->made[i]);
        }
    }
}

static void create_job(struct kvs_root *root, void *argument)
{
    struct birth birth = *(struct birth *)argument;
    struct kvs_writer *writer = birth.writer;
    struct kvs_writer_extent *made = birth.made;
    struct kvs_store *store = root->store;
    struct kvs_fs_temp temp = {.fd = -1};
    free(argument);
    uint64_t charged_bytes = 0;
    kvs_lock(store);
    int dropped = made->state == KVS_MADE_DROPPED || kvs_root_down_locked(root);
    kvs_unlock(store);
    int error = dropped ? -ECANCELED : geometry_of(writer->ns, made);
    if (!error && owner_missing(root)) {
        error = -EPERM;
    }
    if (!error) {
        error = kvs_room_charge(root, made->file_bytes);
        charged_bytes = error ? 0 : made->file_bytes;
    }
    if (!error) {
        error = file_make(root, &birth, &temp);
    }
    kvs_lock(store);
    kvs_room_taken_locked(root, charged_bytes, !error);
    store->births--;
    writer->creating[root->number] = 0;
    create_next_locked(writer, root->number);
    made->temp = temp;
    made->charged_bytes = charged_bytes;
    if (made->state == KVS_MADE_CREATING && !error) {
        made->state = KVS_MADE_READY;
        kvs_made_send_locked(writer, made);
    } else {
        made->state = made->state == KVS_MADE_CREATING ? KVS_MADE_FRESH : made->state;
        kvs_made_drop_locked(writer, made);
    }
    kvs_writer_progress_locked(writer);
    kvs_writer_drop_locked(writer);
    pthread_cond_broadcast(&store->changed);
    kvs_unlock(store);
}

void kvs_made_create_locked(struct kvs_writer *writer, struct kvs_writer_extent *made)
{
    struct kvs_root *root = &writer->store->roots[made->root];
    /* Where the root is down, the one before may never be done, and this one's job says no. */
    int waits = writer->creating[made->root] && !kvs_root_down_locked(root);
    made->wanted = made->state == KVS_MADE_FRESH && waits;
    if (made->state != KVS_MADE_FRESH || made->wanted) {
        return;
    }
    made->extent->block_count = (uint8_t)made->count;
    struct birth *birth = malloc(sizeof(*birth));
    made->discard = calloc(1, sizeof(*made->discard));
    if (!birth || !made->discard) {
        free(birth);
        kvs_made_drop_locked(writer, made);
        return;
    }
    *birth = (struct birth){writer, made, writer->keys[made->first]};
    made->with_extras = (uint32_t)extras_present(writer, made);
    made->with_ids = made->first + made->count <= writer->id_blocks;
    made->state = KVS_MADE_CREATING;
    kvs_writer_hold_locked(writer);
    writer->store->births++;
    writer->creating[made->root] = 1;
    if (kvs_job_add_locked(root, create_job, birth, 0) < 0) {
        writer->store->births--;
        writer->creating[made->root] = 0;
        made->state = KVS_MADE_FRESH;
        kvs_made_drop_locked(writer, made);
        kvs_writer_drop_locked(writer);
        free(birth);
    }
}

/* ---- giving up ---- */

static void discard_job(struct kvs_root *root, void *argument)
{
    struct kvs_discard *discard = argument;
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
}

static void discard_later_locked(struct kvs_root *root, struct kvs_writer_extent *made)
{
    struct kvs_discard *discard = made->discard;
    if (made->temp.fd < 0 && made->charged_bytes == 0) {
        return;
    }
    discard->job =
        (struct kvs_job){.run = discard_job, .argument = discard, .bytes = made->charged_bytes};
    discard->temp = made->temp;
    discard->bytes = made->charged_bytes;
    made->discard = NULL;
    made->temp.fd = -1;
    made->charged_bytes = 0;
    kvs_job_put_close_locked(root, &discard->job);
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
        if (!memchr(made->layer_sent, 1, writer->ns->layer_count)) {
            kvs_admit_refund_locked(&store->roots[made->root],
                                    made->count * writer->ns->block_bytes);
        }
        kvs_stage_clear_locked(writer, made);
        if (creating) {
            return; /* the create job comes back here */
        }
    }
    if (made->writes_in_flight == 0) {
        discard_later_locked(&store->roots[made->root], made);
    }
}
