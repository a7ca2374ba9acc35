/*
 * scan.c: looking through a root for files that the index does not know. The scan after open meets
 * all of them; rescans meet what peers published since.
 *
 * Only an owner looks, on a file worker, one look at a time. A look lists the buckets whose change
 * time is not the one it remembers (no clock is asked, so no step of it can hide a name), and each
 * of those once more at the next look: a name made right after a listing may have the same time.
 *
 * Invariant: a look of a root that went down stops and counts for nothing, even if its device keeps
 * it for ever; when the root is back, a scan lists everything.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "root_files.h"
#include "store.h"

/* Of one namespace on one root; under the store's lock: a look of before the root was down may come
 * back beside a new one. */
struct kvs_seen {
    uintptr_t life; /* looks_life of the root */
    int64_t at_ns[KVS_BUCKETS];
    uint8_t looks[KVS_BUCKETS]; /* still to be made though nothing changes */
};

struct names {
    struct kvs_root *root;
    char (*list)[KVS_PATH_BYTES];
    uint32_t count, room;
    int directories;
    int (*is_wanted)(const char *name);
};

/* Keeps only what is wanted: who else puts names into our directories costs us no memory. */
static int name_add(void *argument, const char *name, uint8_t is_directory)
{
    struct names *names = argument;
    if (name[0] == '.' || (names->directories != 0) != (is_directory != 0) ||
        strlen(name) >= KVS_PATH_BYTES || !names->is_wanted(name)) {
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

static int names_of(struct kvs_root *root, const char *path, int directories,
                    int (*is_wanted)(const char *), struct names *out)
{
    *out = (struct names){root, NULL, 0, 0, directories, is_wanted};
    int error = root->store->fs->calls->list(root->store->fs, root->fd, path, name_add, out);
    return error == -ENOENT ? 0 : error;
}

static int is_hex(const char *text, size_t length)
{
    return strlen(text) == length && strspn(text, "0123456789abcdef") == length;
}

static int is_bucket(const char *name)
{
    return is_hex(name, 3);
}

static int is_namespace(const char *name)
{
    return is_hex(name, KVS_NAMESPACE_NAME_BYTES - 1);
}

static int is_extent(const char *name)
{
    struct kvs_key key;
    return kvs_key_from_name(name, &key) == 0;
}

/* As FORMAT has them. A tmp/ may be older than the store, and hold what is not ours to remove. */
static int is_temporary(const char *name)
{
    size_t length = strlen(name);
    return length > 7 && strncmp(name, "kv-", 3) == 0 && strcmp(name + length - 4, ".tmp") == 0;
}

static int stopped_locked(const struct kvs_root *root, uintptr_t life)
{
    return root->store->closing || kvs_root_down_locked(root) || root->looks_life != life;
}

static int stopped(struct kvs_root *root, uintptr_t life)
{
    kvs_lock(root->store);
    int is = stopped_locked(root, life);
    kvs_unlock(root->store);
    return is;
}

/* ---- what changed since the last look ---- */

struct bucket {
    struct kvs_namespace *ns;
    uintptr_t life; /* of the look */
    uint32_t number;
    char path[2 * KVS_PATH_BYTES];
};

/* Notes the state of the bucket before it is listed. 0: it has not changed. */
static int changed(struct kvs_root *root, const struct bucket *bucket)
{
    struct kvs_fs *fs = root->store->fs;
    struct kvs_seen *seen = bucket->ns->seen[root->number];
    struct kvs_fs_stat stat;
    if (fs->calls->stat_path(fs, root->fd, bucket->path, &stat) < 0) {
        return 1;
    }
    /* Only compared: a time after 2262 wraps. */
    uint64_t at_s = (uint64_t)stat.mtime_s;
    int64_t at_ns = (int64_t)(at_s * (uint64_t)KVS_NS_PER_S + (uint64_t)stat.mtime_ns);
    kvs_lock(root->store);
    int64_t *seen_ns = &seen->at_ns[bucket->number];
    uint8_t *looks = &seen->looks[bucket->number];
    int same = *seen_ns == at_ns;
    int is = !same || *looks > 0;
    if (is && seen->life == bucket->life) {
        *looks = (uint8_t)(same ? *looks - 1 : 1);
        *seen_ns = at_ns;
    }
    kvs_unlock(root->store);
    return is;
}

/* The next look lists it, whatever its time is. */
static void look_again(struct kvs_root *root, const struct bucket *bucket)
{
    kvs_lock(root->store);
    bucket->ns->seen[root->number]->at_ns[bucket->number] = 0;
    kvs_unlock(root->store);
}

static int tells_nothing(enum kvs_reason reason)
{
    return reason == KVS_REASON_IO_ERROR || reason == KVS_REASON_BUSY ||
           reason == KVS_REASON_ROOT_DOWN;
}

/* 0, or an error of the listing. */
static int scan_bucket(struct kvs_root *root, const struct bucket *bucket)
{
    struct names names;
    int error = names_of(root, bucket->path, 0, is_extent, &names);
    int again = error < 0;
    for (uint32_t i = 0; i < names.count; i++) {
        struct kvs_key key;
        struct kvs_extent *extent;
        if (stopped(root, bucket->life)) {
            again = 1;
            break;
        }
        kvs_key_from_name(names.list[i], &key);
        enum kvs_reason reason = kvs_adopt(root, bucket->ns, &key, 0, &extent);
        if (reason == KVS_REASON_NONE) {
            kvs_lock(root->store);
            kvs_extent_unpin_locked(root->store, extent);
            kvs_unlock(root->store);
        }
        again |= tells_nothing(reason);
    }
    if (again) {
        look_again(root, bucket);
    }
    free(names.list);
    return error;
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
    names_of(root, directory, 0, is_temporary, &names);
    int64_t now_s = root->store->clock->wall_s(root->store->clock);
    for (uint32_t i = 0; i < names.count; i++) {
        snprintf(path, sizeof(path), "%s/%s", directory, names.list[i]);
        if (fs->calls->stat_path(fs, root->fd, path, &stat) == 0 &&
            (stat.mtime_s < now_s ? stat.mtime_s : stat.atime_s) + 3600 < now_s) {
            fs->calls->unlink(fs, root->fd, path);
        }
    }
    free(names.list);
}

static struct kvs_namespace *namespace_of(struct kvs_root *root, const char *name, uintptr_t life)
{
    struct kvs_store *store = root->store;
    kvs_lock(store);
    struct kvs_namespace *ns = kvs_namespace_find_locked(store, name);
    if (!ns && kvs_namespace_add_locked(store, name, &ns) < 0) {
        ns = NULL;
    }
    struct kvs_seen *seen = ns ? ns->seen[root->number] : NULL;
    if (ns && !seen) {
        seen = ns->seen[root->number] = calloc(1, sizeof(*seen));
    }
    if (seen && seen->life < life) {
        *seen = (struct kvs_seen){.life = life};
    }
    kvs_unlock(store);
    return seen ? ns : NULL;
}

static int scan_namespace(struct kvs_root *root, const char *name, uintptr_t life)
{
    struct names buckets;
    struct bucket bucket = {.ns = namespace_of(root, name, life), .life = life};
    if (!bucket.ns) {
        return -ENOMEM;
    }
    int error = names_of(root, name, 1, is_bucket, &buckets);
    for (uint32_t i = 0; i < buckets.count && !stopped(root, life); i++) {
        bucket.number = (uint32_t)strtoul(buckets.list[i], NULL, 16);
        snprintf(bucket.path, sizeof(bucket.path), "%s/%s", name, buckets.list[i]);
        if (changed(root, &bucket)) {
            int failed = scan_bucket(root, &bucket);
            error = error ? error : failed;
        }
    }
    free(buckets.list);
    return error;
}

/* 0: the root went down meanwhile, and may be back. */
static int look(struct kvs_root *root, uintptr_t life)
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
    int error = names_of(root, ".", 1, is_namespace, &names);
    for (uint32_t i = 0; i < names.count && !stopped(root, life); i++) {
        if (first) {
            snprintf(temporary, sizeof(temporary), "%s/tmp", names.list[i]);
            sweep_temporaries(root, temporary);
        }
        int failed = scan_namespace(root, names.list[i], life);
        error = error ? error : failed;
    }
    free(names.list);
    kvs_quarantine_count(root);
    kvs_lock(store);
    int whole = !stopped_locked(root, life) || store->closing;
    if (whole) {
        root->looks_ended = root->looks_begun;
        root->look_error = error;
        root->rescan_ns = kvs_store_now_ns(store);
    }
    kvs_unlock(store);
    return whole;
}

void kvs_scan_job(struct kvs_root *root, void *argument)
{
    struct kvs_store *store = root->store;
    if (!look(root, (uintptr_t)argument)) {
        return; /* there is another scan when it is back */
    }
    kvs_recency_sort(root); /* without memory for it the order of the scan has to do */
    kvs_lock(store);
    root->warming = 0;
    kvs_deletes_resume_locked(store);
    pthread_cond_broadcast(&store->changed);
    kvs_unlock(store);
    kvs_room_restore(root);
}

/* What other processes did since the last time: names that are gone, and (the owner) new ones. */
static void rescan_job(struct kvs_root *root, void *argument)
{
    uintptr_t life = (uintptr_t)argument;
    if (!stopped(root, life)) {
        kvs_unnamed_forget(root);
        kvs_lock(root->store);
        int looks = root->is_owner && !root->warming; /* just taken over: at it already */
        kvs_unlock(root->store);
        if (looks && look(root, life)) {
            kvs_room_restore(root);
        }
    }
    kvs_lock(root->store);
    if (root->looks_life == life) {
        root->rescan_ns = kvs_store_now_ns(root->store);
        root->rescanning = 0;
        kvs_deletes_resume_locked(root->store);
    }
    kvs_unlock(root->store);
}

void kvs_look_soon_locked(struct kvs_root *root)
{
    if (!root->warming && !root->rescanning) {
        void *life = (void *)root->looks_life;
        root->rescanning = kvs_job_add_locked(root, rescan_job, life, 0) == 0;
    }
}

void kvs_scan_anew_locked(struct kvs_root *root)
{
    root->looks_life++;
    root->rescanning = root->warming = 0;
    if (root->is_owner && !root->store->closing) {
        root->warming = kvs_job_add_locked(root, kvs_scan_job, (void *)root->looks_life, 0) == 0;
    }
}
