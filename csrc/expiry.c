/*
 * expiry.c: when extents end. A heap per root by valid-until, and the job that unlinks what has
 * expired, a little at a time.
 *
 * An expired extent is not served from that second on; its file goes later: at most a twentieth of
 * what the root holds (or one extent) in a minute, at the pace of pace.c, and nothing while the
 * wall clock is in doubt (wall.c). So a store that was opened with a clock years ahead does not
 * wipe its disk: when the clock is put right, what is left is valid again. Room for a put does not
 * wait for this: eviction takes expired extents first, as many as it needs.
 *
 * Invariant: the heap's key may be older than valid_until_s (a renewal is O(1)); an extent taken
 * from the top with a stale key is put back with the true one.
 */
#include <errno.h>
#include <stdlib.h>

#include "store.h"

enum { MINUTE_S = 60, SHARE = 20 };

/* ---- the heap ---- */

static void heap_put(struct kvs_root *root, uint32_t at, struct kvs_extent *extent)
{
    root->expiry[at] = extent;
    extent->expiry_slot = at + 1;
}

static void heap_up(struct kvs_root *root, uint32_t at)
{
    struct kvs_extent *extent = root->expiry[at];
    while (at > 0 && root->expiry[(at - 1) / 2]->expiry_key_s > extent->expiry_key_s) {
        heap_put(root, at, root->expiry[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    heap_put(root, at, extent);
}

static void heap_down(struct kvs_root *root, uint32_t at)
{
    struct kvs_extent *extent = root->expiry[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child + 1 < root->expiry_count &&
            root->expiry[child + 1]->expiry_key_s < root->expiry[child]->expiry_key_s) {
            child++;
        }
        if (child >= root->expiry_count ||
            root->expiry[child]->expiry_key_s >= extent->expiry_key_s) {
            break;
        }
        heap_put(root, at, root->expiry[child]);
        at = child;
    }
    heap_put(root, at, extent);
}

int kvs_expiry_add_locked(struct kvs_root *root, struct kvs_extent *extent)
{
    if (root->expiry_count == root->expiry_room) {
        uint32_t room = root->expiry_room ? root->expiry_room * 2 : 64;
        struct kvs_extent **grown = realloc(root->expiry, room * sizeof(*grown));
        if (!grown) {
            return -ENOMEM;
        }
        root->expiry = grown;
        root->expiry_room = room;
    }
    extent->expiry_key_s = extent->valid_until_s;
    root->expiry[root->expiry_count] = extent;
    heap_up(root, root->expiry_count++);
    return 0;
}

void kvs_expiry_remove_locked(struct kvs_root *root, struct kvs_extent *extent)
{
    uint32_t at = extent->expiry_slot - 1;
    extent->expiry_slot = 0;
    struct kvs_extent *last = root->expiry[--root->expiry_count];
    if (last != extent) {
        heap_put(root, at, last);
        heap_down(root, at);
        heap_up(root, last->expiry_slot - 1);
    }
}

struct kvs_extent *kvs_expiry_first_locked(struct kvs_root *root, int64_t now_s)
{
    while (root->expiry_count > 0) {
        struct kvs_extent *extent = root->expiry[0];
        if (extent->expiry_key_s > now_s) {
            return NULL;
        }
        if (extent->valid_until_s <= now_s) {
            return extent;
        }
        extent->expiry_key_s = extent->valid_until_s;
        heap_down(root, 0);
    }
    return NULL;
}

/* Out of order then, so built anew. */
void kvs_expiry_follow_locked(struct kvs_root *root, int64_t by_s)
{
    for (uint32_t i = 0; i < root->expiry_count; i++) {
        kvs_times_follow_locked(root->store, root->expiry[i], by_s);
        root->expiry[i]->expiry_key_s = root->expiry[i]->valid_until_s;
    }
    for (uint32_t i = root->expiry_count / 2; i > 0; i--) {
        heap_down(root, i - 1);
    }
}

/* ---- the job ---- */

/* The next extent that may be unlinked now, or NULL. */
static struct kvs_extent *due_locked(struct kvs_root *root)
{
    struct kvs_store *store = root->store;
    int64_t now_ns = kvs_store_now_ns(store);
    struct kvs_extent *extent = NULL;
    if (store->wall.step_s == 0 && !store->closing && !kvs_root_down_locked(root) &&
        kvs_pace_free_locked(root)) {
        extent = kvs_expiry_first_locked(root, kvs_store_now_s(store));
    }
    if (!extent) {
        return NULL;
    }
    if (root->expiry_ns == 0 || now_ns - root->expiry_ns >= MINUTE_S * KVS_NS_PER_S) {
        root->expiry_ns = now_ns;
        root->expiry_bytes = 0;
        root->expiry_bytes_max = root->used_bytes / SHARE;
    }
    int fits = root->expiry_bytes + extent->physical_bytes <= root->expiry_bytes_max;
    return fits || root->expiry_bytes == 0 ? extent : NULL;
}

/* One after another; what a peer renewed meanwhile stays. */
static void expire_job(struct kvs_root *root, void *argument)
{
    (void)argument;
    struct kvs_store *store = root->store;
    struct kvs_extent *extent;
    kvs_lock(store);
    while ((extent = due_locked(root)) != NULL) {
        kvs_extent_pin_locked(extent);
        kvs_unlock(store);
        kvs_times_refresh(root, extent);
        kvs_lock(store);
        int gone =
            extent->state == KVS_EXTENT_LIVE && extent->valid_until_s <= kvs_store_now_s(store);
        if (gone) {
            root->expiry_bytes += extent->physical_bytes ? extent->physical_bytes : 1;
            kvs_count_removed_locked(store, extent, KVS_REASON_EXPIRED);
            kvs_leave_locked(store, extent, KVS_REASON_EXPIRED);
            kvs_unlock(store);
            kvs_leave(root, extent);
            kvs_lock(store);
        }
        kvs_extent_unpin_locked(store, extent);
    }
    root->expiring = 0;
    kvs_unlock(store);
}

void kvs_expire_locked(struct kvs_root *root)
{
    if (root->is_owner && !root->expiring && due_locked(root)) {
        root->expiring = kvs_job_add_locked(root, expire_job, NULL, 0) == 0;
    }
}
