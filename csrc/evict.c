/*
 * evict.c: room. The budget of physical bytes of a root, the reserve of free space, eviction:
 * expired extents first, then by recency.
 *
 * Runs on file workers. Nothing here is paced: a put waits for the room.
 *
 * Invariants:
 *   1. Bytes are charged before they are allocated and given back after the unlink; used_bytes
 *      never exceeds capacity_bytes by what the owner writes. What peers wrote counts from its
 *      adoption on, and after each scan there is room again.
 *   2. Pinned extents are never chosen. Only the owner evicts.
 *   3. Every loop ends: each round unlinks something, or waits for one that does, or stops.
 */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "buckets.h"
#include "store.h"

enum {
    SPACE_LIFE_NS = 1000000000,
    SETTLE_TRIES = 50,
    SETTLE_NS = 2000000,
    SETTLE_BYTES = 1 << 20, /* directories and the like make figures differ for good */
    FULL_TRIES = 8,   /* evictions for one put that met a full disk */
    INODES_FEW = 64,  /* others take some between an error and the look at it */
    STUCK_MAX = 4,    /* files that could not be unlinked, in one search */
    CANDIDATES = 64   /* extents that a peer used, passed over in one search */
};

void kvs_room_refund_locked(struct kvs_root *root, uint64_t bytes)
{
    root->used_bytes -= bytes < root->used_bytes ? bytes : root->used_bytes;
}

void kvs_room_taken_locked(struct kvs_root *root, uint64_t bytes, int allocated)
{
    root->promised_bytes -= bytes;
    if (allocated) { /* the next look at the file system sees it */
        uint64_t free_bytes = root->space.free_bytes;
        root->space.free_bytes -= bytes < free_bytes ? bytes : free_bytes;
    }
}

void kvs_count_removed_locked(struct kvs_store *store, const struct kvs_extent *extent,
                              enum kvs_reason reason)
{
    int64_t now_s = kvs_store_now_s(store);
    struct kvs_stats *stats = &store->stats;
    stats->removed_in_class[extent->class_number]++;
    if (reason == KVS_REASON_EXPIRED) {
        stats->expired_extents++;
        return;
    }
    stats->evicted_extents++;
    stats->evicted_age_s_sum[extent->class_number] +=
        now_s > extent->created_s ? (uint64_t)(now_s - extent->created_s) : 0;
    stats->evicted_before_ttl[extent->class_number] += extent->valid_until_s > now_s;
}

/* The least recently used extent that nobody holds; pinned afterwards. Expired ones go first, but
 * not while the clock is in doubt. */
static struct kvs_extent *victim_locked(struct kvs_root *root)
{
    struct kvs_extent *expired = NULL;
    if (!root->is_owner || kvs_root_down_locked(root)) {
        return NULL;
    }
    if (root->store->wall.step_s == 0) {
        expired = kvs_expiry_first_locked(root, kvs_store_now_s(root->store));
    }
    int may = expired && expired->pins == 0;
    struct kvs_extent *victim = may ? expired : kvs_recency_victim_locked(root);
    if (victim) {
        kvs_extent_pin_locked(victim);
    }
    return victim;
}

/* A peer that loaded the extent moved its atime on: spare it while that is fresh. */
static int spared_by_peer(struct kvs_root *root, struct kvs_extent *extent)
{
    struct kvs_store *store = root->store;
    kvs_lock(store);
    int64_t used_before_s = extent->last_use_s;
    kvs_unlock(store);
    kvs_times_refresh(root, extent);
    kvs_lock(store);
    int spared = extent->last_use_s > used_before_s &&
                 kvs_store_now_s(store) - extent->last_use_s < store->min_age_s;
    if (spared && extent->state == KVS_EXTENT_LIVE) {
        kvs_recency_add_locked(root, extent);
    }
    kvs_unlock(store);
    return spared;
}

int kvs_evict_one(struct kvs_root *root, int force)
{
    struct kvs_store *store = root->store;
    int stuck = 0;
    if (kvs_slow_hurry(root)) {
        return 0; /* what is to be freed anyway */
    }
    for (int i = 0; i < CANDIDATES && stuck < STUCK_MAX; i++) {
        kvs_lock(store);
        struct kvs_extent *extent = victim_locked(root);
        kvs_unlock(store);
        if (!extent) {
            return -ENOSPC;
        }
        int spared = !force && spared_by_peer(root, extent);
        kvs_lock(store);
        /* A load or a lease may have come in while the lock was open. */
        int gone = !spared && extent->pins == 1 && extent->state == KVS_EXTENT_LIVE;
        if (gone) {
            int expired = extent->valid_until_s <= kvs_store_now_s(store);
            enum kvs_reason reason = expired ? KVS_REASON_EXPIRED : KVS_REASON_EVICTED;
            kvs_count_removed_locked(store, extent, reason);
            kvs_leave_locked(store, extent, reason);
        }
        kvs_extent_unpin_locked(store, extent);
        kvs_unlock(store);
        if (gone && kvs_leave(root, extent) == 0) {
            return 0;
        }
        stuck += gone; /* out of the index for nothing: a disk that refuses all of them stops us */
    }
    return -ENOSPC;
}

static int inodes_short(struct kvs_root *root)
{
    struct kvs_fs *fs = root->store->fs;
    struct kvs_fs_space space;
    /* Not every file system has a number of them. */
    return fs->calls->space(fs, root->fd, &space) == 0 && space.total_inodes > 0 &&
           space.free_inodes < INODES_FEW;
}

/* Eviction alone leaves the directories, until they have all inodes. Where these are what is short,
 * empty directories go before any extent does; a quota does not say what it is short of. */
int kvs_evict_helps(struct kvs_root *root, int error, uint32_t *tries)
{
    int full = error == -ENOSPC || error == -EDQUOT;
    if (!full || (*tries)++ >= FULL_TRIES) {
        return 0;
    }
    int removed = (error == -EDQUOT || inodes_short(root)) && kvs_buckets_remove(root) > 0;
    return (removed && error == -ENOSPC) || kvs_evict_one(root, 1) == 0 || removed;
}

static void space_refresh(struct kvs_root *root)
{
    struct kvs_store *store = root->store;
    kvs_lock(store);
    int64_t now_ns = kvs_store_now_ns(store);
    int stale = root->space_read_ns == 0 || now_ns - root->space_read_ns >= SPACE_LIFE_NS;
    if (stale) {
        root->space_read_ns = now_ns;
    }
    kvs_unlock(store);
    struct kvs_fs_space space;
    if (stale && store->fs->calls->space(store->fs, root->fd, &space) == 0) {
        kvs_lock(store);
        root->space = space;
        kvs_unlock(store);
    }
}

/* Some file systems free what was unlinked a little later (xfs). Waits, a moment at most, until the
 * disk has what we believe to have freed: else others would find less than the reserve. */
static void space_settle(struct kvs_root *root)
{
    struct kvs_store *store = root->store;
    struct kvs_fs_space space;
    const struct timespec moment = {0, SETTLE_NS};
    int settled = 0;
    for (int i = 0; i < SETTLE_TRIES && !settled; i++) {
        if (i > 0) {
            nanosleep(&moment, NULL);
        }
        settled = store->fs->calls->space(store->fs, root->fd, &space) < 0;
        kvs_lock(store);
        if (!settled && space.free_bytes + SETTLE_BYTES >= root->space.free_bytes) {
            root->space = space.free_bytes > root->space.free_bytes ? space : root->space;
            settled = 1;
        }
        kvs_unlock(store);
    }
}

/* One worker at a time evicts for puts, the others look again when it has: else each would evict
 * for room that one victim gives to all of them. 0, or -ENOSPC. */
static int evict_in_turn(struct kvs_root *root)
{
    struct kvs_store *store = root->store;
    const struct kvs_worker *self = kvs_worker_self();
    kvs_lock(store);
    int waited = root->evictor != NULL;
    if (waited) {
        pthread_cond_wait(&store->changed, &store->lock);
    } else {
        root->evictor = self;
    }
    kvs_unlock(store);
    int error = waited ? 0 : kvs_evict_one(root, 0);
    kvs_lock(store);
    if (!waited && root->evictor == self) { /* else its turn ended when the root went down */
        root->evictor = NULL;
        pthread_cond_broadcast(&store->changed);
    }
    kvs_unlock(store);
    return error;
}

int kvs_room_charge(struct kvs_root *root, uint64_t bytes)
{
    struct kvs_store *store = root->store;
    space_refresh(root);
    for (;;) {
        kvs_lock(store);
        /* A peer does not know all that is there: the owner keeps the budget. */
        int fits = !root->is_owner || root->used_bytes + bytes <= root->capacity_bytes;
        /* What others were promised and have not allocated yet, the file system calls free. */
        uint64_t taken = root->reserve_bytes + root->promised_bytes;
        int above_reserve = root->space.free_bytes >= taken + bytes;
        if (fits && above_reserve) {
            root->used_bytes += bytes;
            root->promised_bytes += bytes;
        }
        int hopeless = bytes > root->capacity_bytes;
        kvs_unlock(store);
        if (fits && above_reserve) {
            return 0;
        }
        if (hopeless || evict_in_turn(root) < 0) {
            return -ENOSPC;
        }
        if (!above_reserve) {
            space_settle(root);
        }
    }
}

void kvs_room_restore(struct kvs_root *root)
{
    struct kvs_store *store = root->store;
    int over;
    do {
        kvs_lock(store);
        over = root->is_owner && !store->closing && root->used_bytes > root->capacity_bytes;
        kvs_unlock(store);
    } while (over && kvs_evict_one(root, 0) == 0);
}
