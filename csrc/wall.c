/*
 * wall.c: the two clocks of a store.
 *
 * now_ns is the boot clock. now_s is the wall clock as the store believes it: the wall clock at
 * open plus the boot clock since, corrected by the steps that were followed. Expiry compares with
 * now_s, and times on disk are read and written in it.
 *
 * The keeper compares now_s with the real wall clock. A difference of up to an hour (somebody set
 * the clock, NTP stepped it) is followed at once. A larger one is a step: named by info(), and
 * followed only when it has lasted an hour by the boot clock. While it lasts time is in doubt:
 * expiry unlinks nothing and eviction goes by recency alone.
 *
 * Invariant: no step changes how long an extent that was put or renewed in this life still lives.
 */
#include "store.h"

enum {
    ROUNDING_S = 1, /* both clocks are cut to whole seconds, not at the same moment */
    STEP_S = 3600   /* more is a step, and how long one has to last */
};

int64_t kvs_store_now_ns(struct kvs_store *store)
{
    return store->clock->boot_ns(store->clock);
}

int64_t kvs_store_now_s(struct kvs_store *store)
{
    const struct kvs_wall *wall = &store->wall;
    return wall->opened_wall_s + atomic_load_explicit(&wall->followed_s, memory_order_relaxed) +
           (kvs_store_now_ns(store) - wall->opened_boot_ns) / KVS_NS_PER_S;
}

void kvs_wall_open(struct kvs_store *store)
{
    store->wall.opened_boot_ns = kvs_store_now_ns(store);
    store->wall.opened_wall_s = store->clock->wall_s(store->clock);
    atomic_init(&store->wall.followed_s, 0);
}

static int64_t size_of(int64_t difference_s)
{
    return difference_s < 0 ? -difference_s : difference_s;
}

static void follow_locked(struct kvs_store *store, int64_t by_s)
{
    atomic_fetch_add(&store->wall.followed_s, by_s);
    store->wall.step_s = 0;
    for (uint32_t i = 0; i < store->root_count; i++) {
        kvs_expiry_follow_locked(&store->roots[i], by_s);
    }
}

void kvs_wall_round_locked(struct kvs_store *store, int64_t now_ns)
{
    struct kvs_wall *wall = &store->wall;
    int64_t off_s = store->clock->wall_s(store->clock) - kvs_store_now_s(store);
    if (size_of(off_s) <= ROUNDING_S) {
        wall->step_s = 0; /* never was, or was taken back */
    } else if (size_of(off_s) <= STEP_S) {
        follow_locked(store, off_s);
    } else if (wall->step_s == 0 || size_of(off_s - wall->step_s) > STEP_S) {
        wall->step_s = off_s;
        wall->step_ns = now_ns;
        store->stats.clock_steps++;
    } else if (now_ns - wall->step_ns >= STEP_S * KVS_NS_PER_S) {
        follow_locked(store, off_s);
    } else {
        wall->step_s = off_s; /* the same step, set a little more exactly */
    }
}
