/*
 * scan.c: looking through a root for files that the index does not know. The scan after open meets
 * all of them; rescans meet what peers published since.
 *
 * Only an owner looks, on a file worker, one look at a time. A look lists the buckets whose change
 * time is not the one it remembers (no clock is asked, so no step of it can hide a name), and each
 * of those once more at the next look: a name made right after a listing may have the same time.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "root_files.h"
#include "store.h"

struct kvs_seen { /* of one namespace on one root */
    int64_t at_ns[KVS_BUCKETS];
    uint8_t looks[KVS_BUCKETS]; /* still to be made though nothing changes */
};

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

static int names_of(struct kvs_root *root, const char *path, int directories, struct names *out)
{
    *out = (struct names){root, NULL, 0, 0, directories};
    int error = root->store->fs->calls->list(root->store->fs, root->fd, path, name_add, out);
    return error == -ENOENT ? 0 : error;
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

/* ---- what changed since the last look ---- */

/* Whether the bucket has to be listed. Notes its state before it is. */
static int changed(struct kvs_root *root, struct kvs_seen *seen, uint32_t bucket, const char *path)
{
    struct kvs_fs *fs = root->store->fs;
    struct kvs_fs_stat stat;
    if (fs->calls->stat_path(fs, root->fd, path, &stat) < 0) {
        return 1;
    }
    int64_t at_ns = stat.mtime_s * KVS_NS_PER_S + stat.mtime_ns;
    if (seen->at_ns[bucket] == at_ns && seen->looks[bucket] == 0) {
        return 0;
    }
    seen->looks[bucket] = seen->at_ns[bucket] == at_ns ? seen->looks[bucket] - 1 : 1;
    seen->at_ns[bucket] = at_ns;
    return 1;
}

/* 0, or an error of the listing. *again: a file could not be read. */
static int scan_bucket(struct kvs_root *root, struct kvs_namespace *ns, const char *path,
                       int *again)
{
    struct names names;
    int error = names_of(root, path, 0, &names);
    *again = error < 0;
    for (uint32_t i = 0; i < names.count && !closing(root); i++) {
        struct kvs_key key;
        struct kvs_extent *extent;
        if (kvs_key_from_name(names.list[i], &key) < 0) {
            continue;
        }
        enum kvs_reason reason = kvs_adopt(root, ns, &key, 0, &extent);
        if (reason == KVS_REASON_NONE) {
            kvs_lock(root->store);
            kvs_extent_unpin_locked(root->store, extent);
            kvs_unlock(root->store);
        }
        *again |= reason == KVS_REASON_IO_ERROR;
    }
    free(names.list);
    return error;
}

/* As FORMAT has them. A tmp/ may be older than the store, and hold what is not ours to remove. */
static int is_temporary(const char *name)
{
    size_t length = strlen(name);
    return length > 7 && strncmp(name, "kv-", 3) == 0 && strcmp(name + length - 4, ".tmp") == 0;
}

/* Names that a dead process left in a tmp/; ours are younger than an hour. One that was about to be
 * linked has its valid-until for mtime, days ahead: there atime says when that was. The file system
 * dates them by the real wall clock: after a step the worst is that a put under way is dropped. */
static void sweep_temporaries(struct kvs_root *root, const char *directory)
{
    struct kvs_fs *fs = root->store->fs;
    char path[2 * KVS_PATH_BYTES];
    struct names names;
    struct kvs_fs_stat stat;
    names_of(root, directory, 0, &names);
    int64_t now_s = root->store->clock->wall_s(root->store->clock);
    for (uint32_t i = 0; i < names.count; i++) {
        snprintf(path, sizeof(path), "%s/%s", directory, names.list[i]);
        if (is_temporary(names.list[i]) && fs->calls->stat_path(fs, root->fd, path, &stat) == 0 &&
            (stat.mtime_s < now_s ? stat.mtime_s : stat.atime_s) + 3600 < now_s) {
            fs->calls->unlink(fs, root->fd, path);
        }
    }
    free(names.list);
}

static struct kvs_namespace *namespace_of(struct kvs_root *root, const char *name)
{
    struct kvs_store *store = root->store;
    kvs_lock(store);
    struct kvs_namespace *ns = kvs_namespace_find_locked(store, name);
    if (!ns && kvs_namespace_add_locked(store, name, &ns) < 0) {
        ns = NULL;
    }
    kvs_unlock(store);
    if (ns && !ns->seen[root->number]) {
        ns->seen[root->number] = calloc(1, sizeof(struct kvs_seen)); /* looks only use it */
    }
    return ns && ns->seen[root->number] ? ns : NULL;
}

static int scan_namespace(struct kvs_root *root, const char *name)
{
    struct names buckets;
    struct kvs_namespace *ns = namespace_of(root, name);
    if (!ns) {
        return -ENOMEM;
    }
    struct kvs_seen *seen = ns->seen[root->number];
    int error = names_of(root, name, 1, &buckets);
    for (uint32_t i = 0; i < buckets.count && !closing(root); i++) {
        char path[2 * KVS_PATH_BYTES];
        if (!is_hex(buckets.list[i], 3)) {
            continue;
        }
        uint32_t bucket = (uint32_t)strtoul(buckets.list[i], NULL, 16);
        snprintf(path, sizeof(path), "%s/%s", name, buckets.list[i]);
        if (changed(root, seen, bucket, path)) {
            int again, failed = scan_bucket(root, ns, path, &again);
            seen->at_ns[bucket] = again ? 0 : seen->at_ns[bucket];
            error = error ? error : failed;
        }
    }
    free(buckets.list);
    return error;
}

static void look(struct kvs_root *root)
{
    struct kvs_store *store = root->store;
    struct names names;
    char temporary[KVS_PATH_BYTES + 8];
    kvs_lock(store);
    int first = root->looks_begun++ == 0;
    kvs_unlock(store);
    if (first) {
        sweep_temporaries(root, "tmp");
    }
    int error = names_of(root, ".", 1, &names);
    for (uint32_t i = 0; i < names.count && !closing(root); i++) {
        if (is_hex(names.list[i], KVS_NAMESPACE_NAME_BYTES - 1)) {
            if (first) {
                snprintf(temporary, sizeof(temporary), "%s/tmp", names.list[i]);
                sweep_temporaries(root, temporary);
            }
            int failed = scan_namespace(root, names.list[i]);
            error = error ? error : failed;
        }
    }
    free(names.list);
    kvs_quarantine_count(root);
    kvs_lock(store);
    root->looks_ended = root->looks_begun;
    root->look_error = error;
    root->rescan_ns = kvs_store_now_ns(store);
    kvs_unlock(store);
}

void kvs_scan_job(struct kvs_root *root, void *argument)
{
    (void)argument;
    struct kvs_store *store = root->store;
    look(root);
    kvs_lock(store);
    kvs_extent_order_by_use_locked(root);
    root->warming = 0;
    kvs_deletes_resume_locked(store);
    pthread_cond_broadcast(&store->changed);
    kvs_unlock(store);
    kvs_room_restore(root);
}

/* What other processes did since the last time: names that are gone, and (the owner) new ones. */
static void rescan_job(struct kvs_root *root, void *argument)
{
    (void)argument;
    kvs_unnamed_forget(root);
    kvs_lock(root->store);
    int looks = root->is_owner && !root->warming; /* one that has just taken over is at it already */
    kvs_unlock(root->store);
    if (looks) {
        look(root);
        kvs_room_restore(root);
    }
    kvs_lock(root->store);
    root->rescan_ns = kvs_store_now_ns(root->store);
    root->rescanning = 0;
    kvs_deletes_resume_locked(root->store);
    kvs_unlock(root->store);
}

void kvs_look_soon_locked(struct kvs_root *root)
{
    if (!root->warming && !root->rescanning) {
        root->rescanning = kvs_job_add_locked(root, rescan_job, NULL, 0) == 0;
    }
}
