/*
 * replay.c: see replay.h. The store below it is a real one that was given a file system where
 * every unlink succeeds and no file is ever found, and a clock that stands where a request put it.
 *
 * Invariants:
 *   1. What a request does, and in which order, is what a load followed by a writer does: renew the
 *      hit, pin it, make room extent by extent, publish, touch the chain tail first, unpin.
 *   2. Between requests nothing is pinned and nothing is in root->leaving.
 */
#include "replay.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store.h"

struct kvs_replay {
    struct kvs_fs fs;
    struct kvs_clock clock;
    struct kvs_store *store;
    struct kvs_namespace *ns;
    struct kvs_pins pins;
    int64_t now_ns;
    uint64_t charges[KVS_EXTENT_BLOCKS_MAX];
    struct kvs_replay_report report;
};

/* ---- the two waists: a clock that stands, a file system that holds nothing ---- */

static int64_t boot_ns(struct kvs_clock *clock)
{
    return KVS_ENTRY(clock, struct kvs_replay, clock)->now_ns;
}

static int64_t wall_s(struct kvs_clock *clock)
{
    return boot_ns(clock) / KVS_NS_PER_S;
}

static int stat_path(struct kvs_fs *fs, int root_fd, const char *path, struct kvs_fs_stat *out)
{
    (void)fs, (void)root_fd, (void)path, (void)out;
    return -ENOENT;
}

static int space(struct kvs_fs *fs, int root_fd, struct kvs_fs_space *out)
{
    (void)fs, (void)root_fd;
    memset(out, 0, sizeof(*out));
    out->total_bytes = out->free_bytes = UINT64_MAX / 4;
    return 0;
}

static uint32_t bucket_of_age(uint64_t age_s)
{
    if (age_s < 8) {
        return (uint32_t)age_s;
    }
    uint32_t octave = 63 - (uint32_t)__builtin_clzll(age_s);
    return 8 * (octave - 2) + (uint32_t)(age_s >> (octave - 3) & 7);
}

uint64_t kvs_age_of_bucket(uint32_t bucket)
{
    return bucket < 8 ? bucket : (uint64_t)(8 + bucket % 8) << (bucket / 8 - 1);
}

/* The extent whose file goes is the last that kvs_leave_locked put into root->leaving. */
static int unlink_path(struct kvs_fs *fs, int root_fd, const char *path)
{
    (void)root_fd, (void)path;
    struct kvs_replay *replay = KVS_ENTRY(fs, struct kvs_replay, fs);
    const struct kvs_extent *extent =
        KVS_ENTRY(replay->store->roots[0].leaving.prev, struct kvs_extent, lru);
    int64_t now_s = kvs_store_now_s(replay->store);
    if (extent->valid_until_s <= now_s) {
        replay->report.expired_blocks += extent->block_count;
    } else {
        uint32_t bucket = bucket_of_age((uint64_t)(now_s - extent->last_use_s));
        replay->report.evicted_blocks += extent->block_count;
        replay->report.evicted_idle[extent->class_number][bucket] += extent->block_count;
    }
    return 0;
}

static const struct kvs_fs_calls calls = {
    .stat_path = stat_path, .space = space, .unlink = unlink_path};

/* ---- open and close ---- */

static int store_open(struct kvs_replay *replay, const struct kvs_replay_options *options)
{
    struct kvs_options all = {.classes = options->classes,
                              .class_count = options->class_count,
                              .admission = options->admission,
                              .write_budget_bytes = options->write_budget_bytes,
                              .fs = &replay->fs,
                              .clock = &replay->clock};
    int error = kvs_store_new(&all, &replay->store);
    if (error) {
        return error;
    }
    struct kvs_root *root = kvs_root_add(replay->store);
    root->is_owner = 1;
    root->capacity_bytes = options->capacity;
    error = kvs_namespace_add_locked(replay->store, "replay", &replay->ns);
    if (!error) {
        replay->ns->extent_blocks = options->extent_blocks;
        replay->ns->block_bytes = options->block_bytes;
    }
    return error;
}

int kvs_replay_open(const struct kvs_replay_options *options, struct kvs_replay **out)
{
    if (options->extent_blocks == 0 || options->extent_blocks > KVS_EXTENT_BLOCKS_MAX ||
        options->class_count == 0 || options->class_count > KVS_CLASSES_MAX) {
        return -EINVAL;
    }
    struct kvs_replay *replay = calloc(1, sizeof(*replay));
    if (!replay) {
        return -ENOMEM;
    }
    replay->fs.calls = &calls;
    replay->clock = (struct kvs_clock){boot_ns, wall_s};
    memcpy(replay->charges, options->charges, options->extent_blocks * sizeof(uint64_t));
    int error = store_open(replay, options);
    if (error) {
        kvs_replay_close(replay);
    } else {
        *out = replay;
    }
    return error;
}

void kvs_replay_close(struct kvs_replay *replay)
{
    if (replay->store) {
        kvs_pins_end_locked(replay->store, &replay->pins);
        kvs_store_drop(replay->store);
    }
    free(replay);
}

/* ---- a request ---- */

/* An extent of keys[first..first + count) takes its place in the budget and in the index. */
static int extent_store(struct kvs_replay *replay, const struct kvs_key *keys, uint64_t first,
                        uint32_t count, uint32_t class_number)
{
    struct kvs_store *store = replay->store;
    struct kvs_root *root = &store->roots[0];
    uint64_t charge = replay->charges[count - 1];
    int error = kvs_room_charge(root, charge);
    struct kvs_extent *extent = NULL;
    if (!error) {
        error = kvs_extent_add_locked(store, replay->ns, 0, count, &extent);
    }
    if (error) {
        return error;
    }
    for (uint32_t i = 0; i < count; i++) {
        extent->tags[i] = kvs_tag(replay->ns, &keys[first + i]);
    }
    extent->name = keys[first];
    extent->start = (uint32_t)first;
    extent->class_number = (uint8_t)class_number;
    extent->physical_bytes = charge;
    extent->created_s = extent->last_use_s = kvs_store_now_s(store);
    extent->valid_until_s = extent->created_s + store->classes[class_number].ttl_s;
    error = kvs_pins_add_locked(&replay->pins, extent);
    if (!error) {
        error = kvs_extent_publish_locked(store, extent);
    }
    store->stats.published_extents += !error;
    kvs_extent_unpin_locked(store, extent);
    return error;
}

/* What is missing of keys[from..end) and admitted, until there is no room: what comes behind a gap
 * would not be published either. */
static int missing_store(struct kvs_replay *replay, const struct kvs_key *keys, uint64_t from,
                         uint64_t end, uint32_t class_number, struct kvs_replay_answer *out)
{
    struct kvs_store *store = replay->store;
    enum kvs_refusal refusal = KVS_REFUSED_NOT;
    uint64_t at = from, resident = 0;
    uint32_t offered;
    int error = 0;
    while (
        (offered = kvs_missing_next_locked(store, replay->ns, keys, end, replay->ns->extent_blocks,
                                           (int)class_number, &at, &resident)) > 0) {
        uint64_t first = at - offered;
        uint32_t count = kvs_admit_locked(store, replay->ns, &keys[first], offered, &refusal);
        out->refused_blocks += offered - count;
        if (count > 0 && error != -ENOSPC) {
            error = extent_store(replay, keys, first, count, class_number);
        }
        if (error && error != -ENOSPC) {
            return error;
        }
        if (error) {
            kvs_admit_refund_locked(&store->roots[0], count * replay->ns->block_bytes);
        }
        *(error ? &out->dropped_blocks : &out->stored_blocks) += count;
    }
    return 0;
}

int kvs_replay_request(struct kvs_replay *replay, int64_t now_ns, const struct kvs_key *keys,
                       uint64_t count, uint32_t class_number, struct kvs_replay_answer *out)
{
    struct kvs_store *store = replay->store;
    struct kvs_root *root = &store->roots[0];
    struct kvs_cache cache = {store, replay->ns};
    struct kvs_match match = {0};
    int error = 0;
    if (class_number >= store->class_count) {
        return -EINVAL;
    }
    memset(out, 0, sizeof(*out));
    replay->now_ns = now_ns > replay->now_ns ? now_ns : replay->now_ns;
    while (kvs_expiry_first_locked(root, kvs_store_now_s(store)) && kvs_evict_one(root, 1) == 0) {
    }
    kvs_match(&cache, keys, count, &match);
    out->hit_blocks = match.blocks;
    out->reason = match.reason;
    kvs_chain_touch_locked(store, replay->ns, keys, match.blocks, (int)class_number);
    if (match.blocks < count) {
        error = kvs_pins_add_chain_locked(store, replay->ns, keys, 0, count, &replay->pins);
        if (!error) {
            error = missing_store(replay, keys, match.blocks, count, class_number, out);
        }
        kvs_chain_touch_locked(store, replay->ns, keys, count, (int)class_number);
        kvs_pins_drop_locked(store, &replay->pins);
    }
    struct kvs_replay_report *report = &replay->report;
    report->stored_blocks += out->stored_blocks;
    report->dropped_blocks += out->dropped_blocks;
    report->refused_blocks += out->refused_blocks;
    report->used_max = root->used_bytes > report->used_max ? root->used_bytes : report->used_max;
    return error;
}

void kvs_replay_match(struct kvs_replay *replay, const struct kvs_key *keys, uint64_t count,
                      struct kvs_match *out)
{
    struct kvs_cache cache = {replay->store, replay->ns};
    kvs_match(&cache, keys, count, out);
}

void kvs_replay_report(const struct kvs_replay *replay, struct kvs_replay_report *out)
{
    const struct kvs_store *store = replay->store;
    *out = replay->report;
    out->stats = store->stats;
    out->stats.extents = store->live_extents;
    out->stats.blocks = store->live_blocks;
    out->stats.index_bytes = kvs_index_memory_locked(store);
    out->used = store->roots[0].used_bytes;
}
