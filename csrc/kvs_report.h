/*
 * kvs_report.h: what a store says of itself: counters since open, its roots, its pool. Part of the
 * public face; include kvs.h, which includes this file last.
 */
#ifndef KVS_REPORT_H
#define KVS_REPORT_H

#include "kvs.h"

struct kvs_stats {
    uint64_t lookups, hit_blocks, missed_blocks;
    uint64_t loads, loads_short, disk_bytes, ram_bytes, reads;
    uint64_t puts_bytes, written_bytes, lost_to_eexist_bytes, dropped_blocks, published_extents;
    uint64_t evicted_extents, expired_extents, deleted_extents, quarantined_extents;
    uint64_t quarantine_deleted; /* files beyond its bound */
    uint64_t clock_steps; /* of the wall clock, by more than an hour */
    int64_t clock_step_s; /* one that is not followed yet; 0: none */
    uint64_t scrub_bytes, scrub_extents, scrub_damaged, scrub_passes;
    uint64_t evicted_before_ttl[KVS_CLASSES_MAX], evicted_age_s_sum[KVS_CLASSES_MAX];
    uint64_t removed_in_class[KVS_CLASSES_MAX];
    uint64_t misses_by_reason[KVS_REASON_COUNT];
    uint64_t extents, blocks, leases, open_files, regions;
    uint64_t pool_bytes, pool_free_bytes, pool_cached_bytes;
    uint64_t index_bytes;
};
void kvs_stats(struct kvs_store *store, struct kvs_stats *out);

enum { KVS_TROUBLE_BYTES = 192 };

struct kvs_root_info {
    char path[1024];
    char engine[24];
    char engine_why[256];    /* what better engines said; "" when none was refused */
    char file_system[16];
    uint32_t registered;     /* pool registered with the ring */
    int32_t register_error;  /* negative errno, 0 when fine */
    uint32_t is_owner;
    uint32_t warming;        /* the scan is still running */
    uint32_t lost;           /* bits of enum kvs_fs_lost */
    uint32_t io_depth;
    uint64_t capacity_bytes, used_bytes, reserve_bytes, free_bytes;
    uint64_t quarantine_files, quarantine_bytes; /* the bytes are part of used_bytes */
    uint64_t reads_in_flight_max;
    uint32_t breaker_state;  /* 0 in use, 1 down, 2 down and being tried */
    uint64_t breaker_trips;
    int64_t down_ns;         /* for how long; 0 while in use */
    int64_t probe_in_ns;     /* until it is tried again; 0 while in use or being tried */
    char trouble[KVS_TROUBLE_BYTES]; /* why it is down, or was the last time; "" when never */
    uint64_t scrub_bytes_per_s; /* 0: no scrub */
    uint64_t scrub_pass_extents; /* looked at in the pass under way, or the last one */
};
int kvs_root_info(struct kvs_store *store, uint32_t root, struct kvs_root_info *out);
/* Roots that went down or came back, oldest first, as lines for a log. 1 and a text, or 0. The last
 * 16 are kept. Takes no lock while there is none. */
int kvs_event_take(struct kvs_store *store, char *text, uint32_t text_bytes);

struct kvs_files_info {
    uint64_t descriptor_limit; /* RLIMIT_NOFILE, raised to the hard limit */
    uint32_t open_max;         /* extents kept open */
};
void kvs_files_info(struct kvs_store *store, struct kvs_files_info *out);

struct kvs_pool_info {
    uint64_t base, bytes;
    uint32_t page_kind;      /* enum kvs_page_kind */
    uint32_t root_count;
    double huge_coverage;
};
void kvs_pool_info(struct kvs_store *store, struct kvs_pool_info *out);

#endif
