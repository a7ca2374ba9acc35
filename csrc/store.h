/*
 * store.h: the private parts of a store and how they hang together. Only files of the core include
 * it; the pure leaves (format, index, arena, keys, xxh3, list) and both waists do not know it.
 *
 * Who owns what
 *   1. store->lock guards everything reachable from struct kvs_store except where a comment says
 *      otherwise. It is never held across a system call that can sleep, a copy or a checksum.
 *      Functions whose name ends in _locked expect it held.
 *   2. An extent record lives while it is in the index or pinned. Pins are held by leases, loads,
 *      writers and jobs. A pinned extent is never evicted; deleted, expired or damaged ones leave
 *      the index at once and their record goes with the last pin.
 *   3. A region's memory belongs to the engine while a transfer on it is in flight, to its readers
 *      while refs > 0, and to the RAM tier (evictable) otherwise.
 *   4. Caller memory is written only by transfers and copies counted in load->memory_users; the
 *      drained ticket is done when the load has ended and that count is 0.
 *   5. A ticket is finished exactly once, under the lock.
 *   6. Threads: per root one I/O thread (ring, verification, copies to callers) and a few file
 *      workers (everything of fs.h); per store one copier (puts into staging) and one keeper (time).
 */
#ifndef KVS_STORE_H
#define KVS_STORE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "arena.h"
#include "format.h"
#include "index.h"
#include "kvs.h"
#include "list.h"

#define KVS_NS_PER_S 1000000000ll

enum {
    KVS_FILE_WORKERS = 4,          /* per root: cold opens run in parallel */
    KVS_PIECE_BYTES = 1 << 20,     /* one device operation at most */
    KVS_NAMESPACE_NAME_BYTES = 33, /* 32 hex digits and the terminator */
    KVS_BUCKETS = 4096,            /* directories of a namespace: 3 hex digits */
    KVS_PATH_BYTES = KVS_FS_NAME_BYTES,
    KVS_OWNER_BYTES = 64,
    KVS_REMOVED_SLOTS = 1 << 16,
    KVS_ABSENT_SLOTS = 1 << 12
};

/* ---- tickets ---- */

struct kvs_ticket {
    struct kvs_store *store; /* held */
    struct kvs_queue *queue;
    struct kvs_ticket *next_in_queue;
    uint64_t token;
    int64_t result;
    int refs;
    int done;
};

struct kvs_queue {
    struct kvs_store *store; /* held */
    struct kvs_link link;    /* in store->queues */
    uint64_t *tokens;        /* ring of what take() has not fetched */
    uint32_t head, count, room;
    int fd;
};

/* ---- namespaces ---- */

struct kvs_namespace {
    uint32_t number;
    char name[KVS_NAMESPACE_NAME_BYTES];
    uint8_t fingerprint[32];
    int has_layout; /* 0: only seen on disk; counted and evicted, not served */
    uint32_t layer_count, block_tokens, extent_blocks;
    uint32_t *cell_bytes;  /* [layer_count] */
    uint32_t *part_counts; /* [layer_count] */
    uint32_t *part_first;  /* [layer_count]: index of the layer's first part */
    uint32_t *part_bytes;  /* all parts, layer after layer */
    uint32_t part_total;
    uint64_t block_bytes;
    uint64_t largest_cell;
    char *description;
    uint8_t bucket_made[KVS_ROOTS_MAX][KVS_BUCKETS / 8];
    uint8_t bucket_dirty[KVS_ROOTS_MAX][KVS_BUCKETS / 8]; /* names since the last flush */
};

struct kvs_cache {
    struct kvs_store *store; /* held */
    struct kvs_namespace *ns;
};

/* ---- extents ---- */

enum kvs_extent_state { KVS_EXTENT_WRITING, KVS_EXTENT_LIVE, KVS_EXTENT_GONE };

struct kvs_file;
struct kvs_region;

struct kvs_extent {
    struct kvs_link lru;   /* store->roots[root].lru, first = most recent */
    struct kvs_link dirty; /* roots[root].dirty_times, first = oldest change */
    struct kvs_namespace *ns;
    struct kvs_file *file;      /* open file, held; NULL: closed */
    struct kvs_region **regions; /* [ns->layer_count] RAM tier, or NULL */
    struct kvs_key name;        /* key of block `named` */
    uint64_t start;             /* absolute number of block 0 of the file, or unknown */
    uint64_t physical_bytes;    /* charged to the root */
    int64_t valid_until_s, last_use_s, written_use_s, created_s;
    int64_t dirty_since_ns;
    int64_t expiry_key_s; /* as in the heap; valid_until_s may have grown since */
    uint32_t number, root, pins;
    uint32_t expiry_slot; /* place in the heap + 1; 0: not in it */
    uint8_t state, class_number, block_count, named;
    uint8_t opening, unlink_wanted, quarantine_wanted;
    uint8_t scanned;
    uint8_t open_reason; /* enum kvs_reason of the last open that failed; 0 */
    uint64_t tags[];      /* [block_count], see kvs_tag() */
};

/* An open extent file with its verified header. Shared by loads, kept by the fd cache. */
struct kvs_file {
    struct kvs_link lru; /* store->files, first = most recent; out of it while its extent is gone */
    struct kvs_extent *extent; /* NULL once the extent let go of it */
    struct kvs_root *root;
    int fd;
    uint32_t refs; /* loads and transfers; the extent's own reference is not counted */
    uint32_t layer_count, block_count;
    struct kvs_key *keys;      /* [block_count] */
    uint64_t *region_offsets;  /* [layer_count] */
    uint64_t *checksums;       /* [layer][block] */
};

/* ---- the pool's regions ---- */

enum kvs_region_state { KVS_REGION_READING, KVS_REGION_STAGING, KVS_REGION_READY, KVS_REGION_BAD };

struct kvs_waiter {
    struct kvs_waiter *next;
    struct kvs_load *load; /* held */
    uint32_t layer, span;
};

/* Cells [first, first + count) of one layer of one extent, in arena memory. */
struct kvs_region {
    struct kvs_link lru;       /* store->cached while READY and refs == 0 */
    struct kvs_extent *extent; /* NULL when the extent let go of it */
    struct kvs_waiter *waiters;
    uint8_t *memory; /* the arena's */
    uint8_t *cells;  /* first cell, inside memory */
    uint64_t bytes;  /* of memory */
    uint32_t layer, cell_bytes;
    uint32_t refs;
    uint8_t first, count, good, state; /* good: leading cells that passed */
    uint8_t reason;                    /* enum kvs_reason when good < count */
};

/* ---- transfers: what the I/O thread moves ---- */

enum kvs_transfer_kind { KVS_TRANSFER_REGION, KVS_TRANSFER_DIRECT, KVS_TRANSFER_WRITE };

struct kvs_transfer {
    struct kvs_transfer *next;
    enum kvs_transfer_kind kind;
    int fd;
    uint64_t file_offset;
    uint8_t *memory;
    uint64_t bytes, submitted;
    uint32_t in_flight;
    int32_t error;
    uint8_t retried;
    struct kvs_file *file;          /* held (reads) */
    struct kvs_region *region;      /* held (REGION, WRITE) */
    struct kvs_load *load;          /* held (DIRECT) */
    uint32_t layer, span;           /* DIRECT */
    uint8_t position, count;        /* DIRECT: cells of the extent in this run */
    struct kvs_writer *writer;      /* held (WRITE) */
    struct kvs_writer_extent *made; /* WRITE */
};

struct kvs_slot {
    struct kvs_io_op op;
    struct kvs_transfer *transfer;
    struct kvs_slot *next_free;
    uint64_t piece_start; /* in the transfer */
    uint32_t piece_bytes, tries;
};

/* ---- jobs of the file workers ---- */

struct kvs_job {
    struct kvs_job *next;
    void (*run)(struct kvs_root *root, void *argument);
    void *argument;
};

/* ---- roots ---- */

struct kvs_root {
    struct kvs_store *store;
    uint32_t number;
    char path[1024];
    uint8_t uuid[16];
    int fd, lock_fd; /* lock_fd -1: not the owner */
    int is_owner, warming, reserve_hit;
    struct kvs_io_engine *engine;
    char engine_why[160];
    int register_error;
    /* I/O thread: slots are its own; queues under the lock */
    pthread_t io_thread;
    int io_running, io_asleep;
    struct kvs_slot *slots, *free_slot;
    uint32_t slot_count, ops_in_flight, ops_in_flight_max;
    uint64_t bytes_in_flight, bytes_in_flight_max;
    struct kvs_transfer *reads, **reads_tail;   /* planned, not wholly submitted */
    struct kvs_transfer *writes, **writes_tail;
    uint64_t read_bytes_queued, plan_round;
    struct kvs_transfer *delivers;      /* RAM hits to be copied to callers */
    /* file workers */
    pthread_t workers[KVS_FILE_WORKERS];
    uint32_t worker_count, workers_busy;
    int workers_stop;
    struct kvs_job *jobs, **jobs_tail, *urgent_jobs, **urgent_tail;
    pthread_cond_t job_ready;
    /* capacity */
    uint64_t capacity_bytes, reserve_bytes, used_bytes;
    struct kvs_fs_space space;
    int64_t space_read_ns;
    struct kvs_link lru, dirty_times;
    struct kvs_extent **expiry; /* min-heap by expiry_key_s */
    uint32_t expiry_count, expiry_room;
    int64_t lock_tried_ns, rescan_ns;
    int64_t rescan_from_s;
    int rescanning;
    uint32_t quarantine_count;
    uint64_t quarantine_sequence;
};

/* ---- leases ---- */

struct kvs_lease {
    struct kvs_store *store; /* held */
    struct kvs_link link;    /* store->leases while alive */
    struct kvs_namespace *ns;
    struct kvs_key *keys; /* [end] */
    uint64_t first, end;
    struct kvs_extent **pinned;
    uint32_t pinned_count, refs, holds; /* holds: handles of its owner; refs: with running loads */
    int retention, alive;
    uint32_t loads_running;
    int64_t timeout_ns, ends_ns;
    char owner[KVS_OWNER_BYTES];
};

/* ---- loads ---- */

enum kvs_load_state { KVS_LOAD_RESOLVING, KVS_LOAD_WAITING, KVS_LOAD_RUNNING, KVS_LOAD_ENDED };

struct kvs_load_span {
    struct kvs_extent *extent; /* pinned until the load ends */
    struct kvs_file *file;     /* held once attached */
    uint64_t first_block;      /* absolute */
    uint32_t next_layer;       /* not planned yet */
    uint8_t position, count;   /* cells in the extent */
    uint8_t root, failed;
};

struct kvs_run { /* one span of one layer */
    struct kvs_region *region; /* held for the reader, NULL with caller memory */
    uint16_t direct_pending;   /* transfers straight into caller memory */
    uint8_t reread;            /* one of them failed its check: once more, through the pool */
};

struct kvs_load_layer_state {
    uint32_t pending;  /* spans not done */
    uint64_t good;     /* leading blocks, counted from first */
    uint64_t blocks;   /* once ready: min over layers 0..this */
    uint8_t reason, ready, released;
    int64_t ready_ns;
    struct kvs_ticket *ticket; /* held */
};

struct kvs_load {
    struct kvs_store *store; /* held */
    struct kvs_link link;    /* store->loads until ended */
    struct kvs_lease *lease; /* held */
    struct kvs_namespace *ns;
    struct kvs_load_span *spans;
    uint32_t span_count, refs, flags;
    struct kvs_run *runs; /* [layer][span] */
    struct kvs_load_layer_state *layers;
    uint32_t layers_ready;
    uint32_t front_layer[KVS_ROOTS_MAX], span_hint[KVS_ROOTS_MAX]; /* plan.c */
    uint64_t tried_round[KVS_ROOTS_MAX];
    uint64_t first, blocks; /* of the lease */
    uint64_t good;
    uint8_t good_reason, state, closed;
    int64_t deadline_ns; /* boot clock */
    uint64_t held_bytes, reserved_bytes;
    uint64_t sequence;
    uint32_t memory_users;
    struct kvs_ticket *drained;
    struct kvs_into into; /* own copies; targets NULL: pool */
    uint8_t *block_memory;
    struct kvs_load_stats stats;
};

/* ---- writers ---- */

enum kvs_made_state {
    KVS_MADE_FRESH,
    KVS_MADE_CREATING,
    KVS_MADE_READY,
    KVS_MADE_PUBLISHED,
    KVS_MADE_DROPPED
};

struct kvs_writer_extent {
    struct kvs_extent *extent; /* pinned; regions[] hold the staged cells */
    uint64_t first;            /* absolute */
    uint32_t count, count_max; /* blocks; count_max: up to the grid cut */
    uint8_t state, fixed;
    uint32_t cells_missing, writes_in_flight;
    uint32_t root;
    uint8_t *have;        /* [layer][count_max] */
    uint8_t *layer_sent;  /* [layer] */
    uint32_t *layer_have; /* [layer] */
    uint64_t *checksums;  /* [layer][count_max] */
    struct kvs_fs_temp temp; /* fd -1: none */
    uint64_t charged_bytes;
    uint32_t header_bytes, with_extras;
    uint64_t file_bytes;
    uint64_t *region_offsets;
};

enum kvs_writer_state { KVS_WRITER_OPEN, KVS_WRITER_COMMITTING, KVS_WRITER_DONE };

struct kvs_writer {
    struct kvs_store *store; /* held */
    struct kvs_link link;    /* store->writers */
    struct kvs_namespace *ns;
    struct kvs_key *keys; /* [count] */
    struct kvs_key *extras; /* [count] digests, or NULL */
    uint64_t start, count, key_room;
    uint32_t flags, refs, puts_pending;
    uint8_t state, class_number, publishing;
    struct kvs_writer_extent **made;
    uint32_t made_count, made_room;
    struct kvs_ticket *commit; /* held */
    struct kvs_writer_stats stats;
};

struct kvs_put {
    struct kvs_put *next;
    struct kvs_writer *writer; /* held */
    struct kvs_ticket *ticket; /* held */
    uint32_t layer;
    uint64_t first, count;
    struct kvs_source sources[KVS_PARTS_MAX];
};

/* ---- the store ---- */

struct kvs_removed {
    uint64_t tag;
    int64_t when_s;
    uint32_t reason, zero;
};

struct kvs_absent {
    uint64_t tag;
    int64_t when_ns;
};

struct kvs_store {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a ticket was finished, or a count that someone waits for fell */
    atomic_int refs;
    unsigned fork_generation;
    int closing;           /* 1: no new work, 2: threads leave */
    atomic_int is_closing; /* the same for checks without the lock */
    struct kvs_fs *fs;
    int owns_fs;
    struct kvs_clock *clock;
    int64_t opened_boot_ns, opened_wall_s;
    struct kvs_root roots[KVS_ROOTS_MAX];
    uint32_t root_count;
    enum kvs_role role;
    struct kvs_class classes[KVS_CLASSES_MAX];
    uint32_t class_count, default_class;
    int64_t min_age_s;
    uint32_t manual_ticks;
    struct kvs_namespace **namespaces;
    uint32_t namespace_count;
    struct kvs_index *index;
    struct kvs_extent **extents; /* by number; NULL: free */
    uint32_t extent_count, extent_room, *free_numbers, free_number_count;
    uint64_t live_extents, live_blocks;
    struct kvs_arena *arena;
    struct kvs_link cached; /* evictable regions, first = most recent */
    uint64_t cached_bytes, staging_bytes;
    uint32_t region_count;
    struct kvs_link files;
    uint32_t file_count, file_max;
    struct kvs_link queues, leases, loads, writers;
    uint32_t lease_count;
    uint64_t load_sequence, reserved_total;
    pthread_t copier, keeper;
    int copier_running, keeper_running;
    struct kvs_put *puts, **puts_tail;
    pthread_cond_t put_ready, keeper_wake;
    uint32_t writes_in_flight; /* transfers of kind WRITE queued or running */
    struct kvs_removed *removed;
    struct kvs_absent *absent;
    struct kvs_stats stats;
};

/* ---- store.c ---- */
void kvs_store_hold(struct kvs_store *store);
void kvs_store_drop(struct kvs_store *store);
int kvs_store_check(const struct kvs_store *store); /* 0, -ESHUTDOWN or -ECHILD */
int64_t kvs_store_now_ns(struct kvs_store *store);
/* Wall seconds that advance by the boot clock only: a stepped clock cannot expire a cache. */
int64_t kvs_store_now_s(struct kvs_store *store);
static inline void kvs_lock(struct kvs_store *store)
{
    pthread_mutex_lock(&store->lock);
}
static inline void kvs_unlock(struct kvs_store *store)
{
    pthread_mutex_unlock(&store->lock);
}

/* ---- ticket.c ---- */
struct kvs_ticket *kvs_ticket_open(struct kvs_store *store, int refs); /* NULL: no memory */
void kvs_ticket_finish_locked(struct kvs_ticket *ticket, int64_t result);
struct kvs_ticket *kvs_ticket_hold_locked(struct kvs_ticket *ticket);
void kvs_ticket_drop_locked(struct kvs_ticket *ticket);

/* ---- namespace.c ---- */
struct kvs_namespace *kvs_namespace_find_locked(struct kvs_store *store, const char *name);
int kvs_namespace_add_locked(struct kvs_store *store, const char *name,
                             struct kvs_namespace **out);
void kvs_namespace_free(struct kvs_namespace *ns);
void kvs_path_of(const struct kvs_namespace *ns, const struct kvs_key *key, char *path);
void kvs_bucket_of(const struct kvs_namespace *ns, const struct kvs_key *key, char *path,
                   uint32_t *bucket);
int kvs_key_from_name(const char *name, struct kvs_key *out); /* "<64 hex>.kv" */

/* ---- extents.c: the table, its index entries, recency and expiry ---- */
uint64_t kvs_tag(const struct kvs_namespace *ns, const struct kvs_key *key);
uint64_t kvs_extent_tag_of(void *store, uint32_t extent, uint8_t position); /* for the index */
int kvs_extent_add_locked(struct kvs_store *store, struct kvs_namespace *ns, uint32_t root,
                          uint32_t block_count, struct kvs_extent **out);
int kvs_extent_publish_locked(struct kvs_store *store, struct kvs_extent *extent);
/* Out of index, recency and expiry; the record goes with the last pin. */
void kvs_extent_forget_locked(struct kvs_store *store, struct kvs_extent *extent,
                              enum kvs_reason reason);
void kvs_extent_pin_locked(struct kvs_extent *extent);
void kvs_extent_unpin_locked(struct kvs_store *store, struct kvs_extent *extent);
/* Served block `key`: extent and position, or NULL. Expired ones are found too. */
struct kvs_extent *kvs_extent_lookup_locked(struct kvs_store *store, struct kvs_namespace *ns,
                                            const struct kvs_key *key, uint8_t *position);
/* How many of keys[0..count) follow in `extent` from `position` on. */
uint32_t kvs_extent_follow_locked(struct kvs_extent *extent, uint8_t position,
                                  const struct kvs_key *keys, uint64_t count);
/* Recency and, with retention >= 0 or -1 for its own class, a later expiry. */
void kvs_extent_touch_locked(struct kvs_store *store, struct kvs_extent *extent, int retention);
/* The same for a chain, tail first, root last. */
void kvs_chain_touch_locked(struct kvs_store *store, struct kvs_namespace *ns,
                            const struct kvs_key *keys, uint64_t count, int retention);
struct kvs_extent *kvs_extent_expired_locked(struct kvs_root *root, int64_t now_s);
int kvs_extent_order_by_use_locked(struct kvs_root *root); /* after a scan */
void kvs_extents_free(struct kvs_store *store);

/* ---- removed.c: why a key is not there ---- */
void kvs_removed_note_locked(struct kvs_store *store, uint64_t tag, enum kvs_reason reason);
enum kvs_reason kvs_removed_reason_locked(struct kvs_store *store, uint64_t tag);
void kvs_removed_clear_locked(struct kvs_store *store, uint64_t tag);
void kvs_absent_note_locked(struct kvs_store *store, uint64_t tag);
int kvs_absent_known_locked(struct kvs_store *store, uint64_t tag);

/* ---- pool.c: regions ---- */
/* A region with memory for `bytes`, refs 1, not attached; NULL when there is no room. */
struct kvs_region *kvs_region_open_locked(struct kvs_store *store, uint64_t bytes);
void kvs_region_attach_locked(struct kvs_region *region, struct kvs_extent *extent);
void kvs_region_detach_locked(struct kvs_store *store, struct kvs_region *region);
void kvs_region_hold_locked(struct kvs_store *store, struct kvs_region *region);
void kvs_region_drop_locked(struct kvs_store *store, struct kvs_region *region);
void *kvs_pool_take_locked(struct kvs_store *store, uint64_t bytes);
void kvs_pool_give_locked(struct kvs_store *store, void *memory);
uint64_t kvs_pool_room_locked(struct kvs_store *store); /* free + evictable */

/* ---- files.c: open extent files and the fd cache ---- */
void kvs_file_want_locked(struct kvs_store *store, struct kvs_extent *extent);
struct kvs_file *kvs_file_hold_locked(struct kvs_store *store, struct kvs_extent *extent);
void kvs_file_drop_locked(struct kvs_store *store, struct kvs_file *file);
void kvs_file_release_locked(struct kvs_store *store, struct kvs_extent *extent);
/* Reads and checks a header's first page; file workers only. NONE: the caller closes *fd. */
enum kvs_reason kvs_header_read(struct kvs_root *root, const char *path, int *fd,
                                struct kvs_extent_header *header, struct kvs_fs_stat *stat);
/* Reads the rest against the namespace's layout; takes fd on success. File workers only. */
enum kvs_reason kvs_file_open(struct kvs_root *root, struct kvs_namespace *ns, int fd,
                              const struct kvs_extent_header *header, struct kvs_file **out);
void kvs_file_attach_locked(struct kvs_store *store, struct kvs_extent *extent,
                            struct kvs_file *file);
void kvs_file_trim_locked(struct kvs_store *store);

/* ---- root.c and jobs.c ---- */
int kvs_root_open(struct kvs_store *store, const struct kvs_root_options *options,
                  const struct kvs_options *all, struct kvs_root *root, char *message,
                  uint32_t message_bytes);
int kvs_root_start(struct kvs_root *root, const struct kvs_options *options);
void kvs_root_stop(struct kvs_root *root);
void kvs_root_close(struct kvs_root *root);
int kvs_root_try_lock(struct kvs_root *root, char *holder, uint32_t holder_bytes);
/* Roots by rendezvous rank for a key. */
void kvs_root_order(struct kvs_store *store, const struct kvs_key *key, uint8_t *order);
int kvs_job_add_locked(struct kvs_root *root, void (*run)(struct kvs_root *, void *),
                       void *argument, int urgent);
int kvs_jobs_start(struct kvs_root *root);
void kvs_jobs_stop(struct kvs_root *root);
/* Wakes I/O threads that sleep; under the lock. */
void kvs_root_wake(struct kvs_root *root);
void kvs_wake_all(struct kvs_store *store);

/* ---- scan.c, adopt.c ---- */
void kvs_scan_job(struct kvs_root *root, void *argument);
void kvs_rescan_job(struct kvs_root *root, void *argument);
/* Takes a file found by name into the index; *out pinned, or NULL with a reason. */
enum kvs_reason kvs_adopt(struct kvs_root *root, struct kvs_namespace *ns,
                          const struct kvs_key *name, struct kvs_extent **out);

/* ---- match.c ---- */
uint64_t kvs_match_locked(struct kvs_store *store, struct kvs_namespace *ns,
                          const struct kvs_key *keys, uint64_t count, enum kvs_reason *reason);
/* Walks names from block `from` on; file workers only. Returns blocks known resident. */
uint64_t kvs_walk(struct kvs_root *root, struct kvs_namespace *ns, const struct kvs_key *keys,
                  uint64_t count);

/* ---- lease.c ---- */
void kvs_lease_expire_locked(struct kvs_store *store, int64_t now_ns);
void kvs_lease_drop_locked(struct kvs_lease *lease);

/* ---- load.c, plan.c, deliver.c ---- */
void kvs_load_hold_locked(struct kvs_load *load);
void kvs_load_drop_locked(struct kvs_load *load);
void kvs_load_end_locked(struct kvs_load *load, enum kvs_reason reason);
void kvs_load_span_done_locked(struct kvs_load *load, uint32_t layer, uint32_t span);
/* Blocks from `block` (absolute) on are bad in `layer` and all later ones. */
void kvs_load_cut_locked(struct kvs_load *load, uint32_t layer, uint64_t block,
                         enum kvs_reason reason);
void kvs_load_memory_done_locked(struct kvs_load *load);
void kvs_load_deadlines_locked(struct kvs_store *store, int64_t now_ns);
void kvs_load_admit_locked(struct kvs_store *store);
void kvs_load_spans_locked(struct kvs_load *load);
/* Turns the next spans into transfers until the root has `bytes` queued. */
void kvs_plan_reads_locked(struct kvs_root *root, uint64_t bytes);
/* One span through the pool: 0, or -EAGAIN when there is no room now. */
int kvs_plan_region_locked(struct kvs_load *load, uint32_t layer, uint32_t span);
/* The same straight into caller memory: 0, or -ENOTSUP when alignment forbids it. */
int kvs_plan_direct_locked(struct kvs_load *load, uint32_t layer, uint32_t span);
/* A read is over (or given up): verify, copy, tell the loads. 1 when it has to be read again. */
int kvs_transfer_read_done(struct kvs_root *root, struct kvs_transfer *transfer);
void kvs_deliver_waiters(struct kvs_store *store, struct kvs_region *region);
/* Where a block goes in caller memory when it lies there in one piece, else NULL. */
uint8_t *kvs_into_block(const struct kvs_load *load, uint32_t layer, uint64_t local_block,
                        int *wanted);
void kvs_into_copy(const struct kvs_load *load, uint32_t layer, uint64_t local_block,
                   const uint8_t *cells, uint32_t count);

/* ---- io_thread.c ---- */
void *kvs_io_thread(void *root);
void kvs_transfer_queue_locked(struct kvs_root *root, struct kvs_transfer *transfer);

/* ---- writer.c, stage.c, publish.c ---- */
void kvs_writer_hold_locked(struct kvs_writer *writer);
void kvs_writer_drop_locked(struct kvs_writer *writer);
void kvs_writer_progress_locked(struct kvs_writer *writer);
void kvs_writer_end_locked(struct kvs_writer *writer, enum kvs_reason reason);
void kvs_made_create_locked(struct kvs_writer *writer, struct kvs_writer_extent *made);
void kvs_made_drop_locked(struct kvs_writer *writer, struct kvs_writer_extent *made);
void kvs_made_send_locked(struct kvs_writer *writer, struct kvs_writer_extent *made);
void kvs_made_written(struct kvs_transfer *transfer); /* I/O thread */
void kvs_stage_clear_locked(struct kvs_writer *writer, struct kvs_writer_extent *made);
void *kvs_copier_thread(void *store);
void kvs_publish_job(struct kvs_root *root, void *writer);

/* ---- evict.c ---- */
/* File workers: makes `bytes` fit the budget and charges them. 0, or -ENOSPC. */
int kvs_room_charge(struct kvs_root *root, uint64_t bytes);
void kvs_room_refund_locked(struct kvs_root *root, uint64_t bytes);
int kvs_evict_one(struct kvs_root *root, int force);
/* Unlinks a forgotten extent's file and gives its bytes back; argument pinned extent. */
void kvs_unlink_job(struct kvs_root *root, void *extent);
void kvs_expire_locked(struct kvs_root *root);

/* ---- keeper.c, times.c ---- */
void *kvs_keeper_thread(void *store);
void kvs_keeper_round(struct kvs_store *store);
void kvs_times_mark_locked(struct kvs_store *store, struct kvs_extent *extent);
void kvs_times_job(struct kvs_root *root, void *extent);
void kvs_times_flush_all(struct kvs_store *store);

/* ---- quarantine.c ---- */
void kvs_quarantine_locked(struct kvs_store *store, struct kvs_extent *extent);
int kvs_quarantine_move(struct kvs_root *root, const char *path);

#endif
