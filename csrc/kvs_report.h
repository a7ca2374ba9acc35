/*
 * kvs_report.h: what a store says of itself: counters since open, its roots, its pool. Part of the
 * public face; include kvs.h, which includes this file last.
 */
#ifndef KVS_REPORT_H
#define KVS_REPORT_H

#include "kvs.h"
#include "latency.h"

struct kvs_stats {
    uint64_t lookups, hit_blocks, missed_blocks, hit_tokens, missed_tokens;
    uint64_t loads, loads_short, disk_bytes, ram_bytes, reads;
    uint64_t puts_bytes, written_bytes, lost_to_eexist_bytes, dropped_blocks, published_extents;
    uint64_t refused_blocks[KVS_REFUSAL_COUNT]; /* offered to writers and not written */
    uint64_t evicted_extents, expired_extents, deleted_extents, quarantined_extents;
    uint64_t quarantine_deleted; /* files beyond its bound */
    uint64_t clock_steps; /* of the wall clock, by more than an hour */
    int64_t clock_step_s; /* one that is not followed yet; 0: none */
    uint64_t scrub_bytes, scrub_extents, scrub_damaged, scrub_passes;
    uint64_t evicted_before_ttl[KVS_CLASSES_MAX], evicted_age_s_sum[KVS_CLASSES_MAX];
    uint64_t removed_in_class[KVS_CLASSES_MAX];
    uint64_t misses_by_reason[KVS_REASON_COUNT];
    uint64_t loads_by_reason[KVS_REASON_COUNT]; /* ended; of the first block that was lost */
    uint64_t disk_tokens, ram_tokens; /* loaded: cells by where they were, in blocks' worth */
    uint64_t loads_running, loads_waiting; /* waiting: for a share of the pool */
    uint64_t puts_queued, writes_in_progress; /* for the copier; for a device, or on it */
    uint64_t extents, blocks, leases, open_files, regions;
    uint64_t pool_bytes, pool_free_bytes, pool_cached_bytes;
    uint64_t index_bytes;
};
void kvs_stats(struct kvs_store *store, struct kvs_stats *out);

/* Where time goes. Loads of every kind; those that their caller ended are left out. */
enum kvs_stage {
    KVS_STAGE_READ,        /* one read: handed to the device until it completed */
    KVS_STAGE_WRITE,       /* the same of a write */
    KVS_STAGE_OPEN,        /* an extent's file opened and its header verified */
    KVS_STAGE_FIRST_LAYER, /* start of a load until its layer 0 was ready */
    KVS_STAGE_LOAD,        /* start of a load until its end, by its deadline too */
    KVS_STAGE_COMMIT,      /* commit of a writer until its blocks were published */
    KVS_STAGE_LAYER_WAIT,  /* a caller waited for a layer that was not ready when asked for */
    KVS_STAGE_COUNT
};
const char *kvs_stage_name(enum kvs_stage stage); /* "read", "write", ... */
void kvs_stage_latency(struct kvs_store *store, enum kvs_stage stage, struct kvs_latency *out);
/* Whoever waits for layers says how long: the core sees no wait for an event loop. */
void kvs_layer_wait_note(struct kvs_store *store, int64_t ns);

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
    uint64_t ops_in_flight, bytes_in_flight, reads_queued, read_bytes_queued;
    uint64_t device_read_bytes, device_written_bytes, device_errors; /* but headers read */
    uint32_t breaker_state;  /* 0 in use, 1 down, 2 down and being tried */
    uint64_t breaker_trips;
    int64_t down_ns;         /* for how long; 0 while in use */
    int64_t probe_in_ns;     /* until it is tried again; 0 while in use or being tried */
    char trouble[KVS_TROUBLE_BYTES]; /* why it is down, or was the last time; "" when never */
    uint64_t write_budget_bytes; /* of cells a day; 0: without bound */
    uint64_t write_budget_left_bytes; /* what could be written now; 0 without bound, too */
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
