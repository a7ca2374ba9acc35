/*
 * unnamed.c: open files whose name another process took away (an owner that evicted, a peer that
 * deleted). Nobody else can give their bytes back: the file system frees them when the last
 * descriptor closes, and the budget of the owner counts them no more. So every process looks at
 * the files that it keeps open from time to time, and lets go of those without a name.
 *
 * Runs on file workers. What a load is reading is let go of when it is done.
 */
#include "store.h"

/* One at a time is held: a device may keep us, and what is held counts as being read. The next of
 * this round at or behind `at`, else before it; NULL: all were looked at. */
static struct kvs_file *next_take_locked(struct kvs_root *root, const struct kvs_link *at)
{
    const struct kvs_link *files = &root->store->files;
    for (int rest = 1; rest >= 0; rest--, at = files->next) {
        for (; at != files; at = at->next) {
            struct kvs_file *file = KVS_ENTRY(at, struct kvs_file, lru);
            if (file->root == root && file->extent && file->looked != root->unnamed_looks) {
                file->looked = root->unnamed_looks;
                kvs_file_ref_locked(file);
                return file;
            }
        }
    }
    return NULL;
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
    root->unnamed_looks++;
    struct kvs_file *file = next_take_locked(root, store->files.next);
    while (file && !kvs_root_down_locked(root)) {
        kvs_unlock(store);
        if (store->fs->calls->stat_fd(store->fs, file->fd, &stat) == 0 && stat.link_count == 0) {
            forget(root, file);
        }
        kvs_lock(store);
        struct kvs_file *next = next_take_locked(root, file->lru.next);
        kvs_file_drop_locked(store, file);
        file = next;
    }
    if (file) {
        kvs_file_drop_locked(store, file);
    }
    kvs_unlock(store);
}
