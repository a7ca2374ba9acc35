/*
 * expiry.c: when extents end. A wheel per root by valid-until, and the job that unlinks what has
 * expired, a little at a time.
 *
 * An expired extent is not served from that second on; its file goes later: at most a twentieth of
 * what the root holds (or one extent) in a minute, at the pace of pace.c, and nothing while the
 * wall clock is in doubt (wall.c). So a store that was opened with a clock years ahead does not
 * wipe its disk: when the clock is put right, what is left is valid again. Room for a put does not
 * wait for this: eviction takes expired extents first, as many as it needs.
 *
 * The wheel: a second is a number of 11 digits of 6 bits. An extent is in the slot of the highest
 * digit in which its end differs from at_s. at_s goes from one slot that holds something to the
 * next, never beyond now, and what was in the slot moves to lower digits, in the end to `due`.
 *
 * Invariants:
 *   1. Adding, removing and renewing are O(1); an extent moves 11 times at most before it is due,
 *      and a call moves MOVES_MAX at most, however many end in the same week.
 *   2. A renewal does not move it: it is put in its true place when its old end comes.
 *   3. What is in `due` and `moving` comes before all slots, and lower levels before higher ones.
 */
#include <errno.h>
#include <stdlib.h>

#include "store.h"

enum { MINUTE_S = 60, SHARE = 20, MOVES_MAX = 1024 };

/* ---- the wheel ---- */

void kvs_expiry_open(struct kvs_root *root)
{
    struct kvs_expiry *wheel = &root->expiry;
    kvs_list_init(&wheel->due);
    kvs_list_init(&wheel->moving);
    for (uint32_t level = 0; level < KVS_EXPIRY_LEVELS; level++) {
        for (uint32_t digit = 0; digit < KVS_EXPIRY_DIGITS; digit++) {
            kvs_list_init(&wheel->slots[level][digit]);
        }
    }
}

static uint32_t digit_of(int64_t second, uint32_t level)
{
    return (uint32_t)(second >> KVS_EXPIRY_BITS * level) & (KVS_EXPIRY_DIGITS - 1);
}

void kvs_expiry_add_locked(struct kvs_root *root, struct kvs_extent *extent)
{
    struct kvs_expiry *wheel = &root->expiry;
    int64_t end_s = extent->valid_until_s;
    if (end_s <= wheel->at_s) {
        kvs_list_add_last(&wheel->due, &extent->expiry);
        return;
    }
    uint64_t differs = (uint64_t)(end_s ^ wheel->at_s);
    uint32_t level = (63 - (uint32_t)__builtin_clzll(differs)) / KVS_EXPIRY_BITS;
    uint32_t digit = digit_of(end_s, level);
    kvs_list_add_last(&wheel->slots[level][digit], &extent->expiry);
    wheel->filled[level] |= 1ull << digit;
}

void kvs_expiry_remove_locked(struct kvs_extent *extent)
{
    kvs_list_remove(&extent->expiry);
}

/* The first second of the slot, seen from at_s. */
static int64_t slot_begin_s(const struct kvs_expiry *wheel, uint32_t level, uint32_t digit)
{
    uint32_t low = KVS_EXPIRY_BITS * level;
    int64_t below = low + KVS_EXPIRY_BITS < 63 ? (int64_t)1 << (low + KVS_EXPIRY_BITS) : 0;
    int64_t high = below ? wheel->at_s & -below : 0;
    return high | (int64_t)digit << low;
}

/* at_s becomes the begin of the next slot that holds something, if that is not after now_s; what
 * was in it moves. 0: there is none. */
static int turn(struct kvs_expiry *wheel, int64_t now_s)
{
    for (uint32_t level = 0; level < KVS_EXPIRY_LEVELS; level++) {
        while (wheel->filled[level]) {
            uint32_t digit = (uint32_t)__builtin_ctzll(wheel->filled[level]);
            struct kvs_link *slot = &wheel->slots[level][digit];
            int64_t begin_s = slot_begin_s(wheel, level, digit);
            if (!kvs_list_empty(slot) && begin_s > now_s) {
                return 0;
            }
            wheel->filled[level] &= wheel->filled[level] - 1;
            if (!kvs_list_empty(slot)) {
                wheel->at_s = begin_s;
                kvs_list_move_all(&wheel->moving, slot);
                return 1;
            }
        }
    }
    return 0;
}

/* To its true place. */
static void move(struct kvs_root *root, struct kvs_link *link)
{
    struct kvs_extent *extent = KVS_ENTRY(link, struct kvs_extent, expiry);
    kvs_list_remove(link);
    kvs_expiry_add_locked(root, extent);
}

struct kvs_extent *kvs_expiry_first_locked(struct kvs_root *root, int64_t now_s)
{
    struct kvs_expiry *wheel = &root->expiry;
    for (int moves = 0; moves < MOVES_MAX; moves++) {
        struct kvs_link *due = wheel->due.next;
        if (due != &wheel->due) {
            struct kvs_extent *extent = KVS_ENTRY(due, struct kvs_extent, expiry);
            if (extent->valid_until_s <= wheel->at_s) {
                return extent->valid_until_s <= now_s ? extent : NULL;
            }
            move(root, due); /* renewed */
        } else if (!kvs_list_empty(&wheel->moving)) {
            move(root, wheel->moving.next);
        } else if (!turn(wheel, now_s)) {
            return NULL;
        }
    }
    return NULL;
}

static void follow(struct kvs_root *root, struct kvs_link *list, int64_t by_s)
{
    for (struct kvs_link *at = list->next; at != list; at = at->next) {
        struct kvs_extent *extent = KVS_ENTRY(at, struct kvs_extent, lru);
        kvs_times_follow_locked(root->store, extent, by_s);
        move(root, &extent->expiry);
    }
}

/* All of them: a step of the clock is rare. */
void kvs_expiry_follow_locked(struct kvs_root *root, int64_t by_s)
{
    root->expiry.at_s = 0;
    follow(root, &root->recency.read, by_s);
    follow(root, &root->recency.used, by_s);
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
