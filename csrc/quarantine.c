/*
 * quarantine.c: files that failed their checks, or cannot be read, are renamed aside, so that a
 * person can look at them and a new put can take their name. Bounded: beyond the limit the oldest
 * is deleted.
 *
 * Runs on file workers. Only the owner moves files; a peer just stops serving the extent.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store.h"

enum { FILES_MAX = 64, TIME_DIGITS = 12 };

static int oldest_of(void *argument, const char *name, uint8_t is_directory)
{
    char *oldest = argument;
    if (!is_directory && strlen(name) < KVS_PATH_BYTES - 16 &&
        (oldest[0] == 0 || strcmp(name, oldest) < 0)) {
        strcpy(oldest, name);
    }
    return 0;
}

static void trim(struct kvs_root *root)
{
    struct kvs_fs *fs = root->store->fs;
    char oldest[KVS_PATH_BYTES] = "", path[KVS_PATH_BYTES + 16];
    fs->calls->list(fs, root->fd, "quarantine", oldest_of, oldest);
    if (oldest[0]) {
        snprintf(path, sizeof(path), "quarantine/%s", oldest);
        fs->calls->unlink(fs, root->fd, path);
    }
}

static int count_one(void *argument, const char *name, uint8_t is_directory)
{
    struct kvs_root *root = argument;
    root->quarantine_count += !is_directory;
    if (strlen(name) > TIME_DIGITS + 1) {
        uint64_t next = strtoull(name + TIME_DIGITS + 1, NULL, 10) + 1;
        root->quarantine_sequence =
            next > root->quarantine_sequence ? next : root->quarantine_sequence;
    }
    return 0;
}

/* What earlier lives left; the owner, before its first own move. */
void kvs_quarantine_count(struct kvs_root *root)
{
    struct kvs_fs *fs = root->store->fs;
    root->quarantine_count = 0;
    fs->calls->list(fs, root->fd, "quarantine", count_one, root);
}

/* Names sort by age: time first, then a number. */
int kvs_quarantine_move(struct kvs_root *root, const char *path)
{
    struct kvs_store *store = root->store;
    struct kvs_fs *fs = store->fs;
    char target[KVS_PATH_BYTES];
    const char *name = strrchr(path, '/');
    int error = fs->calls->make_directory(fs, root->fd, "quarantine");
    if (error < 0) {
        return error;
    }
    kvs_lock(store);
    uint64_t sequence = root->quarantine_sequence++;
    int full = root->quarantine_count >= FILES_MAX;
    root->quarantine_count += !full;
    kvs_unlock(store);
    snprintf(target, sizeof(target), "quarantine/%012" PRId64 "-%06" PRIu64 "-%.70s",
             store->clock->wall_s(store->clock), sequence % 1000000, name ? name + 1 : path);
    error = fs->calls->rename(fs, root->fd, path, target);
    if (full) {
        trim(root);
    }
    return error;
}

void kvs_extent_unreadable_locked(struct kvs_root *root, struct kvs_extent *extent, int again)
{
    if (!extent->unreadable) {
        extent->unreadable = 1;
        extent->unreadable_after = root->breaker.successes;
    } else if (again && root->breaker.successes > extent->unreadable_after) {
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
    kvs_job_add_locked(&store->roots[extent->root], kvs_leave_job, extent, 1);
}
