/*
 * buckets.c: the directories that extents lie in: made when a put needs one, and removed when they
 * are empty and the disk has no inodes for others.
 *
 * Empty ones are kept otherwise: most are used again, and to make one costs more than to have it.
 *
 * Invariant: a bucket may vanish whenever it is empty. A put that finds it gone makes it anew
 * (birth.c, publish.c); what was removed and is still noted as made costs that put one try.
 */
#include "buckets.h"

#include <errno.h>
#include <stdio.h>

enum { LOOKED_AT_MAX = 512, REMOVED_MAX = 16 }; /* in one call: a put waits for it */

static void move_if_in_the_way(struct kvs_root *root, const char *path)
{
    struct kvs_fs *fs = root->store->fs;
    struct kvs_fs_stat stat;
    if (fs->calls->stat_path(fs, root->fd, path, &stat) == 0 && !stat.is_directory) {
        kvs_quarantine_move(root, path);
    }
}

/* What stands where a directory of ours should be (a file, a link that may lead out of the root) is
 * moved aside. */
static int bucket_make_anew(struct kvs_root *root, const struct kvs_namespace *ns, const char *path)
{
    struct kvs_fs *fs = root->store->fs;
    kvs_judge_begin(root);
    int error = fs->calls->make_directory(fs, root->fd, path);
    if (error == -ENOTDIR) {
        move_if_in_the_way(root, ns->name);
        move_if_in_the_way(root, path);
        error = fs->calls->make_directory(fs, root->fd, path);
    }
    kvs_judge_end(root);
    return error;
}

int kvs_bucket_make(struct kvs_root *root, struct kvs_namespace *ns, const struct kvs_key *key,
                    char *path)
{
    struct kvs_store *store = root->store;
    uint32_t bucket;
    kvs_bucket_of(ns, key, path, &bucket);
    uint8_t bit = (uint8_t)(1u << (bucket % 8));
    kvs_lock(store);
    int there = ns->bucket_made[root->number][bucket / 8] & bit;
    kvs_unlock(store);
    int error = there ? 0 : store->fs->calls->make_directory(store->fs, root->fd, path);
    if (error == -ENOTDIR && root->is_owner) {
        error = bucket_make_anew(root, ns, path);
    }
    kvs_lock(store);
    if (error == 0) {
        ns->bucket_made[root->number][bucket / 8] |= bit;
    }
    kvs_unlock(store);
    return error;
}

static void forget(struct kvs_root *root, struct kvs_namespace *ns, uint32_t bucket)
{
    kvs_lock(root->store);
    ns->bucket_made[root->number][bucket / 8] &= (uint8_t)~(1u << (bucket % 8));
    kvs_unlock(root->store);
}

void kvs_bucket_forget(struct kvs_root *root, struct kvs_namespace *ns, const struct kvs_key *key)
{
    char path[KVS_PATH_BYTES];
    uint32_t bucket;
    kvs_bucket_of(ns, key, path, &bucket);
    forget(root, ns, bucket);
}

/* The next bucket in turn, of all namespaces; NULL: there is none, or they are not ours to remove.
 */
static struct kvs_namespace *next_of_turn(struct kvs_root *root, uint32_t *bucket)
{
    struct kvs_store *store = root->store;
    struct kvs_namespace *ns = NULL;
    kvs_lock(store);
    if (store->namespace_count && root->is_owner && !kvs_root_down_locked(root)) {
        uint64_t turn = root->bucket_turn++;
        *bucket = (uint32_t)(turn % KVS_BUCKETS);
        ns = store->namespaces[turn / KVS_BUCKETS % store->namespace_count];
    }
    kvs_unlock(store);
    return ns;
}

uint32_t kvs_buckets_remove(struct kvs_root *root)
{
    struct kvs_fs *fs = root->store->fs;
    uint32_t removed = 0, bucket;
    for (int i = 0; i < LOOKED_AT_MAX && removed < REMOVED_MAX; i++) {
        struct kvs_namespace *ns = next_of_turn(root, &bucket);
        if (!ns) {
            break;
        }
        char path[KVS_PATH_BYTES];
        snprintf(path, sizeof(path), "%s/%03x", ns->name, bucket);
        if (fs->calls->remove_directory(fs, root->fd, path) == 0) {
            removed++;
            forget(root, ns, bucket);
        }
    }
    return removed;
}
