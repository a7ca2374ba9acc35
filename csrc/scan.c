/*
 * scan.c: looking through a root for files that the index does not know. The scan after open meets
 * all of them; rescans meet what peers published since.
 *
 * Only an owner looks, on a file worker, one look at a time; a scan has helpers, because a cold
 * header is one read that the disk answers in its own time. A look lists the buckets whose change
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

#include "names.h"
#include "root_files.h"
#include "store.h"

/* Of the file workers two help with a scan, and one is left for opens and for what is paced. */
enum { HELPERS = KVS_FILE_WORKERS - 2 };

/* Of one namespace on one root; under the store's lock: a look of before the root was down may come
 * back beside a new one. */
struct kvs_seen {
    uintptr_t life; /* looks_life of the root */
    int64_t at_ns[KVS_BUCKETS];
    uint8_t looks[KVS_BUCKETS]; /* still to be made though nothing changes */
};

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
    struct kvs_names names;
    int error = kvs_names_of(root, bucket->path, KVS_NAME_EXTENT, &names);
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
    struct kvs_names names;
    struct kvs_fs_stat stat;
    kvs_names_of(root, directory, KVS_NAME_TEMPORARY, &names);
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

/* The buckets of one namespace, looked at by several workers. Under the store's lock. */
struct scan {
    struct kvs_namespace *ns;
    uintptr_t life; /* of the look */
    struct kvs_names buckets;
    uint32_t next, active; /* active: buckets that are being looked at */
    int refs, error;
};

/* One bucket. 0: there is no other, or the look has stopped. */
static int scan_step(struct kvs_root *root, struct scan *scan)
{
    struct bucket bucket = {.ns = scan->ns, .life = scan->life};
    kvs_lock(root->store);
    int takes = scan->next < scan->buckets.count && !stopped_locked(root, scan->life);
    const char *name = takes ? scan->buckets.list[scan->next++] : "";
    scan->active += (uint32_t)takes;
    kvs_unlock(root->store);
    if (!takes) {
        return 0;
    }
    bucket.number = (uint32_t)strtoul(name, NULL, 16);
    snprintf(bucket.path, sizeof(bucket.path), "%s/%s", scan->ns->name, name);
    int failed = changed(root, &bucket) ? scan_bucket(root, &bucket) : 0;
    kvs_lock(root->store);
    scan->active--;
    scan->error = scan->error ? scan->error : failed;
    pthread_cond_broadcast(&root->store->changed);
    kvs_unlock(root->store);
    return 1;
}

static void scan_drop_locked(struct scan *scan)
{
    if (--scan->refs == 0) {
        free(scan->buckets.list);
        free(scan);
    }
}

/* A bucket at a time, so that other jobs have their turn. */
static void scan_help_job(struct kvs_root *root, void *argument)
{
    struct scan *scan = argument;
    int more = scan_step(root, scan);
    kvs_lock(root->store);
    if (!more || kvs_job_add_locked(root, scan_help_job, scan, 0) < 0) {
        scan_drop_locked(scan);
    }
    kvs_unlock(root->store);
}

static void scan_ask_for_help(struct kvs_root *root, struct scan *scan)
{
    kvs_lock(root->store);
    for (int i = 0; i < HELPERS && root->warming; i++) {
        scan->refs += kvs_job_add_locked(root, scan_help_job, scan, 0) == 0;
    }
    kvs_unlock(root->store);
}

/* Who is at a bucket is waited for, unless the root's device keeps him; who is queued is not. */
static int scan_end(struct kvs_root *root, struct scan *scan)
{
    struct kvs_store *store = root->store;
    kvs_lock(store);
    while (scan->active > 0 && !stopped_locked(root, scan->life)) {
        pthread_cond_wait(&store->changed, &store->lock);
    }
    int error = scan->error;
    scan_drop_locked(scan);
    kvs_unlock(store);
    return error;
}

static int scan_namespace(struct kvs_root *root, const char *name, uintptr_t life)
{
    struct scan *scan = calloc(1, sizeof(*scan));
    struct kvs_namespace *ns = scan ? namespace_of(root, name, life) : NULL;
    if (!ns) {
        free(scan);
        return -ENOMEM;
    }
    *scan = (struct scan){.ns = ns, .life = life, .refs = 1};
    scan->error = kvs_names_of(root, name, KVS_NAME_BUCKET, &scan->buckets);
    scan_ask_for_help(root, scan);
    while (scan_step(root, scan)) {
    }
    return scan_end(root, scan);
}

/* 0: the root went down meanwhile, and may be back. */
static int look(struct kvs_root *root, uintptr_t life)
{
    struct kvs_store *store = root->store;
    struct kvs_names names;
    char temporary[KVS_PATH_BYTES + 8];
    kvs_lock(store);
    int first = root->looks_begun++ == 0;
    kvs_unlock(store);
    if (first) {
        sweep_temporaries(root, "tmp");
    }
    int error = kvs_names_of(root, ".", KVS_NAME_NAMESPACE, &names);
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
