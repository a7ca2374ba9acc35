/*
 * quarantine.c: files that failed their checks are renamed aside, so that a person can look at them
 * and a new put can take their name. Bounded: beyond the limit the oldest is deleted; what cannot
 * be moved is deleted at once.
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

/* What lies there: how many entries, and the oldest that can be deleted (a directory is a person's,
 * and stays). */
struct shelf {
    uint32_t count;
    char oldest[KVS_PATH_BYTES];
};

static int look_at_one(void *argument, const char *name, uint8_t is_directory)
{
    struct shelf *shelf = argument;
    shelf->count++;
    if (!is_directory && strlen(name) < sizeof(shelf->oldest) - 16 &&
        (shelf->oldest[0] == 0 || strcmp(name, shelf->oldest) < 0)) {
        strcpy(shelf->oldest, name);
    }
    return 0;
}

/* Room for one more. -ENOSPC: it is full of what is not ours to delete. */
static int trim(struct kvs_root *root)
{
    struct kvs_fs *fs = root->store->fs;
    for (int i = 0; i < 2 * FILES_MAX; i++) {
        struct shelf shelf = {0};
        char path[KVS_PATH_BYTES + 16];
        int error = fs->calls->list(fs, root->fd, "quarantine", look_at_one, &shelf);
        if (error < 0 || shelf.count < FILES_MAX) {
            return error;
        }
        snprintf(path, sizeof(path), "quarantine/%s", shelf.oldest);
        error = shelf.oldest[0] ? fs->calls->unlink(fs, root->fd, path) : -ENOSPC;
        if (error < 0 && error != -ENOENT) {
            return error;
        }
    }
    return -ENOSPC;
}

static int count_one(void *argument, const char *name, uint8_t is_directory)
{
    struct kvs_root *root = argument;
    (void)is_directory;
    root->quarantine_count++;
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
    int error = directory_make(root);
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
    error = full ? trim(root) : 0;
    return error ? error : fs->calls->rename(fs, root->fd, path, target);
}

void kvs_judge_begin(struct kvs_root *root)
{
    struct kvs_store *store = root->store;
    kvs_lock(store);
    while (root->judging) {
        pthread_cond_wait(&store->changed, &store->lock);
    }
    root->judging = 1;
    kvs_unlock(store);
}

void kvs_judge_end(struct kvs_root *root)
{
    kvs_lock(root->store);
    root->judging = 0;
    pthread_cond_broadcast(&root->store->changed);
    kvs_unlock(root->store);
}

int kvs_quarantine_move(struct kvs_root *root, const char *path)
{
    struct kvs_fs *fs = root->store->fs;
    int error = move(root, path);
    /* The name has to become free: what cannot be kept is deleted. */
    return error && error != -ENOENT ? fs->calls->unlink(fs, root->fd, path) : error;
}

void kvs_quarantine_locked(struct kvs_store *store, struct kvs_extent *extent)
{
    if (extent->state != KVS_EXTENT_LIVE) {
        return;
    }
    store->stats.quarantined_extents++;
    kvs_leave_locked(store, extent, KVS_REASON_DAMAGED);
    kvs_job_add_locked(&store->roots[extent->root], kvs_leave_job, extent, 1);
}
