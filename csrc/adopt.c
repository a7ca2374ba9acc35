/*
 * adopt.c: taking a file that another writer, another process or an earlier life made into the
 * index: by name (a walk, the winner of a name) or because a look (scan.c) met it.
 *
 * Reads headers, no cells. Runs on file workers only. A file that is not what its name says is
 * moved to quarantine by the owner and ignored by peers; one of another version is left alone.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "root_files.h"
#include "store.h"

static uint8_t class_of(const struct kvs_store *store, const char *name)
{
    for (uint32_t i = 0; i < store->class_count; i++) {
        if (strncmp(store->classes[i].name, name, KVS_CLASS_NAME_BYTES) == 0) {
            return (uint8_t)i;
        }
    }
    return (uint8_t)store->default_class;
}

static int extent_from_header(struct kvs_root *root, struct kvs_namespace *ns,
                              const struct kvs_key *name, const struct kvs_extent_header *header,
                              const struct kvs_fs_stat *stat, struct kvs_extent **out)
{
    struct kvs_store *store = root->store;
    struct kvs_extent *extent;
    int error = kvs_extent_add_locked(store, ns, root->number, header->block_count, &extent);
    if (error) {
        return error;
    }
    for (uint32_t i = 0; i < header->block_count; i++) {
        extent->tags[i] = kvs_tag(ns, &header->keys[i]);
        if (memcmp(&header->keys[i], name, KVS_KEY_BYTES) == 0) {
            extent->named = (uint8_t)i;
        }
    }
    extent->name = *name;
    extent->start = header->start < KVS_START_UNKNOWN ? (uint32_t)header->start : KVS_START_UNKNOWN;
    extent->class_number = class_of(store, header->class_name);
    int64_t created_s = header->created_s > 0 ? header->created_s : 0; /* ages do not overflow */
    extent->created_s = created_s < KVS_FS_TIME_MAX_S ? created_s : KVS_FS_TIME_MAX_S;
    extent->physical_bytes = stat->physical_bytes;
    kvs_times_take_locked(root, extent, stat);
    error = kvs_extent_publish_locked(store, extent);
    if (error) {
        kvs_extent_unpin_locked(store, extent);
        return error;
    }
    root->used_bytes += extent->physical_bytes;
    *out = extent;
    return 0;
}

int kvs_header_has_key(const struct kvs_extent_header *header, const struct kvs_key *name)
{
    for (uint32_t i = 0; i < header->block_count; i++) {
        if (memcmp(&header->keys[i], name, KVS_KEY_BYTES) == 0) {
            return 1;
        }
    }
    return 0;
}

/* Directory names hold the first 16 bytes of the fingerprint; a load compares all 32. */
static int header_is_of(const struct kvs_extent_header *header, const struct kvs_namespace *ns)
{
    static const char digits[] = "0123456789abcdef";
    for (uint32_t i = 0; i < 16; i++) {
        if (ns->name[2 * i] != digits[header->fingerprint[i] >> 4] ||
            ns->name[2 * i + 1] != digits[header->fingerprint[i] & 15]) {
            return 0;
        }
    }
    return 1;
}

/* Into the index, unless another thread was quicker; *out pinned. */
static enum kvs_reason take_locked(struct kvs_root *root, struct kvs_namespace *ns,
                                   const struct kvs_key *name,
                                   const struct kvs_extent_header *header,
                                   const struct kvs_fs_stat *stat, struct kvs_extent **out)
{
    struct kvs_extent *known = kvs_extent_named_locked(root->store, root->number, ns, name);
    if (known) {
        kvs_extent_pin_locked(known);
        *out = known;
        return KVS_REASON_NONE;
    }
    int error = extent_from_header(root, ns, name, header, stat, out);
    return error ? KVS_REASON_BUSY : KVS_REASON_NONE;
}

/* Whether what the name leads to is an extent that may be served under it. NONE: *file is open for
 * loads when that was asked for (to_load). */
static enum kvs_reason judge(struct kvs_root *root, struct kvs_namespace *ns,
                             const struct kvs_key *name, int to_load,
                             struct kvs_extent_header *header, struct kvs_fs_stat *stat,
                             struct kvs_file **file)
{
    struct kvs_fs *fs = root->store->fs;
    char path[KVS_PATH_BYTES];
    kvs_path_of(ns, name, path);
    int fd = -1;
    enum kvs_reason reason = to_load ? kvs_file_open(root, ns, path, header, stat, file)
                                     : kvs_header_read(root, path, &fd, header, stat);
    if (!reason && (!header_is_of(header, ns) || !kvs_header_has_key(header, name))) {
        reason = KVS_REASON_DAMAGED; /* a whole file, but not what its name says */
    }
    if (reason && *file) {
        kvs_file_discard(*file);
        *file = NULL;
    }
    if (fd >= 0) {
        fs->calls->close(fs, fd);
    }
    return reason;
}

int kvs_refused_move(struct kvs_root *root, struct kvs_namespace *ns, const struct kvs_key *name)
{
    struct kvs_extent_header *header = malloc(sizeof(*header));
    struct kvs_fs_stat stat;
    struct kvs_file *file = NULL;
    char path[KVS_PATH_BYTES];
    int error = 0;
    if (!header) {
        return -ENOMEM;
    }
    kvs_path_of(ns, name, path);
    kvs_judge_begin(root);
    kvs_lock(root->store);
    int to_load = ns->has_layout;
    kvs_unlock(root->store);
    enum kvs_reason reason = judge(root, ns, name, to_load, header, &stat, &file);
    if (reason == KVS_REASON_DAMAGED || reason == KVS_REASON_FOREIGN) {
        error = kvs_quarantine_move(root, path);
    }
    if (!error && reason == KVS_REASON_DAMAGED) {
        kvs_lock(root->store);
        root->store->stats.quarantined_extents++;
        kvs_unlock(root->store);
    }
    kvs_judge_end(root);
    if (file) {
        kvs_file_discard(file);
    }
    free(header);
    return error;
}

/* A name that is there and leads to nothing that may be served. */
static void refuse(struct kvs_root *root, struct kvs_namespace *ns, const struct kvs_key *name,
                   enum kvs_reason reason)
{
    struct kvs_store *store = root->store;
    if (reason == KVS_REASON_DAMAGED && root->is_owner) {
        kvs_refused_move(root, ns, name);
    }
    if (reason != KVS_REASON_BUSY && reason != KVS_REASON_ROOT_DOWN) { /* these tell of no block */
        kvs_lock(store);
        kvs_removed_note_locked(root, kvs_tag(ns, name), reason);
        kvs_unlock(store);
    }
}

enum kvs_reason kvs_adopt(struct kvs_root *root, struct kvs_namespace *ns,
                          const struct kvs_key *name, int to_load, struct kvs_extent **out)
{
    struct kvs_store *store = root->store;
    struct kvs_fs_stat stat;
    kvs_lock(store);
    struct kvs_extent *known = kvs_extent_named_locked(store, root->number, ns, name);
    if (known) {
        kvs_extent_pin_locked(known);
    }
    kvs_unlock(store);
    if (known) {
        *out = known;
        return KVS_REASON_NONE;
    }
    struct kvs_extent_header *header = malloc(sizeof(*header));
    if (!header) {
        return KVS_REASON_BUSY;
    }
    kvs_name_clear(root, ns, name);
    struct kvs_file *file = NULL;
    enum kvs_reason reason = judge(root, ns, name, to_load, header, &stat, &file);
    if (reason && reason != KVS_REASON_ABSENT) {
        refuse(root, ns, name, reason);
    } else if (!reason) {
        kvs_lock(store);
        reason = take_locked(root, ns, name, header, &stat, out);
        if (file && !reason && !(*out)->file && kvs_file_attach_locked(store, *out, file) == 0) {
            file = NULL;
        }
        kvs_unlock(store);
    }
    if (file) {
        kvs_file_discard(file);
    }
    kvs_files_trim(store);
    free(header);
    return reason;
}
