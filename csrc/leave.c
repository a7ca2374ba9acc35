/*
 * leave.c: how an extent goes. It leaves the index at once; its file gives up its name a little
 * later, on a file worker, unlinked or (damaged) moved aside.
 *
 * In between the name still leads to a file that nobody may serve or take for the winner of the
 * name. So an extent whose file has not left is in root->leaving, and whoever needs its name
 * (kvs_name_clear) does the job at once, or waits for the worker that is at it.
 *
 * Invariants:
 *   1. A file leaves its name once, by whoever comes first; its bytes are given back then, or
 *      when the last read of it is over.
 *   2. Nobody waits for a job that is only queued, so the workers cannot wait for each other.
 *   3. A file that could not be unlinked stays charged and is tried again; the pin taken by
 *      kvs_leave_locked ends with its success.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "store.h"

void kvs_leave_locked(struct kvs_store *store, struct kvs_extent *extent, enum kvs_reason reason)
{
    assert(extent->state == KVS_EXTENT_LIVE);
    kvs_extent_pin_locked(extent); /* given back by kvs_leave */
    kvs_extent_forget_locked(store, extent, reason);
    int aside = reason == KVS_REASON_DAMAGED || reason == KVS_REASON_IO_ERROR;
    extent->leaving = aside ? KVS_LEAVING_ASIDE : KVS_LEAVING_UNLINK;
    kvs_list_add_last(&store->roots[extent->root].leaving, &extent->lru);
}

/* 0 also when the name is gone already. */
static int name_give_up(struct kvs_root *root, struct kvs_extent *extent, int aside)
{
    struct kvs_fs *fs = root->store->fs;
    char path[KVS_PATH_BYTES];
    int error = 0;
    kvs_path_of(extent->ns, &extent->name, path);
    if (!aside) {
        error = fs->calls->unlink(fs, root->fd, path);
    } else if (root->is_owner) {
        error = kvs_quarantine_move(root, path);
    }
    /* A directory in its place, or a file in place of its directory: the name is not ours now. */
    return error == -ENOENT || error == -ENOTDIR || error == -EISDIR ? 0 : error;
}

/* 0 when the file has given up its name, by us or by another. On an error it stays in
 * root->leaving, charged, and the keeper has it tried again. */
static int leave_now(struct kvs_root *root, struct kvs_extent *extent)
{
    struct kvs_store *store = root->store;
    kvs_lock(store);
    while (extent->leaving == KVS_LEAVING_NOW && !kvs_root_down_locked(root)) {
        pthread_cond_wait(&store->changed, &store->lock);
    }
    enum kvs_leaving how = (enum kvs_leaving)extent->leaving;
    int error = 0;
    if (how == KVS_LEAVING_NOW) {
        error = -EHOSTDOWN; /* the worker that is at it does not come back */
    } else if (how) {
        extent->leaving = KVS_LEAVING_NOW;
        kvs_unlock(store);
        error = name_give_up(root, extent, how == KVS_LEAVING_ASIDE);
        kvs_lock(store);
        extent->leaving = (uint8_t)(error ? how : KVS_LEAVING_NOT);
        if (!error) {
            kvs_list_remove(&extent->lru);
            if (how == KVS_LEAVING_UNLINK) {
                int read = extent->file && extent->file->refs > 0; /* its last close is charged */
                root->space.free_bytes += extent->physical_bytes;
                kvs_pace_charge_locked(root, read ? 0 : extent->physical_bytes);
            }
        }
        pthread_cond_broadcast(&store->changed);
    }
    kvs_unlock(store);
    if (how && !error) {
        kvs_file_end(root, extent);
    }
    return error;
}

int kvs_leave(struct kvs_root *root, struct kvs_extent *extent)
{
    int error = leave_now(root, extent);
    kvs_lock(root->store);
    if (error) {
        extent->leave_failed = 1; /* the pin stays for the next try */
    } else {
        kvs_extent_unpin_locked(root->store, extent);
    }
    kvs_unlock(root->store);
    return error;
}

void kvs_leave_job(struct kvs_root *root, void *extent)
{
    kvs_leave(root, extent);
}

void kvs_leave_again_locked(struct kvs_root *root)
{
    for (struct kvs_link *at = root->leaving.next; at != &root->leaving; at = at->next) {
        struct kvs_extent *extent = KVS_ENTRY(at, struct kvs_extent, lru);
        if (extent->leave_failed) {
            extent->leave_failed = kvs_job_add_locked(root, kvs_leave_job, extent, 0) < 0;
        }
    }
}

void kvs_name_clear(struct kvs_root *root, const struct kvs_namespace *ns,
                    const struct kvs_key *name)
{
    struct kvs_extent *found = NULL;
    kvs_lock(root->store);
    for (struct kvs_link *at = root->leaving.next; at != &root->leaving && !found; at = at->next) {
        struct kvs_extent *extent = KVS_ENTRY(at, struct kvs_extent, lru);
        if (extent->ns == ns && memcmp(&extent->name, name, sizeof(*name)) == 0) {
            found = extent;
            kvs_extent_pin_locked(found);
        }
    }
    kvs_unlock(root->store);
    if (found) {
        leave_now(root, found);
        kvs_lock(root->store);
        kvs_extent_unpin_locked(root->store, found);
        kvs_unlock(root->store);
    }
}
