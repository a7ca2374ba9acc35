/*
 * replay.h: a trace of requests against the store's own index, recency and times to live, without
 * devices: what would have been a hit, what would have been written and what would have left.
 *
 * A replay is a store of one root whose file system holds nothing. Lookup, touch order, grid cuts,
 * admission, room, choice of the victim and expiry are the functions that loads and writers call;
 * none of them is here a second time. Time is what each request says.
 *
 * Not thread-safe: one caller at a time. Nothing outside memory is touched.
 */
#ifndef KVS_REPLAY_H
#define KVS_REPLAY_H

#include "kvs.h"

/* Ages in seconds: below 8 a bucket each, then eight to an octave. */
enum { KVS_AGE_BUCKETS = 8 * 62 };

struct kvs_replay_options {
    const struct kvs_class *classes;
    uint32_t class_count;
    uint32_t extent_blocks;   /* 1, or a multiple of 16 up to 64 */
    uint64_t capacity;        /* in the unit of `charges` */
    const uint64_t *charges;  /* [extent_blocks]: what an extent of 1, 2, ... blocks takes */
    enum kvs_admission admission;
    uint64_t write_budget_bytes; /* a day; 0: without bound */
    uint64_t block_bytes;        /* of cells, for the budget */
};

struct kvs_replay;

int kvs_replay_open(const struct kvs_replay_options *options, struct kvs_replay **out);
void kvs_replay_close(struct kvs_replay *replay);

struct kvs_replay_answer {
    uint64_t hit_blocks;    /* leading, before anything was stored */
    uint64_t stored_blocks; /* written by this request */
    uint64_t dropped_blocks; /* found no room */
    uint64_t refused_blocks; /* by admission or the write budget */
    enum kvs_reason reason; /* why the match ended; NONE when it did not */
};

/* A load of what is there, then a put of the rest, at now_ns (which never goes back).
 * 0, or -ENOMEM. */
int kvs_replay_request(struct kvs_replay *replay, int64_t now_ns, const struct kvs_key *keys,
                       uint64_t count, uint32_t class_number, struct kvs_replay_answer *out);

/* The lookup alone: it stores and renews nothing. */
void kvs_replay_match(struct kvs_replay *replay, const struct kvs_key *keys, uint64_t count,
                      struct kvs_match *out);

struct kvs_replay_report {
    struct kvs_stats stats; /* without pool and files */
    uint64_t used, used_max; /* in the unit of the charges */
    uint64_t stored_blocks, dropped_blocks, refused_blocks, evicted_blocks, expired_blocks;
    /* Blocks that were evicted, by how long nobody had used them. */
    uint64_t evicted_idle[KVS_CLASSES_MAX][KVS_AGE_BUCKETS];
};
void kvs_replay_report(const struct kvs_replay *replay, struct kvs_replay_report *out);
uint64_t kvs_age_of_bucket(uint32_t bucket); /* the least age in it */

#endif
