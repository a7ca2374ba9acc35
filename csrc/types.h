/*
 * types.h: the structs of a running store, one group per concern. Who owns what: store.h.
 */
#ifndef KVS_TYPES_H
#define KVS_TYPES_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "arena.h"
#include "breaker.h"
#include "format.h"
#include "index.h"
#include "io_choose.h"
#include "kvs.h"
#include "levels.h"
#include "list.h"
#include "types_work.h"

#define KVS_NS_PER_S 1000000000ll

enum {
    KVS_HELPERS_MAX = 3,           /* per root: they hash and copy when one core cannot keep up */
    KVS_FILE_WORKERS = 4,          /* per root: they do all kinds of jobs */
    KVS_WORKERS_MAX = 12, /* with those in place of workers that a device keeps waiting */
    KVS_OPENERS = 12, /* per root, beside those: urgent jobs only, started when they queue up */
    KVS_WORKER_PLACES = KVS_WORKERS_MAX + KVS_OPENERS,
    KVS_NAMESPACE_NAME_BYTES = 33, /* 32 hex digits and the terminator */
    KVS_BUCKETS = 4096, /* directories of a namespace: 3 hex digits */
    KVS_PATH_BYTES = KVS_FS_NAME_BYTES
};

/* ---- tickets ---- */

struct kvs_ticket {
    struct kvs_store *store; /* held */
    struct kvs_queue *queue;
    uint64_t token;
    int64_t result;
    int refs;
    int done;
};

struct kvs_queue {
    struct kvs_store *store; /* held */
    uint64_t *tokens; /* ring of what take() has not fetched */
    uint32_t head, count, room;
    int fd;
};

/* ---- namespaces ---- */

struct kvs_namespace {
    uint64_t mix; /* into every tag; from the name, so that tags mean the same in the next life */
    char name[KVS_NAMESPACE_NAME_BYTES];
    uint8_t fingerprint[32];
    int has_layout; /* 0: only seen on disk; counted and evicted, not served */
    uint32_t layer_count, block_tokens, extent_blocks;
    uint32_t *cell_bytes; /* [layer_count] */
    uint32_t *part_counts; /* [layer_count] */
    uint32_t *part_first; /* [layer_count]: index of the layer's first part */
    uint32_t *part_bytes; /* all parts, layer after layer */
    uint32_t part_total;
    uint64_t block_bytes;
    uint64_t largest_cell;
    char *description;
    uint8_t bucket_made[KVS_ROOTS_MAX][KVS_BUCKETS / 8];
    struct kvs_seen *seen[KVS_ROOTS_MAX]; /* scan.c: buckets as they were at the last look */
};

struct kvs_cache {
    struct kvs_store *store; /* held */
    struct kvs_namespace *ns;
};

/* ---- extents ---- */

enum kvs_extent_state { KVS_EXTENT_WRITING, KVS_EXTENT_LIVE, KVS_EXTENT_GONE };
enum kvs_leaving { KVS_LEAVING_NOT, KVS_LEAVING_UNLINK, KVS_LEAVING_ASIDE, KVS_LEAVING_NOW };

struct kvs_file;
struct kvs_region;

#define KVS_START_UNKNOWN UINT32_MAX

/* There are millions: what a lookup reads lies together at the end, beside the tags. */
struct kvs_extent {
    struct kvs_link
        lru; /* roots[root].recency, first = most recent; once gone roots[root].leaving */
    struct kvs_link dirty; /* roots[root].dirty_times, first = oldest change */
    struct kvs_link expiry; /* roots[root].expiry */
    struct kvs_file *file; /* open file, held; NULL: closed */
    struct kvs_region **regions; /* [ns->layer_count] RAM tier, or NULL */
    struct kvs_key name; /* key of block `named` */
    uint64_t physical_bytes; /* charged to the root */
    int64_t last_use_s, written_use_s, created_s;
    int64_t disk_until_s; /* as read, not clamped; unless times_ours */
    int64_t dirty_since_ns;
    uint32_t start; /* absolute number of block 0 of the file, or KVS_START_UNKNOWN */
    uint32_t unreadable_after; /* unreadable: breaker.successes of its root then, its low bits */
    uint32_t number, pins;
    int64_t valid_until_s;
    struct kvs_namespace *ns;
    uint8_t root, state, class_number, block_count, named;
    uint8_t leaving; /* enum kvs_leaving */
    uint8_t open_reason; /* enum kvs_reason of the last open that failed; 0 */
    uint8_t opening : 1;
    uint8_t times_ours : 1; /* set or renewed in this life; else read from disk */
    uint8_t times_wrong : 1; /* on disk, of our doing: by a clock that was ahead */
    uint8_t leave_failed : 1;
    uint8_t unreadable : 1; /* a read of it failed; see kvs_extent_unreadable_locked */
    uint64_t tags[]; /* [block_count], see kvs_tag() */
};
_Static_assert(sizeof(struct kvs_extent) == 184, "with 16 tags and malloc's 8 bytes 20 a block");

/* Extents in the order of their use, first = most recent (recency.c). All of `read` are older than
 * those of `used`: their order was made of times on disk. */
struct kvs_recency {
    struct kvs_link used, read;
};

/* A wheel of seconds (expiry.c). */
enum { KVS_EXPIRY_BITS = 6, KVS_EXPIRY_DIGITS = 1 << KVS_EXPIRY_BITS, KVS_EXPIRY_LEVELS = 11 };

struct kvs_expiry {
    int64_t at_s; /* all that ended before is in `due` */
    struct kvs_link due, moving;
    struct kvs_link slots[KVS_EXPIRY_LEVELS][KVS_EXPIRY_DIGITS];
    uint64_t filled[KVS_EXPIRY_LEVELS]; /* bit d: slot d may hold some */
};

/* An open extent file with its verified header. Shared by loads, kept by the fd cache. */
struct kvs_file {
    struct kvs_link lru; /* store->files, first = most recent */
    struct kvs_extent *extent; /* NULL once the extent let go of it */
    struct kvs_root *root;
    int fd;
    uint32_t refs; /* loads and transfers; the extent's own reference is not counted */
    uint32_t layer_count, block_count;
    struct kvs_key *keys; /* [block_count] */
    uint64_t *region_offsets; /* [layer_count] */
    uint64_t *checksums; /* [layer][block] */
    uint64_t charged_bytes; /* unlinked: the root's until this is closed */
    uint64_t looked; /* unnamed.c: its round */
    struct kvs_job *close; /* to be: a last close must not fail for want of memory */
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
    struct kvs_link lru; /* store->cached while READY and refs == 0 */
    struct kvs_extent *extent; /* NULL when the extent let go of it */
    struct kvs_region *behind; /* next in memory, file and transfer; NULL once that is over */
    struct kvs_waiter *waiters;
    uint8_t *memory; /* the arena's */
    uint8_t *cells; /* first cell, inside memory */
    uint64_t bytes; /* of memory */
    uint32_t layer, cell_bytes;
    uint32_t refs;
    uint8_t first, count, good, state; /* good: leading cells that passed */
    uint8_t reason; /* enum kvs_reason when good < count */
};

/* ---- jobs of the file workers ---- */

struct kvs_job {
    struct kvs_job *next;
    void (*run)(struct kvs_root *root, void *argument);
    void *argument;
    int slow; /* pace.c */
    uint64_t bytes; /* of slow ones: given back to the file system */
};

struct kvs_worker {
    pthread_t thread;
    struct kvs_root *home; /* whose jobs it does */
    struct kvs_root *at; /* whose device the call of fs.h under way waits for */
    struct kvs_root *slow_of; /* counted there in slow_running; NULL: does no slow job */
    int64_t since_ns; /* when that call began; 0: in none */
    int64_t since_real_ns; /* the same, whatever the store's clock is */
    uint8_t rounds; /* of the keeper that saw that call overdue */
    uint8_t started, left; /* left: its function is over, join it */
    uint8_t opener; /* does urgent jobs only */
    uint8_t patient; /* the call may take its time */
    uint8_t replaced; /* the call took too long: another does its work, it leaves when it is back */
};

/* ---- roots ---- */

struct kvs_root {
    struct kvs_store *store;
    uint32_t number;
    char path[1024];
    uint8_t uuid[16];
    int fd, lock_fd; /* lock_fd -1: not the owner */
    uint64_t device, inode; /* of the directory */
    int is_owner, was_owner; /* was: until its directory was let go of; it wants to be again */
    int warming, has_identity; /* has_identity: uuid is the one in root.json */
    int direct; /* transfers go round the page cache */
    uint32_t lost; /* bits of enum kvs_fs_lost, of this directory; set at open */
    struct kvs_breaker breaker;
    struct kvs_io_engine *engine;
    char engine_why[KVS_ENGINE_WHY_BYTES];
    int register_error;
    /* I/O thread: slots are its own; queues under the lock */
    pthread_t io_thread;
    int io_running, io_asleep;
    struct kvs_slot *slots, *free_slot;
    uint32_t slot_count, ops_in_flight, ops_in_flight_max;
    uint64_t bytes_in_flight, bytes_in_flight_max, read_bytes_in_flight;
    uint64_t device_read_bytes, device_written_bytes, device_errors;
    struct kvs_transfer *reads, **reads_tail; /* planned, not wholly submitted */
    struct kvs_transfer *writes, **writes_tail;
    uint64_t read_bytes_queued, plan_round;
    uint32_t reads_queued;
    /* ending.c */
    struct kvs_transfer *ended, **ended_tail; /* all pieces back; not verified and told yet */
    uint32_t ended_count, ending;
    pthread_t helpers[KVS_HELPERS_MAX];
    uint32_t helper_count, helpers_idle;
    int helpers_stop;
    pthread_cond_t help_wanted;
    /* file workers */
    struct kvs_worker workers[KVS_WORKER_PLACES]; /* the last KVS_OPENERS: openers */
    uint32_t workers_idle, openers_idle, openers_busy;
    int workers_stop;
    struct kvs_job *jobs, **jobs_tail, *urgent_jobs, **urgent_tail;
    pthread_cond_t job_ready, opener_wanted;
    /* capacity */
    uint64_t capacity_bytes, reserve_bytes, used_bytes;
    int64_t writes_paid_ns; /* admit.c: what was written so far is within the budget by then */
    uint64_t promised_bytes; /* charged and not allocated yet: the file system does not know */
    uint64_t bucket_turn; /* buckets.c */
    int writes_full; /* a write met a full disk or quota: the next put evicts first */
    struct kvs_fs_space space;
    int64_t space_read_ns;
    struct kvs_recency recency;
    struct kvs_link dirty_times;
    struct kvs_link leaving; /* extents whose file has not given up its name yet */
    struct kvs_expiry expiry;
    int64_t lock_tried_ns, owner_seen_ns, rescan_ns;
    int locking, path_looking; /* keeper.c: its jobs that are queued or running */
    uint64_t looks_begun, looks_ended; /* scans and rescans, one at a time */
    int rescanning, look_error;
    uint64_t unnamed_looks; /* unnamed.c */
    uintptr_t looks_life; /* how often the root came back: looks of before count no more */
    int expiring;
    int64_t expiry_ns; /* expiry.c: when the minute began, what it has unlinked and may */
    uint64_t expiry_bytes, expiry_bytes_max;
    struct kvs_job *slow_jobs, **slow_tail; /* pace.c */
    int slow_running;
    int64_t pace_ns; /* bytes unlinked so far are paid for by then */
    struct kvs_scrub *scrub; /* scrub.c; NULL: not asked for */
    struct kvs_removals *removals; /* removed.c; NULL: never the owner */
    uint32_t quarantine_files;
    uint64_t quarantine_bytes, quarantine_sequence;
    const struct kvs_worker *evictor; /* evicts for a put; NULL: nobody's turn */
    const struct kvs_worker *judge; /* judges what a name leads to, and may move it aside */
    int stopped, closed; /* its threads have left; kvs_root_close is over */
};

/* ---- the store ---- */

struct kvs_wall { /* wall.c */
    int64_t opened_boot_ns, opened_wall_s;
    _Atomic int64_t followed_s; /* steps of the wall clock since */
    int64_t step_s, step_ns; /* a step that is not believed yet, and since when; 0: none */
};

struct kvs_removed; /* root_files.h */
struct kvs_absent;

struct kvs_store {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a ticket was finished, or a count that someone waits for fell */
    pthread_cond_t ticket_done; /* callers wait here: not to be woken by every job and region */
    atomic_int refs;
    unsigned fork_generation;
    int closing; /* 1: no new work, 2: threads leave */
    atomic_int is_closing; /* the same for checks without the lock */
    struct kvs_fs *fs; /* fs_watch.c, over fs_inner */
    struct kvs_fs *fs_inner;
    int owns_fs;
    int64_t io_timeout_ns;
    struct kvs_clock *clock;
    struct kvs_wall wall;
    struct kvs_root roots[KVS_ROOTS_MAX];
    uint32_t root_count;
    enum kvs_role role;
    struct kvs_class classes[KVS_CLASSES_MAX];
    uint32_t class_count, default_class;
    int64_t min_age_s;
    uint16_t *offers; /* admit.c: blocks that were offered; NULL: the first offer is taken */
    uint64_t write_budget_bytes; /* of cells a day, per root; 0: without bound */
    struct kvs_namespace **namespaces;
    uint32_t namespace_count;
    struct kvs_index *index;
    struct kvs_levels extents; /* struct kvs_extent *, by number; NULL: free. See kvs_extent_at */
    struct kvs_levels free_numbers; /* uint32_t */
    uint32_t extent_count, free_number_count;
    uint64_t extents_bytes; /* of memory, of all records with their place in the table */
    uint64_t live_extents, live_blocks;
    struct kvs_arena *arena;
    struct kvs_link cached; /* evictable regions, first = most recent */
    uint64_t cached_bytes, staging_bytes;
    uint32_t region_count;
    struct kvs_link files;
    uint32_t file_count, file_max, files_opening, files_busy; /* busy: refs > 0 */
    int files_refused; /* an open waits for a file to come free */
    uint64_t descriptor_limit;
    struct kvs_link leases, loads, writers;
    uint32_t lease_count;
    uint64_t reserved_total;
    pthread_t copier, keeper;
    int copier_running, keeper_running;
    uint32_t put_count;
    struct kvs_put *puts, **puts_tail;
    pthread_cond_t put_ready, keeper_wake;
    uint32_t writes_in_flight; /* transfers of kind WRITE queued or running */
    uint32_t births; /* create jobs queued or running */
    struct kvs_removed *removed;
    struct kvs_absent *absent;
    struct kvs_delete *deletes; /* wait for looks to end */
    struct kvs_flush *flushes, *syncing; /* flush.c: wait for the next sync, for that under way */
    uintptr_t flush_life; /* how often a root went down: a sync of before may never end */
    int flushing;
    int64_t flush_began_ns; /* flushing: when its job was added, or its last sync began */
    struct kvs_stats stats;
    struct kvs_latency latencies[KVS_STAGE_COUNT];
    struct kvs_event events[KVS_EVENTS];
    uint32_t event_first;
    atomic_uint event_count;
};

#endif
