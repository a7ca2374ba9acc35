/*
 * unnamed.c: open files whose name another process took away (an owner that evicted, a peer that
 * deleted). Nobody else can give their bytes back: the file system frees them when the last
 * descriptor closes, and the budget of the owner counts them no more. So every process looks at
 * the files that it keeps open from time to time, and lets go of those without a name.
 *
 * Runs on file workers. What a load is reading is let go of when it is done.
 */
#include <stdlib.h>

#include "store.h"

/* Every open file of the root, held. Their number is bounded by the cache of open files. */
static uint32_t files_take_locked(struct kvs_root *root, struct kvs_file **files)
{
    struct kvs_store *store = root->store;
    uint32_t count = 0;
    for (struct kvs_link *at = store->files.next; at != &store->files; at = at->next) {
        struct kvs_file *file = KVS_ENTRY(at, struct kvs_file, lru);
        if (file->root == root && file->extent) {
            kvs_file_ref_locked(file);
            files[count++] = file;
        }
    }
    return count;
}

/* The record goes; its bytes are given back when the file is closed. */
static void forget(struct kvs_root *root, struct kvs_file *file)
{
    struct kvs_store *store = root->store;
    kvs_lock(store);
    struct kvs_extent *extent = file->extent;
    int ours = extent && extent->state == KVS_EXTENT_LIVE;
    if (ours) {
        kvs_extent_pin_locked(extent);
        kvs_extent_forget_locked(store, extent, KVS_REASON_EVICTED);
    }
    kvs_unlock(store);
    if (ours) {
        kvs_file_end(root, extent);
        kvs_lock(store);
        kvs_extent_unpin_locked(store, extent);
        kvs_unlock(store);
    }
}

void kvs_unnamed_forget(struct kvs_root *root)
{
    struct kvs_store *store = root->store;
    struct kvs_fs_stat stat;
    kvs_lock(store);
    struct kvs_file **files = calloc(store->file_count + 1, sizeof(struct kvs_file *));
    uint32_t count = files ? files_take_locked(root, files) : 0;
    kvs_unlock(store);
    for (uint32_t i = 0; i < count; i++) {
        if (store->fs->calls->stat_fd(store->fs, files[i]->fd, &stat) == 0 &&
            stat.link_count == 0) {
            forget(root, files[i]);
        }
        kvs_lock(store);
        kvs_file_drop_locked(store, files[i]);
        kvs_unlock(store);
    }
    free(files);
}
