/*
 * files.c: opening extent files, checking their headers, and a bounded cache of open ones.
 *
 * Opens and closes happen on file workers only. An open file carries what a load needs to judge
 * cells: the keys, the region offsets and the checksums, all verified. Reads no cell.
 *
 * Invariants:
 *   1. A kvs_file exists while its extent points at it or refs > 0; its fd is closed by a job.
 *   2. Files being opened and files being read are at most file_max together: a small limit on
 *      descriptors makes loads slower, not short.
 *   3. Busy is never taken for damage: only a header that was read and is wrong condemns a file.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store.h"

enum kvs_reason kvs_reason_of_errno(int error)
{
    switch (-error) {
    case ENOENT:
    case ESTALE:
    case ENOTDIR:
        return KVS_REASON_ABSENT;
    case ENODATA: /* shorter than its header */
    case EINVAL:  /* not a regular file */
    case ELOOP:   /* a symbolic link */
    case ENXIO:   /* a socket */
    case ENODEV:
    case EISDIR:
        return KVS_REASON_DAMAGED;
    case EACCES: /* another user's */
    case EPERM:
        return KVS_REASON_FOREIGN;
    default:
        return KVS_REASON_IO_ERROR;
    }
}

static enum kvs_reason reason_of_verdict(enum kvs_verdict verdict)
{
    switch (verdict) {
    case KVS_VERDICT_GOOD:
        return KVS_REASON_NONE;
    case KVS_VERDICT_VERSION:
    case KVS_VERDICT_UNKNOWN:
        return KVS_REASON_FOREIGN;
    default:
        return KVS_REASON_DAMAGED;
    }
}

enum kvs_reason kvs_header_read(struct kvs_root *root, const char *path, int *fd,
                                struct kvs_extent_header *header, struct kvs_fs_stat *stat)
{
    struct kvs_fs *fs = root->store->fs;
    int opened = fs->calls->open_read(fs, root->fd, path);
    if (opened < 0) {
        return kvs_reason_of_errno(opened);
    }
    uint8_t page[KVS_FORMAT_PAGE_BYTES];
    int error = fs->calls->stat_fd(fs, opened, stat);
    if (!error) {
        error = fs->calls->read_at(fs, opened, page, sizeof(page), 0);
    }
    enum kvs_reason reason = error ? kvs_reason_of_errno(error) : KVS_REASON_NONE;
    if (!reason) {
        reason = reason_of_verdict(kvs_format_decode_page(page, sizeof(page), header));
    }
    if (!reason && stat->bytes != header->file_bytes) {
        reason = KVS_REASON_DAMAGED;
    }
    if (reason) {
        fs->calls->close(fs, opened);
        return reason;
    }
    *fd = opened;
    return KVS_REASON_NONE;
}

static void file_free(struct kvs_file *file)
{
    free(file->keys);
    free(file->region_offsets);
    free(file->checksums);
    free(file);
}

static int file_alloc(const struct kvs_extent_header *header, struct kvs_file **out)
{
    struct kvs_file *file = calloc(1, sizeof(*file));
    if (!file) {
        return -ENOMEM;
    }
    size_t cells = (size_t)header->layer_count * header->block_count;
    file->layer_count = header->layer_count;
    file->block_count = header->block_count;
    file->keys = malloc(header->block_count * sizeof(*file->keys));
    file->region_offsets = malloc(header->layer_count * sizeof(*file->region_offsets));
    file->checksums = malloc(cells * sizeof(*file->checksums));
    if (!file->keys || !file->region_offsets || !file->checksums) {
        file_free(file);
        return -ENOMEM;
    }
    memcpy(file->keys, header->keys, header->block_count * sizeof(*file->keys));
    *out = file;
    return 0;
}

/* The rest of the header: cell sizes must be the layout's, checksums are kept. */
static enum kvs_reason rest_read(struct kvs_root *root, const struct kvs_namespace *ns, int fd,
                                 const struct kvs_extent_header *header, struct kvs_file *file)
{
    struct kvs_fs *fs = root->store->fs;
    uint32_t *cell_bytes = malloc(header->layer_count * sizeof(*cell_bytes));
    void *buffer = aligned_alloc(KVS_FORMAT_PAGE_BYTES, header->header_bytes);
    enum kvs_reason reason = KVS_REASON_IO_ERROR;
    if (cell_bytes && buffer) {
        int error = fs->calls->read_at(fs, fd, buffer, header->header_bytes, 0);
        reason = error ? kvs_reason_of_errno(error)
                       : reason_of_verdict(
                             kvs_format_decode_rest(buffer, header, cell_bytes, file->checksums));
    }
    if (!reason) {
        uint32_t header_bytes;
        uint64_t file_bytes;
        if (memcmp(cell_bytes, ns->cell_bytes, ns->layer_count * sizeof(*cell_bytes)) != 0) {
            reason = KVS_REASON_DAMAGED; /* it says that it is of our layout, and is not */
        } else if (kvs_format_geometry(ns->layer_count, cell_bytes, header->block_count, 0, 0,
                                       &header_bytes, file->region_offsets, &file_bytes) < 0) {
            reason = KVS_REASON_DAMAGED;
        } else {
            /* Optional sections make the header longer than we would: shift the regions. */
            for (uint32_t i = 0; i < ns->layer_count; i++) {
                file->region_offsets[i] += header->header_bytes - (uint64_t)header_bytes;
            }
        }
    }
    free(buffer);
    free(cell_bytes);
    return reason;
}

enum kvs_reason kvs_file_open(struct kvs_root *root, struct kvs_namespace *ns, int fd,
                              const struct kvs_extent_header *header, struct kvs_file **out)
{
    struct kvs_file *file = NULL;
    if (memcmp(header->fingerprint, ns->fingerprint, sizeof(ns->fingerprint)) != 0 ||
        header->layer_count != ns->layer_count || header->block_tokens != ns->block_tokens) {
        return KVS_REASON_DAMAGED; /* not what its name says */
    }
    if (file_alloc(header, &file) < 0) {
        return KVS_REASON_IO_ERROR;
    }
    enum kvs_reason reason = rest_read(root, ns, fd, header, file);
    if (reason) {
        file_free(file);
        return reason;
    }
    file->root = root;
    file->fd = fd;
    *out = file;
    return KVS_REASON_NONE;
}

void kvs_file_discard(struct kvs_file *file)
{
    struct kvs_fs *fs = file->root->store->fs;
    fs->calls->close(fs, file->fd);
    file_free(file);
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
        if (file->charged_bytes) {
            kvs_job_add_slow_locked(file->root, close_job, file, file->charged_bytes);
        } else {
            kvs_job_add_locked(file->root, close_job, file, 0);
        }
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
    int fd = -1;
    if (!header) {
        return KVS_REASON_IO_ERROR;
    }
    kvs_path_of(extent->ns, &extent->name, path);
    enum kvs_reason reason = kvs_header_read(root, path, &fd, header, &stat);
    if (!reason) {
        reason = kvs_file_open(root, extent->ns, fd, header, out);
    }
    if (!reason && replaced(extent, header)) {
        /* Another whole extent: good under this name if it holds it, and not the one we know. */
        reason = kvs_header_has_key(header, &extent->name) ? KVS_REASON_ABSENT : KVS_REASON_DAMAGED;
        kvs_file_discard(*out); /* and fd with it */
        *out = NULL;
        fd = -1;
    }
    if (reason && fd >= 0) {
        root->store->fs->calls->close(root->store->fs, fd);
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
    enum kvs_reason reason = open_known(root, extent, &file);
    kvs_lock(store);
    if (!reason && kvs_file_attach_locked(store, extent, file) == 0) {
        file = NULL;
    } else if (!reason) {
        reason = store->closing ? KVS_REASON_CLOSED : KVS_REASON_EVICTED;
    } else if (reason == KVS_REASON_DAMAGED) {
        kvs_quarantine_locked(store, extent);
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
    if (store->files_busy + store->files_opening >= store->file_max) {
        store->files_refused = 1; /* no descriptors left: whoever plans asks again */
        return;
    }
    extent->open_reason = 0;
    extent->opening = 1;
    store->files_opening++;
    kvs_extent_pin_locked(extent);
    if (kvs_job_add_locked(&store->roots[extent->root], open_job, extent, 1) < 0) {
        extent->opening = 0;
        store->files_opening--;
        extent->open_reason = KVS_REASON_IO_ERROR;
        kvs_extent_unpin_locked(store, extent);
    }
}
