/*
 * adopt.c: taking a file that another writer, another process or an earlier life made into the
 * index: by name (a walk, the winner of a name) and by listing (the scan after open, rescans).
 *
 * Reads headers, no cells. Runs on file workers only. A file that is not what its name says is
 * moved to quarantine by the owner and ignored by peers; one of another version is left alone.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* A last use before the extent was made, or at the very second its time is up, is no time but what
 * a file system without atime shows instead. A renewal moves mtime: it was less the ttl ago. */
int64_t kvs_last_use_s(const struct kvs_root *root, const struct kvs_extent *extent,
                       const struct kvs_fs_stat *stat)
{
    struct kvs_store *store = root->store;
    int64_t now_s = kvs_store_now_s(store), used_s = stat->atime_s;
    int made_before_it = extent->created_s > now_s || used_s >= extent->created_s;
    if (root->lost & KVS_FS_LOST_ATIME || !made_before_it || used_s == stat->mtime_s) {
        used_s = stat->mtime_s - store->classes[extent->class_number].ttl_s;
    }
    return used_s < now_s ? used_s : now_s;
}

/* Times come from the file and are not believed beyond reason (a clock was wrong, a copy lost
 * them): used in the future means now, valid for longer than any class means the longest. */
static void times_take(const struct kvs_root *root, struct kvs_extent *extent,
                       const struct kvs_fs_stat *stat)
{
    struct kvs_store *store = root->store;
    int64_t now_s = kvs_store_now_s(store);
    int64_t latest = now_s + kvs_longest_ttl_s(store);
    extent->valid_until_s = stat->mtime_s < latest ? stat->mtime_s : latest;
    extent->last_use_s = extent->written_use_s = kvs_last_use_s(root, extent, stat);
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
    extent->start = header->start;
    extent->class_number = class_of(store, header->class_name);
    extent->created_s = header->created_s;
    extent->physical_bytes = stat->physical_bytes;
    times_take(root, extent, stat);
    error = kvs_extent_publish_locked(store, extent);
    if (error) {
        kvs_extent_unpin_locked(store, extent);
        return error;
    }
    root->used_bytes += extent->physical_bytes;
    *out = extent;
    return 0;
}

static int header_has_key(const struct kvs_extent_header *header, const struct kvs_key *name)
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

static void move_aside(struct kvs_root *root, struct kvs_namespace *ns, const struct kvs_key *name,
                       const char *path)
{
    struct kvs_store *store = root->store;
    if (root->is_owner && kvs_quarantine_move(root, path) == 0) {
        kvs_lock(store);
        store->stats.quarantined_extents++;
        kvs_removed_note_locked(store, kvs_tag(ns, name), KVS_REASON_DAMAGED);
        kvs_unlock(store);
    }
}

enum kvs_reason kvs_adopt(struct kvs_root *root, struct kvs_namespace *ns,
                          const struct kvs_key *name, int to_load, struct kvs_extent **out)
{
    struct kvs_store *store = root->store;
    char path[KVS_PATH_BYTES];
    int fd = -1;
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
    kvs_path_of(ns, name, path);
    enum kvs_reason reason = kvs_header_read(root, path, &fd, header, &stat);
    if (!reason && (!header_is_of(header, ns) || !header_has_key(header, name))) {
        reason = KVS_REASON_DAMAGED; /* a whole file, but not what its name says */
    }
    struct kvs_file *file = NULL;
    if (!reason && to_load) {
        reason = kvs_file_open(root, ns, fd, header, &file);
    }
    if (fd >= 0 && !file) {
        store->fs->calls->close(store->fs, fd);
    }
    if (reason == KVS_REASON_DAMAGED) {
        move_aside(root, ns, name, path);
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

/* ---- listing ---- */

struct names {
    struct kvs_root *root;
    char (*list)[KVS_PATH_BYTES];
    uint32_t count, room;
    int directories;
};

static int name_add(void *argument, const char *name, uint8_t is_directory)
{
    struct names *names = argument;
    if (name[0] == '.' || (names->directories != 0) != (is_directory != 0) ||
        strlen(name) >= KVS_PATH_BYTES) {
        return 0;
    }
    if (names->count == names->room) {
        uint32_t room = names->room ? names->room * 2 : 64;
        void *grown = realloc(names->list, room * sizeof(*names->list));
        if (!grown) {
            return -ENOMEM;
        }
        names->list = grown;
        names->room = room;
    }
    strcpy(names->list[names->count++], name);
    return 0;
}

static void names_of(struct kvs_root *root, const char *path, int directories, struct names *out)
{
    *out = (struct names){root, NULL, 0, 0, directories};
    root->store->fs->calls->list(root->store->fs, root->fd, path, name_add, out);
}

static int is_hex(const char *text, size_t length)
{
    return strlen(text) == length && strspn(text, "0123456789abcdef") == length;
}

static int closing(struct kvs_root *root)
{
    kvs_lock(root->store);
    int closing = root->store->closing;
    kvs_unlock(root->store);
    return closing;
}

static void scan_bucket(struct kvs_root *root, struct kvs_namespace *ns, const char *path)
{
    struct names names;
    names_of(root, path, 0, &names);
    for (uint32_t i = 0; i < names.count && !closing(root); i++) {
        struct kvs_key key;
        struct kvs_extent *extent;
        if (kvs_key_from_name(names.list[i], &key) == 0 &&
            kvs_adopt(root, ns, &key, 0, &extent) == KVS_REASON_NONE) {
            kvs_lock(root->store);
            kvs_extent_unpin_locked(root->store, extent);
            kvs_unlock(root->store);
        }
    }
    free(names.list);
}

/* Names that a dead process left in tmp/; ours are younger than an hour. */
static void sweep_temporaries(struct kvs_root *root, const char *ns_name)
{
    struct kvs_fs *fs = root->store->fs;
    char directory[KVS_PATH_BYTES], path[2 * KVS_PATH_BYTES];
    struct names names;
    struct kvs_fs_stat stat;
    snprintf(directory, sizeof(directory), "%s/tmp", ns_name);
    names_of(root, directory, 0, &names);
    int64_t now_s = root->store->clock->wall_s(root->store->clock);
    for (uint32_t i = 0; i < names.count; i++) {
        snprintf(path, sizeof(path), "%s/%s", directory, names.list[i]);
        if (fs->calls->stat_path(fs, root->fd, path, &stat) == 0 && stat.mtime_s + 3600 < now_s) {
            fs->calls->unlink(fs, root->fd, path);
        }
    }
    free(names.list);
}

static void scan_namespace(struct kvs_root *root, const char *name, int64_t changed_since_s)
{
    struct kvs_store *store = root->store;
    struct kvs_fs *fs = store->fs;
    struct names buckets;
    kvs_lock(store);
    struct kvs_namespace *ns = kvs_namespace_find_locked(store, name);
    int error = ns ? 0 : kvs_namespace_add_locked(store, name, &ns);
    kvs_unlock(store);
    if (error) {
        return;
    }
    names_of(root, name, 1, &buckets);
    for (uint32_t i = 0; i < buckets.count && !closing(root); i++) {
        char path[2 * KVS_PATH_BYTES];
        struct kvs_fs_stat stat;
        if (!is_hex(buckets.list[i], 3)) {
            continue;
        }
        snprintf(path, sizeof(path), "%s/%s", name, buckets.list[i]);
        if (changed_since_s == 0 || (fs->calls->stat_path(fs, root->fd, path, &stat) == 0 &&
                                     stat.mtime_s >= changed_since_s)) {
            scan_bucket(root, ns, path);
        }
    }
    free(buckets.list);
}

static void scan_root(struct kvs_root *root, int64_t changed_since_s)
{
    struct names names;
    names_of(root, ".", 1, &names);
    for (uint32_t i = 0; i < names.count && !closing(root); i++) {
        if (is_hex(names.list[i], KVS_NAMESPACE_NAME_BYTES - 1)) {
            if (changed_since_s == 0 && root->is_owner) {
                sweep_temporaries(root, names.list[i]);
            }
            scan_namespace(root, names.list[i], changed_since_s);
        }
    }
    free(names.list);
}

void kvs_scan_job(struct kvs_root *root, void *argument)
{
    (void)argument;
    struct kvs_store *store = root->store;
    int64_t from_s = store->clock->wall_s(store->clock);
    scan_root(root, 0);
    kvs_lock(store);
    kvs_extent_order_by_use_locked(root);
    root->warming = 0;
    root->rescan_from_s = from_s;
    root->rescan_ns = kvs_store_now_ns(store);
    kvs_deletes_resume_locked(store);
    pthread_cond_broadcast(&store->changed);
    kvs_unlock(store);
}

/* What peers published since the last look. */
void kvs_rescan_job(struct kvs_root *root, void *argument)
{
    (void)argument;
    struct kvs_store *store = root->store;
    int64_t from_s = store->clock->wall_s(store->clock);
    scan_root(root, root->rescan_from_s > 1 ? root->rescan_from_s - 1 : 1);
    kvs_lock(store);
    root->rescan_from_s = from_s;
    root->rescan_ns = kvs_store_now_ns(store);
    root->rescanning = 0;
    kvs_unlock(store);
}
