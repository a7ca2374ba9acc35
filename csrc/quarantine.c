/*
 * quarantine.c: files that failed their checks, or cannot be read, are renamed aside, so that a
 * person can look at them and a new put can take their name. What cannot be moved is deleted at
 * once.
 *
 * Bounded: 64 entries and a hundredth of the capacity, the newest file excepted; beyond that the
 * oldest file is deleted (a directory or a name of another form is a person's, and stays). Their
 * bytes are charged to the root like those of extents.
 *
 * Runs on file workers. Only the owner moves files; a peer just stops serving the extent. Whoever
 * else adds or removes files: the next count (at each look of scan.c) sees it.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store.h"

enum {
    FILES_MAX = 64,
    SHARE = 100,
    TIME_DIGITS = 12,
    SEQUENCE_DIGITS = 6,
    NAME_MAX_BYTES = KVS_PATH_BYTES - 16
};

struct tally {
    struct kvs_root *root;
    uint32_t entries;
    /* of our own making: */
    uint32_t files;
    uint64_t bytes, next_sequence;
    char oldest[KVS_PATH_BYTES];
};

static int is_ours(const char *name)
{
    static const char digits[] = "0123456789";
    const char *sequence = name + TIME_DIGITS + 1;
    return strlen(name) < NAME_MAX_BYTES && strspn(name, digits) == TIME_DIGITS &&
           name[TIME_DIGITS] == '-' && strspn(sequence, digits) == SEQUENCE_DIGITS &&
           sequence[SEQUENCE_DIGITS] == '-';
}

static int tally_one(void *argument, const char *name, uint8_t is_directory)
{
    struct tally *tally = argument;
    struct kvs_fs *fs = tally->root->store->fs;
    char path[KVS_PATH_BYTES];
    struct kvs_fs_stat stat;
    tally->entries++;
    if (is_directory || !is_ours(name)) {
        return 0;
    }
    snprintf(path, sizeof(path), "quarantine/%s", name);
    if (fs->calls->stat_path(fs, tally->root->fd, path, &stat) < 0) {
        return 0;
    }
    tally->files++;
    tally->bytes += stat.physical_bytes;
    if (!tally->oldest[0] || strcmp(path, tally->oldest) < 0) {
        strcpy(tally->oldest, path);
    }
    uint64_t next = strtoull(name + TIME_DIGITS + 1, NULL, 10) + 1;
    tally->next_sequence = next > tally->next_sequence ? next : tally->next_sequence;
    return 0;
}

static void tally_take(struct kvs_root *root, struct tally *tally)
{
    struct kvs_fs *fs = root->store->fs;
    *tally = (struct tally){.root = root};
    int error = fs->calls->list(fs, root->fd, "quarantine", tally_one, tally);
    if (error && error != -ENOENT) {
        *tally = (struct tally){.root = root};
        return; /* what was counted before holds on */
    }
    kvs_lock(root->store);
    root->used_bytes += tally->bytes;
    kvs_room_refund_locked(root, root->quarantine_bytes);
    root->quarantine_bytes = tally->bytes;
    root->quarantine_files = tally->files;
    if (tally->next_sequence > root->quarantine_sequence) {
        root->quarantine_sequence = tally->next_sequence;
    }
    kvs_unlock(root->store);
}

static int over(const struct kvs_root *root, const struct tally *tally)
{
    return tally->entries > FILES_MAX ||
           (tally->files > 1 && tally->bytes > root->capacity_bytes / SHARE);
}

static int oldest_delete(struct kvs_root *root, const struct tally *tally)
{
    struct kvs_fs *fs = root->store->fs;
    int error = fs->calls->unlink(fs, root->fd, tally->oldest);
    kvs_lock(root->store);
    root->store->stats.quarantine_deleted += error == 0;
    kvs_unlock(root->store);
    return error;
}

void kvs_quarantine_count(struct kvs_root *root)
{
    struct tally tally;
    tally_take(root, &tally);
    while (over(root, &tally) && tally.oldest[0] && oldest_delete(root, &tally) == 0) {
        tally_take(root, &tally);
    }
}

static int directory_make(struct kvs_root *root)
{
    struct kvs_fs *fs = root->store->fs;
    int error = fs->calls->make_directory(fs, root->fd, "quarantine");
    if (error == -ENOTDIR) { /* a file or a link by our name */
        fs->calls->unlink(fs, root->fd, "quarantine"); /* or another worker did */
        error = fs->calls->make_directory(fs, root->fd, "quarantine");
    }
    return error;
}

/* Names sort by age: time first, then a number. */
static int move(struct kvs_root *root, const char *path)
{
    struct kvs_store *store = root->store;
    struct kvs_fs *fs = store->fs;
    char target[KVS_PATH_BYTES];
    const char *name = strrchr(path, '/');
    struct tally tally;
    int error = directory_make(root);
    if (error < 0) {
        return error;
    }
    for (tally_take(root, &tally); tally.entries >= FILES_MAX; tally_take(root, &tally)) {
        if (!tally.oldest[0] || oldest_delete(root, &tally) < 0) {
            return -ENOSPC; /* full of what is not ours to delete */
        }
    }
    kvs_lock(store);
    uint64_t sequence = root->quarantine_sequence++;
    int64_t now_s = kvs_store_now_s(store);
    kvs_unlock(store);
    snprintf(target, sizeof(target), "quarantine/%012" PRId64 "-%06" PRIu64 "-%.70s", now_s,
             sequence % 1000000, name ? name + 1 : path);
    error = fs->calls->rename(fs, root->fd, path, target);
    kvs_quarantine_count(root);
    return error;
}

void kvs_judge_begin(struct kvs_root *root)
{
    struct kvs_store *store = root->store;
    kvs_lock(store);
    while (root->judge) {
        pthread_cond_wait(&store->changed, &store->lock);
    }
    root->judge = kvs_worker_self();
    kvs_unlock(store);
}

void kvs_judge_end(struct kvs_root *root)
{
    kvs_lock(root->store);
    if (root->judge == kvs_worker_self()) { /* else its turn was ended when the root went down */
        root->judge = NULL;
        pthread_cond_broadcast(&root->store->changed);
    }
    kvs_unlock(root->store);
}

int kvs_quarantine_move(struct kvs_root *root, const char *path)
{
    struct kvs_fs *fs = root->store->fs;
    int error = move(root, path);
    /* The name has to become free: what cannot be kept is deleted. */
    return error && error != -ENOENT ? fs->calls->unlink(fs, root->fd, path) : error;
}

void kvs_extent_unreadable_locked(struct kvs_root *root, struct kvs_extent *extent, int again)
{
    if (!extent->unreadable) {
        extent->unreadable = 1;
        extent->unreadable_after = (uint32_t)root->breaker.successes;
    } else if (again && (uint32_t)root->breaker.successes != extent->unreadable_after) {
        kvs_quarantine_locked(root->store, extent, KVS_REASON_IO_ERROR);
    }
}

void kvs_quarantine_locked(struct kvs_store *store, struct kvs_extent *extent,
                           enum kvs_reason reason)
{
    if (extent->state != KVS_EXTENT_LIVE) {
        return;
    }
    store->stats.quarantined_extents++;
    kvs_leave_locked(store, extent, reason);
    struct kvs_root *root = &store->roots[extent->root];
    extent->leave_failed = kvs_job_add_locked(root, kvs_leave_job, extent, 1) < 0;
}
