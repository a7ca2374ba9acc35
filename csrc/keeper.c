/*
 * keeper.c: what time does: the wall clock is followed, leases end, loads miss their deadlines,
 * syncs are given up, extents expire, times are written back, what is paced goes on, the removal
 * ring is saved, all look for what other processes did, the owner scrubs, an `auto` peer tries for
 * the lock.
 *
 * One thread per store, ten rounds a second; with manual_ticks only kvs_tick runs a round. It makes
 * no call of fs.h itself: those become jobs.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "store.h"

enum { ROUND_MS = 100, RESCAN_S = 10, LOCK_RETRY_S = 1 };

static void lock_job(struct kvs_root *root, void *argument)
{
    (void)argument;
    char holder[128];
    if (kvs_root_try_lock(root, holder, sizeof(holder)) == 0) {
        kvs_lock(root->store);
        uintptr_t life = root->looks_life;
        kvs_unlock(root->store);
        kvs_scan_job(root, (void *)life);
    }
    kvs_lock(root->store);
    root->locking = 0;
    kvs_unlock(root->store);
}

static void look_job(struct kvs_root *root, void *argument)
{
    (void)argument;
    kvs_path_look(root);
    kvs_lock(root->store);
    root->path_looking = 0;
    kvs_unlock(root->store);
}

static void root_round_locked(struct kvs_root *root, int64_t now_ns)
{
    struct kvs_store *store = root->store;
    kvs_breaker_round_locked(root, now_ns);
    kvs_pace_round_locked(root); /* a root that is down too: its files are let go of */
    kvs_scrub_next_locked(root);
    if (kvs_root_down_locked(root)) {
        return;
    }
    if (!root->path_looking && now_ns - root->breaker.looked_ns >= RESCAN_S * KVS_NS_PER_S) {
        root->breaker.looked_ns = now_ns;
        root->path_looking = kvs_job_add_locked(root, look_job, NULL, 0) == 0;
    }
    kvs_expire_locked(root);
    kvs_removed_round_locked(root, now_ns);
    kvs_leave_again_locked(root);
    kvs_times_write_back_locked(root, now_ns, 0);
    if (now_ns - root->rescan_ns >= RESCAN_S * KVS_NS_PER_S) {
        kvs_look_soon_locked(root);
    }
    if (!root->is_owner && !root->locking && (store->role == KVS_ROLE_AUTO || root->was_owner) &&
        now_ns - root->lock_tried_ns >= LOCK_RETRY_S * KVS_NS_PER_S) {
        root->lock_tried_ns = now_ns;
        root->locking = kvs_job_add_locked(root, lock_job, NULL, 0) == 0;
    }
}

void kvs_keeper_round(struct kvs_store *store)
{
    kvs_lock(store);
    if (!store->closing) {
        int64_t now_ns = kvs_store_now_ns(store);
        kvs_wall_round_locked(store, now_ns);
        kvs_lease_expire_locked(store, now_ns);
        kvs_load_deadlines_locked(store, now_ns);
        kvs_flushes_round_locked(store, now_ns);
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
