/*
 * times.c: the two times of an extent (valid until, last use) between memory and its file.
 *
 * Read at adoption and before an extent goes, because peers renew files too; written back in bulk,
 * by file workers. The store's clock (wall.c) judges what is read: a file that was used in the
 * future was used now, one that is valid for longer than any class means was made by a wrong clock.
 */
#include <errno.h>

#include "store.h"

enum { WRITE_BACK_MAX_S = 600, PEER_USE_S = 30, CLOCKS_DIFFER_S = 60 };

/* What a file's times say of its last use; never later than now. A last use before the extent was
 * made, or at the very second its time is up, is no time but what a file system without atime shows
 * instead. A renewal moves mtime: it was less the ttl ago. */
static int64_t last_use_s(const struct kvs_root *root, const struct kvs_extent *extent,
                          const struct kvs_fs_stat *stat)
{
    struct kvs_store *store = root->store;
    int64_t now_s = kvs_store_now_s(store), used_s = stat->atime_s;
    int made_before_it = extent->created_s > now_s || used_s >= extent->created_s;
    if (root->lost & KVS_FS_LOST_ATIME || !made_before_it || used_s == stat->mtime_s) {
        used_s = stat->mtime_s - store->classes[extent->class_number].ttl_s;
    }
    return used_s < now_s ? used_s : now_s;
}

void kvs_times_take_locked(const struct kvs_root *root, struct kvs_extent *extent,
                           const struct kvs_fs_stat *stat)
{
    struct kvs_store *store = root->store;
    int64_t latest_s = kvs_store_now_s(store) + kvs_longest_ttl_s(store);
    extent->disk_until_s = stat->mtime_s;
    extent->valid_until_s = stat->mtime_s < latest_s ? stat->mtime_s : latest_s;
    extent->last_use_s = extent->written_use_s = last_use_s(root, extent, stat);
    extent->times_ours = 0;
}

/* The store's clock was put right: times of this life keep their distance from now, those from
 * disk keep their value, and are judged anew. */
void kvs_times_follow_locked(struct kvs_store *store, struct kvs_extent *extent, int64_t by_s)
{
    int64_t now_s = kvs_store_now_s(store), latest_s = now_s + kvs_longest_ttl_s(store);
    if (extent->times_ours) {
        extent->valid_until_s += by_s;
        extent->last_use_s += by_s;
        extent->created_s += by_s;
        extent->times_wrong |= by_s < 0;
        kvs_times_mark_locked(store, extent);
    } else {
        extent->valid_until_s = extent->disk_until_s < latest_s ? extent->disk_until_s : latest_s;
        extent->last_use_s = extent->last_use_s < now_s ? extent->last_use_s : now_s;
    }
}

void kvs_times_refresh(struct kvs_root *root, struct kvs_extent *extent)
{
    struct kvs_store *store = root->store;
    char path[KVS_PATH_BYTES];
    struct kvs_fs_stat stat;
    kvs_path_of(extent->ns, &extent->name, path);
    if (store->fs->calls->stat_path(store->fs, root->fd, path, &stat) < 0) {
        return;
    }
    kvs_lock(store);
    int64_t now_s = kvs_store_now_s(store);
    /* What only a wrong clock can have written would spare the file for ever. */
    int64_t used_s = last_use_s(root, extent, &stat);
    if (used_s > extent->last_use_s && stat.atime_s <= now_s + CLOCKS_DIFFER_S) {
        extent->last_use_s = extent->written_use_s = used_s;
    }
    if (stat.mtime_s > extent->valid_until_s &&
        stat.mtime_s <= now_s + kvs_longest_ttl_s(store) + CLOCKS_DIFFER_S) {
        extent->disk_until_s = extent->valid_until_s = stat.mtime_s;
        extent->times_ours = 0;
    }
    kvs_unlock(store);
}

void kvs_times_mark_locked(struct kvs_store *store, struct kvs_extent *extent)
{
    if (!extent->dirty.next) {
        extent->dirty_since_ns = kvs_store_now_ns(store);
        kvs_list_add_last(&store->roots[extent->root].dirty_times, &extent->dirty);
    }
}

/* Never shortens what another process wrote. What this one wrote before a step back of the clock
 * was followed is shortened. */
static void times_write(struct kvs_root *root, int fd, struct kvs_extent *extent)
{
    struct kvs_store *store = root->store;
    struct kvs_fs_stat stat;
    int known = store->fs->calls->stat_fd(store->fs, fd, &stat) == 0;
    kvs_lock(store);
    int64_t used = extent->last_use_s, until = extent->valid_until_s;
    if (known) {
        int64_t now_s = kvs_store_now_s(store), latest_s = now_s + kvs_longest_ttl_s(store);
        int64_t used_by_others = last_use_s(root, extent, &stat);
        int wrong = extent->times_wrong;
        until = stat.mtime_s > until && (!wrong || stat.mtime_s <= latest_s) ? stat.mtime_s : until;
        used = used_by_others > used && (!wrong || stat.atime_s <= now_s) ? used_by_others : used;
    }
    kvs_unlock(store);
    if (store->fs->calls->set_times(store->fs, fd, used, until) == 0) {
        kvs_lock(store);
        extent->times_wrong = 0;
        extent->written_use_s = used;
        kvs_unlock(store);
    }
}

/* The extent comes pinned. */
static void times_job(struct kvs_root *root, void *argument)
{
    struct kvs_extent *extent = argument;
    struct kvs_store *store = root->store;
    char path[KVS_PATH_BYTES];
    kvs_lock(store);
    struct kvs_file *file =
        extent->state == KVS_EXTENT_LIVE ? kvs_file_hold_locked(store, extent) : NULL;
    int live = extent->state == KVS_EXTENT_LIVE;
    kvs_unlock(store);
    if (file) {
        times_write(root, file->fd, extent);
    } else if (live) {
        kvs_path_of(extent->ns, &extent->name, path);
        int fd = store->fs->calls->open_read(store->fs, root->fd, path);
        if (fd >= 0) {
            times_write(root, fd, extent);
            store->fs->calls->close(store->fs, fd);
        }
    }
    kvs_lock(store);
    if (file) {
        kvs_file_drop_locked(store, file);
    }
    kvs_extent_unpin_locked(store, extent);
    kvs_unlock(store);
}

static int64_t write_back_age_ns(const struct kvs_root *root, const struct kvs_extent *extent)
{
    if (!root->is_owner) {
        return extent->last_use_s - extent->written_use_s >= PEER_USE_S ? 0
                                                                        : PEER_USE_S * KVS_NS_PER_S;
    }
    int64_t age_s = root->store->classes[extent->class_number].ttl_s / 20;
    return (age_s < WRITE_BACK_MAX_S ? age_s : WRITE_BACK_MAX_S) * KVS_NS_PER_S;
}

/* Younger changes than this are not due in any class. */
static int64_t youngest_due_ns(const struct kvs_root *root)
{
    int64_t least_s = root->is_owner ? WRITE_BACK_MAX_S : 0;
    for (uint32_t i = 0; i < root->store->class_count; i++) {
        int64_t age_s = root->store->classes[i].ttl_s / 20;
        least_s = age_s < least_s ? age_s : least_s;
    }
    return least_s * KVS_NS_PER_S;
}

void kvs_times_write_back_locked(struct kvs_root *root, int64_t now_ns, int all)
{
    struct kvs_link *at = root->dirty_times.next;
    int64_t youngest_ns = youngest_due_ns(root);
    while (at != &root->dirty_times) {
        struct kvs_extent *extent = KVS_ENTRY(at, struct kvs_extent, dirty);
        int64_t age_ns = now_ns - extent->dirty_since_ns;
        at = at->next;
        if (!all && age_ns < youngest_ns) {
            break; /* the list is in order of change: the rest is younger still */
        }
        if (!all && age_ns < write_back_age_ns(root, extent)) {
            continue;
        }
        kvs_list_remove(&extent->dirty);
        kvs_extent_pin_locked(extent);
        if (kvs_job_add_locked(root, times_job, extent, 0) < 0) {
            kvs_extent_unpin_locked(root->store, extent);
        }
    }
}

void kvs_times_flush_all(struct kvs_store *store)
{
    kvs_lock(store);
    for (uint32_t i = 0; i < store->root_count; i++) {
        kvs_times_write_back_locked(&store->roots[i], kvs_store_now_ns(store), 1);
    }
    kvs_unlock(store);
}
