/*
 * header.c: reading an extent's header and judging it: what an errno and a verdict mean, and what a
 * load needs of it (keys, region offsets, checksums), all verified.
 *
 * Runs on file workers. Reads no cell; keeps no file open that it refuses.
 *
 * Invariant: busy is never taken for damage: only a header that was read and is wrong condemns a
 * file.
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
    case EHOSTDOWN:
        return KVS_REASON_ROOT_DOWN;
    default:
        return kvs_busy_error(error) ? KVS_REASON_BUSY : KVS_REASON_IO_ERROR;
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

void kvs_file_free(struct kvs_file *file)
{
    free(file->keys);
    free(file->region_offsets);
    free(file->checksums);
    free(file->close);
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
    file->close = malloc(sizeof(*file->close));
    if (!file->keys || !file->region_offsets || !file->checksums || !file->close) {
        kvs_file_free(file);
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
    enum kvs_reason reason = KVS_REASON_BUSY;
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
        return KVS_REASON_BUSY;
    }
    enum kvs_reason reason = rest_read(root, ns, fd, header, file);
    if (reason) {
        kvs_file_free(file);
        return reason;
    }
    file->root = root;
    file->fd = fd;
    *out = file;
    return KVS_REASON_NONE;
}
