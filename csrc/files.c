/*
 * files.c: opening extent files, and a bounded cache of open ones.
 *
 * Opens and closes happen on file workers only. An open file carries what a load needs to judge
 * cells (header.c). Reads no cell.
 *
 * Invariants:
 *   1. A kvs_file exists while its extent points at it or refs > 0; its fd is closed by a job.
 *   2. Files being opened and files being read are at most file_max together: a small limit on
 *      descriptors makes loads slower, not short.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store.h"

enum { SPARE_MIN = 4 }; /* files open at once, however short descriptors are: loads wait for them */

void kvs_file_discard(struct kvs_file *file)
{
    struct kvs_fs *fs = file->root->store->fs;
    struct kvs_root *before = kvs_worker_at(file->root); /* it may be another root's file */
    fs->calls->close(fs, file->fd);
    kvs_worker_at(before);
    kvs_file_free(file);
}

static void close_job(struct kvs_root *root, void *argument)
{
    struct kvs_store *store = root->store;
    struct kvs_file *file = argument;
    uint64_t charged = file->charged_bytes;
    kvs_file_discard(file);
    kvs_lock(store);
    kvs_room_refund_locked(root, charged);
    kvs_unlock(store);
}

static void let_go(struct kvs_store *store, struct kvs_file *file)
{
    if (!file->extent && file->refs == 0) {
        kvs_list_remove(&file->lru);
        store->file_count--;
        struct kvs_job *job = file->close;
        file->close = NULL;
        *job = (struct kvs_job){.run = close_job, .argument = file, .bytes = file->charged_bytes};
        kvs_job_put_close_locked(file->root, job);
    }
}

void kvs_file_release_locked(struct kvs_store *store, struct kvs_extent *extent)
{
    struct kvs_file *file = extent->file;
    if (file) {
        extent->file = NULL;
        file->extent = NULL;
        let_go(store, file);
    }
}

void kvs_file_end(struct kvs_root *root, struct kvs_extent *extent)
{
    struct kvs_store *store = root->store;
    kvs_lock(store);
    struct kvs_file *file = extent->file;
    int unread = file && file->refs == 0;
    if (!file) {
        kvs_room_refund_locked(root, extent->physical_bytes);
    } else {
        file->charged_bytes = extent->physical_bytes;
        extent->file = NULL;
        file->extent = NULL;
    }
    if (unread) {
        kvs_list_remove(&file->lru);
        store->file_count--;
    }
    extent->physical_bytes = 0;
    kvs_unlock(store);
    if (unread) {
        close_job(root, file); /* here and now: who makes room waits for the bytes */
    }
}

void kvs_file_ref_locked(struct kvs_file *file)
{
    file->root->store->files_busy += file->refs++ == 0;
}

void kvs_file_drop_locked(struct kvs_store *store, struct kvs_file *file)
{
    store->files_busy -= --file->refs == 0;
    if (file->refs == 0 && store->files_refused) {
        store->files_refused = 0;
        kvs_wake_all(store); /* somebody waits for the place */
    }
    let_go(store, file);
}

struct kvs_file *kvs_file_hold_locked(struct kvs_store *store, struct kvs_extent *extent)
{
    struct kvs_file *file = extent->file;
    if (file) {
        kvs_file_ref_locked(file);
        kvs_list_add_first(&store->files, &file->lru);
    }
    return file;
}

/* The least recently used file that nobody reads, taken out of a cache that is over its limit. */
static struct kvs_file *excess_take_locked(struct kvs_store *store)
{
    struct kvs_link *at = store->files.prev;
    while (store->file_count > store->file_max && at != &store->files) {
        struct kvs_file *file = KVS_ENTRY(at, struct kvs_file, lru);
        at = at->prev;
        if (file->refs == 0 && file->extent) {
            file->extent->file = NULL;
            file->extent = NULL;
            kvs_list_remove(&file->lru);
            store->file_count--;
            return file;
        }
    }
    return NULL;
}

void kvs_files_trim(struct kvs_store *store)
{
    struct kvs_file *file;
    do {
        kvs_lock(store);
        file = excess_take_locked(store);
        kvs_unlock(store);
        if (file) {
            kvs_file_discard(file);
        }
    } while (file);
}

int kvs_files_spare(struct kvs_store *store)
{
    kvs_lock(store);
    uint32_t count = store->file_count;
    uint32_t fewer = count / 2 > SPARE_MIN ? count / 2 : SPARE_MIN;
    store->file_max = fewer < store->file_max ? fewer : store->file_max;
    for (struct kvs_link *at = store->loads.next; at != &store->loads; at = at->next) {
        /* What a load holds for its later layers would fill all places that are left. */
        kvs_load_files_return_locked(KVS_ENTRY(at, struct kvs_load, link));
    }
    kvs_unlock(store);
    kvs_files_trim(store);
    kvs_lock(store);
    int closed = store->file_count < count;
    kvs_unlock(store);
    return closed;
}

int kvs_file_attach_locked(struct kvs_store *store, struct kvs_extent *extent,
                           struct kvs_file *file)
{
    /* While closing nobody would close it; a gone extent's bytes are given back already; a file of
     * another length is not the one the index knows. */
    if (store->closing || extent->state == KVS_EXTENT_GONE ||
        file->block_count != extent->block_count) {
        return -ESTALE;
    }
    kvs_file_release_locked(store, extent);
    extent->file = file;
    file->extent = extent;
    kvs_list_add_first(&store->files, &file->lru);
    store->file_count++;
    return 0;
}

/* Not the extent that the index knows: another one has its name. */
static int replaced(const struct kvs_extent *extent, const struct kvs_extent_header *header)
{
    int differs = header->block_count != extent->block_count;
    for (uint32_t i = 0; !differs && i < header->block_count; i++) {
        differs = kvs_tag(extent->ns, &header->keys[i]) != extent->tags[i];
    }
    return differs;
}

/* Opened for an extent that the index knows. ABSENT: its file is gone, perhaps for another one. */
static enum kvs_reason open_known(struct kvs_root *root, struct kvs_extent *extent,
                                  struct kvs_file **out)
{
    char path[KVS_PATH_BYTES];
    struct kvs_extent_header *header = malloc(sizeof(*header));
    struct kvs_fs_stat stat;
    if (!header) {
        return KVS_REASON_BUSY;
    }
    kvs_path_of(extent->ns, &extent->name, path);
    enum kvs_reason reason = kvs_file_open(root, extent->ns, path, header, &stat, out);
    if (!reason && replaced(extent, header)) {
        /* Another whole extent: good under this name if it holds it, and not the one we know. */
        reason = kvs_header_has_key(header, &extent->name) ? KVS_REASON_ABSENT : KVS_REASON_DAMAGED;
        kvs_file_discard(*out);
        *out = NULL;
    }
    free(header);
    return reason;
}

static void open_job(struct kvs_root *root, void *argument)
{
    struct kvs_store *store = root->store;
    struct kvs_extent *extent = argument;
    struct kvs_namespace *ns = extent->ns;
    struct kvs_key name = extent->name;
    struct kvs_file *file = NULL;
    kvs_lock(store);
    int again = extent->unreadable;
    kvs_unlock(store);
    int64_t begun_ns = kvs_store_now_ns(store);
    enum kvs_reason reason = open_known(root, extent, &file);
    int64_t took_ns = kvs_store_now_ns(store) - begun_ns;
    kvs_lock(store);
    kvs_latency_note(&store->latencies[KVS_STAGE_OPEN], took_ns);
    if (!reason && kvs_file_attach_locked(store, extent, file) == 0) {
        file = NULL;
    } else if (!reason) {
        reason = store->closing ? KVS_REASON_CLOSED : KVS_REASON_EVICTED;
    } else if (reason == KVS_REASON_DAMAGED) {
        kvs_quarantine_locked(store, extent, reason);
    } else if (reason == KVS_REASON_IO_ERROR && extent->state == KVS_EXTENT_LIVE) {
        kvs_extent_unreadable_locked(root, extent, again);
    } else if (reason == KVS_REASON_ABSENT || reason == KVS_REASON_FOREIGN) {
        /* Another process or an operator removed or replaced it: its bytes are free already. */
        kvs_room_refund_locked(root, extent->physical_bytes);
        extent->physical_bytes = 0;
        kvs_extent_forget_locked(store, extent,
                                 reason == KVS_REASON_ABSENT ? KVS_REASON_EVICTED : reason);
    }
    extent->opening = 0;
    store->files_opening--;
    extent->open_reason = (uint8_t)reason;
    kvs_extent_unpin_locked(store, extent);
    kvs_wake_all(store);
    kvs_unlock(store);
    if (file) {
        kvs_file_discard(file);
    }
    struct kvs_extent *found;
    if (reason == KVS_REASON_ABSENT && kvs_adopt(root, ns, &name, 0, &found) == KVS_REASON_NONE) {
        kvs_lock(store);
        kvs_extent_unpin_locked(store, found);
        kvs_unlock(store);
    }
    kvs_files_trim(store); /* at once: a queued close would wait behind hundreds of opens */
}

void kvs_file_want_locked(struct kvs_store *store, struct kvs_extent *extent)
{
    if (extent->file || extent->opening) {
        return;
    }
    extent->open_reason = 0; /* of an earlier open: it ends no load that waits for this one */
    if (store->files_busy + store->files_opening >= store->file_max) {
        store->files_refused = 1; /* no descriptors left: whoever plans asks again */
        return;
    }
    extent->opening = 1;
    store->files_opening++;
    kvs_extent_pin_locked(extent);
    if (kvs_job_add_locked(&store->roots[extent->root], open_job, extent, 1) < 0) {
        extent->opening = 0;
        store->files_opening--;
        extent->open_reason = KVS_REASON_BUSY;
        kvs_extent_unpin_locked(store, extent);
    }
}
