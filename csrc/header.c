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

/* Opens the file and reads its first `head_bytes` (fewer when it ends before, at least a page). */
static enum kvs_reason head_read(struct kvs_root *root, const char *path, uint8_t *head,
                                 uint64_t head_bytes, int *fd, struct kvs_extent_header *header,
                                 struct kvs_fs_stat *stat)
{
    struct kvs_fs *fs = root->store->fs;
    int opened = fs->calls->open_read(fs, root->fd, path);
    if (opened < 0) {
        return kvs_reason_of_errno(opened);
    }
    int error = fs->calls->stat_fd(fs, opened, stat);
    if (!error) {
        uint64_t there = stat->bytes > KVS_FORMAT_PAGE_BYTES ? stat->bytes : KVS_FORMAT_PAGE_BYTES;
        error = fs->calls->read_at(fs, opened, head,
                                   (uint32_t)(there < head_bytes ? there : head_bytes), 0);
    }
    enum kvs_reason reason = error ? kvs_reason_of_errno(error) : KVS_REASON_NONE;
    if (!reason) {
        reason = reason_of_verdict(kvs_format_decode_page(head, KVS_FORMAT_PAGE_BYTES, header));
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

enum kvs_reason kvs_header_read(struct kvs_root *root, const char *path, int *fd,
                                struct kvs_extent_header *header, struct kvs_fs_stat *stat)
{
    uint8_t page[KVS_FORMAT_PAGE_BYTES];
    return head_read(root, path, page, sizeof(page), fd, header, stat);
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
static enum kvs_reason rest_take(const struct kvs_namespace *ns, const uint8_t *head,
                                 const struct kvs_extent_header *header, struct kvs_file *file)
{
    uint32_t *cell_bytes = malloc(header->layer_count * sizeof(*cell_bytes));
    if (!cell_bytes) {
        return KVS_REASON_BUSY;
    }
    enum kvs_reason reason =
        reason_of_verdict(kvs_format_decode_rest(head, header, cell_bytes, file->checksums));
    uint32_t header_bytes;
    uint64_t file_bytes;
    if (!reason &&
        (memcmp(cell_bytes, ns->cell_bytes, ns->layer_count * sizeof(*cell_bytes)) != 0 ||
         kvs_format_geometry(ns->layer_count, cell_bytes, header->block_count, 0, 0, &header_bytes,
                             file->region_offsets, &file_bytes) < 0)) {
        reason = KVS_REASON_DAMAGED; /* it says that it is of our layout, and is not */
    }
    for (uint32_t i = 0; !reason && i < ns->layer_count; i++) {
        /* Optional sections make the header longer than we would: shift the regions. */
        file->region_offsets[i] += header->header_bytes - (uint64_t)header_bytes;
    }
    free(cell_bytes);
    return reason;
}

/* *head is the whole header, read again when what was taken for its length was too short. */
static enum kvs_reason head_whole(struct kvs_root *root, int fd,
                                  const struct kvs_extent_header *header, uint64_t head_bytes,
                                  uint8_t **head)
{
    struct kvs_fs *fs = root->store->fs;
    if (header->header_bytes <= head_bytes) {
        return KVS_REASON_NONE;
    }
    free(*head);
    *head = aligned_alloc(KVS_FORMAT_PAGE_BYTES, header->header_bytes);
    int error = *head ? fs->calls->read_at(fs, fd, *head, header->header_bytes, 0) : -ENOMEM;
    return error ? kvs_reason_of_errno(error) : KVS_REASON_NONE;
}

/* What its header takes as we write it, of a full extent. */
static uint64_t head_bytes_of(const struct kvs_namespace *ns)
{
    uint32_t header_bytes = KVS_FORMAT_PAGE_BYTES;
    uint64_t file_bytes;
    (void)kvs_format_geometry(ns->layer_count, ns->cell_bytes, ns->extent_blocks, 0, 0,
                              &header_bytes, NULL, &file_bytes);
    return header_bytes;
}

static enum kvs_reason file_take(struct kvs_root *root, struct kvs_namespace *ns, int fd,
                                 const struct kvs_extent_header *header, uint64_t head_bytes,
                                 uint8_t **head, struct kvs_file **out)
{
    struct kvs_file *file = NULL;
    if (memcmp(header->fingerprint, ns->fingerprint, sizeof(ns->fingerprint)) != 0 ||
        header->layer_count != ns->layer_count || header->block_tokens != ns->block_tokens) {
        return KVS_REASON_DAMAGED; /* not what its name says */
    }
    enum kvs_reason reason = head_whole(root, fd, header, head_bytes, head);
    if (!reason && file_alloc(header, &file) < 0) {
        reason = KVS_REASON_BUSY;
    }
    if (!reason && (reason = rest_take(ns, *head, header, file)) != KVS_REASON_NONE) {
        kvs_file_free(file);
    }
    if (!reason) {
        file->root = root;
        file->fd = fd;
        *out = file;
    }
    return reason;
}

enum kvs_reason kvs_file_open(struct kvs_root *root, struct kvs_namespace *ns, const char *path,
                              struct kvs_extent_header *header, struct kvs_fs_stat *stat,
                              struct kvs_file **out)
{
    struct kvs_fs *fs = root->store->fs;
    uint64_t head_bytes = head_bytes_of(ns);
    uint8_t *head = aligned_alloc(KVS_FORMAT_PAGE_BYTES, head_bytes);
    int fd;
    if (!head) {
        return KVS_REASON_BUSY;
    }
    enum kvs_reason reason = head_read(root, path, head, head_bytes, &fd, header, stat);
    if (!reason && (reason = file_take(root, ns, fd, header, head_bytes, &head, out)) != 0) {
        fs->calls->close(fs, fd);
    }
    free(head);
    return reason;
}
