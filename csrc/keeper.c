/*
 * keeper.c: what time does: leases end, loads miss their deadlines, extents expire, times are
 * written back, the owner looks for peers' extents, an `auto` peer tries for the lock.
 *
 * One thread per store, ten rounds a second; with manual_ticks only kvs_tick runs a round. It makes
 * no call of fs.h itself: those become jobs.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "store.h"

enum { ROUND_MS = 100, RESCAN_S = 10, LOCK_RETRY_S = 1, WRITE_BACK_MAX_S = 600, PEER_USE_S = 30 };

/* ---- times ---- */

void kvs_times_mark_locked(struct kvs_store *store, struct kvs_extent *extent)
{
    if (!extent->dirty.next) {
        extent->dirty_since_ns = kvs_store_now_ns(store);
        kvs_list_add_last(&store->roots[extent->root].dirty_times, &extent->dirty);
    }
}

/* Never shortens what another process wrote. */
static void times_write(struct kvs_root *root, int fd, struct kvs_extent *extent)
{
    struct kvs_store *store = root->store;
    struct kvs_fs_stat stat;
    int known = store->fs->calls->stat_fd(store->fs, fd, &stat) == 0;
    kvs_lock(store);
    int64_t used = extent->last_use_s, until = extent->valid_until_s;
    if (known) {
        int64_t used_by_others = kvs_last_use_s(root, extent, &stat);
        until = stat.mtime_s > until ? stat.mtime_s : until;
        used = used_by_others > used ? used_by_others : used;
    }
    kvs_unlock(store);
    if (store->fs->calls->set_times(store->fs, fd, used, until) == 0) {
        kvs_lock(store);
        extent->written_use_s = used;
        kvs_unlock(store);
    }
}

/* The extent comes pinned. */
void kvs_times_job(struct kvs_root *root, void *argument)
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

static void times_write_back_locked(struct kvs_root *root, int64_t now_ns, int all)
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
        if (kvs_job_add_locked(root, kvs_times_job, extent, 0) < 0) {
            kvs_extent_unpin_locked(root->store, extent);
        }
    }
}

void kvs_times_flush_all(struct kvs_store *store)
{
    kvs_lock(store);
    for (uint32_t i = 0; i < store->root_count; i++) {
        times_write_back_locked(&store->roots[i], kvs_store_now_ns(store), 1);
    }
    kvs_unlock(store);
}

/* ---- roles ---- */

static void lock_job(struct kvs_root *root, void *argument)
{
    (void)argument;
    char holder[128];
    if (kvs_root_try_lock(root, holder, sizeof(holder)) == 0) {
        kvs_scan_job(root, NULL);
    }
}

static void root_round_locked(struct kvs_root *root, int64_t now_ns)
{
    struct kvs_store *store = root->store;
    kvs_breaker_round_locked(root, now_ns);
    if (kvs_root_down_locked(root)) {
        return;
    }
    if (now_ns - root->breaker.looked_ns >= RESCAN_S * KVS_NS_PER_S) {
        root->breaker.looked_ns = now_ns;
        kvs_job_add_locked(root, kvs_look_job, NULL, 0);
    }
    kvs_expire_locked(root);
    kvs_leave_again_locked(root);
    times_write_back_locked(root, now_ns, 0);
    kvs_scrub_next_locked(root);
    if (root->is_owner && !root->warming && !root->rescanning &&
        now_ns - root->rescan_ns >= RESCAN_S * KVS_NS_PER_S) {
        root->rescanning = kvs_job_add_locked(root, kvs_rescan_job, NULL, 0) == 0;
    }
    if (!root->is_owner && (store->role == KVS_ROLE_AUTO || root->was_owner) &&
        now_ns - root->lock_tried_ns >= LOCK_RETRY_S * KVS_NS_PER_S) {
        root->lock_tried_ns = now_ns;
        kvs_job_add_locked(root, lock_job, NULL, 0);
    }
}

void kvs_keeper_round(struct kvs_store *store)
{
    kvs_lock(store);
    if (!store->closing) {
        int64_t now_ns = kvs_store_now_ns(store);
        kvs_lease_expire_locked(store, now_ns);
        kvs_load_deadlines_locked(store, now_ns);
        for (uint32_t i = 0; i < store->root_count; i++) {
            root_round_locked(&store->roots[i], now_ns);
        }
    }
    kvs_unlock(store);
}

int kvs_tick(struct kvs_store *store)
{
    int error = kvs_store_check(store);
    if (!error) {
        kvs_keeper_round(store);
    }
    return error;
}

void *kvs_keeper_thread(void *argument)
{
    struct kvs_store *store = argument;
    kvs_lock(store);
    while (!store->closing) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += ROUND_MS * 1000000l;
        until.tv_sec += until.tv_nsec / KVS_NS_PER_S;
        until.tv_nsec %= KVS_NS_PER_S;
        pthread_cond_timedwait(&store->keeper_wake, &store->lock, &until);
        kvs_unlock(store);
        kvs_keeper_round(store);
        kvs_lock(store);
    }
    kvs_unlock(store);
    return NULL;
}
