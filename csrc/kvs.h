/*
 * kvs.h: the public face of the core. Reads as its specification.
 *
 * Order of life: kvs_open -> kvs_cache_open (one per layout) -> match / find -> lease -> load ...
 * and writer -> put ... -> commit; kvs_close. Every handle (cache, lease, load, writer, ticket,
 * queue) keeps the store's memory alive, so handles may outlive kvs_close: their calls then answer
 * -ESHUTDOWN, and memory they show stays mapped until the last handle is closed.
 *
 * Waiting. What takes time answers with a ticket: pending, then done with one result, for ever.
 * A ticket can be waited for (kvs_ticket_wait, blocks the caller's thread) and can be sent to one
 * queue (kvs_ticket_send), whose eventfd becomes readable: that is how an event loop waits.
 *
 * Errors. 0 or a count on success, a negative errno for misuse and for kvs_open. Trouble with data
 * is never an error: it is a miss with an enum kvs_reason.
 *
 * Threads. Every call may be made from any thread. No call but kvs_open, kvs_close and
 * kvs_ticket_wait waits for the device. After fork the child's calls answer -ECHILD.
 *
 * Limits. Bytes of one cell are at most 64 MiB, layers 1024, parts of a layer 16, blocks of one
 * extent 64, blocks of one chain 1 << 24, roots 16, retention classes 16.
 */
#ifndef KVS_H
#define KVS_H

#include "clock.h"
#include "fs.h"
#include "io.h"
#include "keys.h" /* struct kvs_key, kvs_keys_chain, kvs_keys_wrap */

enum {
    KVS_LAYERS_MAX = 1024,
    KVS_PARTS_MAX = 16,
    KVS_EXTENT_BLOCKS_MAX = 64,
    KVS_ROOTS_MAX = 16,
    KVS_CLASSES_MAX = 16,
    KVS_CLASS_NAME_BYTES = 16,
    KVS_CHAIN_BLOCKS_MAX = 1 << 24
};

/* Why there is less than was asked for. 0 means: there is not less. */
enum kvs_reason {
    KVS_REASON_NONE,
    KVS_REASON_ABSENT,      /* never stored, or forgotten without a trace */
    KVS_REASON_EXPIRED,     /* its time to live passed */
    KVS_REASON_EVICTED,     /* made room for others */
    KVS_REASON_DELETED,     /* by kvs_delete */
    KVS_REASON_PENDING,     /* names are still being walked: ask kvs_find */
    KVS_REASON_WARMING,     /* the scan after open has not reached it */
    KVS_REASON_DAMAGED,     /* failed its checks; quarantined */
    KVS_REASON_FOREIGN,     /* under this name: of another version, or not for us to read */
    KVS_REASON_IO_ERROR,    /* the device said no */
    KVS_REASON_DEADLINE,    /* not in time */
    KVS_REASON_POOL,        /* no room in the pool: views are being kept */
    KVS_REASON_CANCELLED,
    KVS_REASON_CLOSED,
    KVS_REASON_ROOT_DOWN,   /* on a root whose device is in trouble: kvs_root_info */
    KVS_REASON_BUSY,        /* short of descriptors or memory: not the file's fault */
    KVS_REASON_REFUSED,     /* offered and not stored: enum kvs_admission, the write budget */
    KVS_REASON_COUNT
};
const char *kvs_reason_name(enum kvs_reason reason); /* "absent", "expired", ... */

enum kvs_role { KVS_ROLE_OWNER, KVS_ROLE_PEER, KVS_ROLE_AUTO };

enum kvs_engine_choice {
    KVS_ENGINE_AUTO,         /* the best that works, in the order below */
    KVS_ENGINE_URING,        /* io_uring with the pool registered where the limit allows */
    KVS_ENGINE_URING_PLAIN,  /* io_uring, pool not registered */
    KVS_ENGINE_AIO,          /* Linux AIO */
    KVS_ENGINE_THREADS       /* pread and pwrite on threads */
};

enum kvs_admission {
    KVS_ADMIT_ALWAYS,
    KVS_ADMIT_SECOND_HIT     /* a block is stored when it is offered to a writer once more */
};

/* Why a block that was offered to a writer is not written. */
enum kvs_refusal {
    KVS_REFUSED_NOT,
    KVS_REFUSED_FIRST_OFFER, /* KVS_ADMIT_SECOND_HIT */
    KVS_REFUSED_BUDGET,      /* write_budget_bytes */
    KVS_REFUSAL_COUNT
};
const char *kvs_refusal_name(enum kvs_refusal refusal); /* "first_offer", "write_budget" */

/* ------------------------------------------------------------------------------- the store */

struct kvs_class {
    char name[KVS_CLASS_NAME_BYTES];
    int64_t ttl_s;
};

struct kvs_root_options {
    const char *path;
    uint64_t capacity_bytes;      /* 0: 80 % of the file system less the reserve */
    struct kvs_io_engine *engine; /* tests: used and closed by the store; NULL: opened here */
};

struct kvs_options {
    const struct kvs_root_options *roots;
    uint32_t root_count;
    uint32_t class_count;
    const struct kvs_class *classes;
    uint32_t default_class;
    enum kvs_role role;
    enum kvs_engine_choice engine;
    uint32_t io_depth;             /* operations in flight per root; 0: 64 */
    uint64_t io_bytes_in_flight;   /* per root; 0: 64 MiB */
    uint64_t pool_bytes;           /* 0: 1 GiB */
    uint64_t reserve_bytes;        /* free space left to others on each root; 0: 1 % */
    int64_t min_age_s;             /* used within: not evicted (peers); < 0: 60 */
    int64_t io_timeout_ns;         /* one operation or call of the device at most; 0: 10 s */
    uint64_t scrub_bytes_per_s;    /* verify what lies on disk in idle time; 0: do not */
    int32_t helpers;               /* threads per root that help verifying; < 0: by the cores */
    enum kvs_admission admission;
    uint64_t write_budget_bytes;   /* of cells, a day, on each root; 0: without bound */
    uint32_t manual_ticks;         /* tests: the keeper runs only inside kvs_tick */
    struct kvs_fs *fs;             /* NULL: the real one */
    struct kvs_clock *clock;       /* NULL: the real one */
};

struct kvs_store;

/* Creates what is missing, takes the owner's lock of every root, starts the threads, serves at
 * once while a scan fills the index. On failure *message says what to do. */
int kvs_open(const struct kvs_options *options, struct kvs_store **out, char *message,
             uint32_t message_bytes);
/* Ends loads and writers (reason closed), waits until nothing is in flight, writes times back,
 * closes every file and the lock, then drops the caller's reference. Bounded: 10 s for commits
 * under way, then io_timeout_ns for the devices. Returns a bit for each root that did not answer.
 * Those are closed by threads left behind when their device answers; until then their memory (also
 * the caller's, see kvs_load_drained), their files and the owner's lock stay as they are. */
uint32_t kvs_close(struct kvs_store *store);
/* One round of the keeper: leases, deadlines, expiry, write-back of times, lock retry. */
int kvs_tick(struct kvs_store *store);
/* Empties the RAM tier; leased views and reads in flight stay. */
int kvs_drop_ram(struct kvs_store *store);

/* --------------------------------------------------------------------- tickets and queues */

struct kvs_ticket;
struct kvs_queue;

/* Blocks until done or timeout_ns passed (< 0: for ever). 0, or -ETIMEDOUT. */
int kvs_ticket_wait(struct kvs_ticket *ticket, int64_t timeout_ns);
/* 1 and *result when done, else 0. */
int kvs_ticket_done(struct kvs_ticket *ticket, int64_t *result);
/* When done (or at once) the queue gets `token`. One queue per ticket: a later call replaces it;
 * a NULL queue takes it back (an event already in the queue stays there). */
void kvs_ticket_send(struct kvs_ticket *ticket, struct kvs_queue *queue, uint64_t token);
void kvs_ticket_close(struct kvs_ticket *ticket);

int kvs_queue_open(struct kvs_store *store, struct kvs_queue **out);
int kvs_queue_fd(const struct kvs_queue *queue); /* eventfd, non-blocking; readable: call take */
/* Resets the eventfd and copies up to `max` tokens out; when `max` come back, call again. */
uint32_t kvs_queue_take(struct kvs_queue *queue, uint64_t *tokens, uint32_t max);
void kvs_queue_close(struct kvs_queue *queue);

/* ------------------------------------------------------------------- a cache: one namespace */

struct kvs_layout {
    uint8_t fingerprint[32];
    uint32_t layer_count;
    uint32_t block_tokens;
    uint32_t extent_blocks;        /* 1, or a multiple of 16 up to 64 */
    const uint32_t *part_counts;   /* [layer_count]; 0: the layer has nothing */
    const uint32_t *part_bytes;    /* per block; the parts of layer 0, then of layer 1 ... */
    const char *description;       /* written to <namespace>/layout.json */
};

struct kvs_cache;

int kvs_cache_open(struct kvs_store *store, const struct kvs_layout *layout,
                   struct kvs_cache **out);
void kvs_cache_close(struct kvs_cache *cache);

struct kvs_match {
    uint64_t blocks;         /* leading blocks of the chain that are resident */
    enum kvs_reason reason;  /* why not all; NONE when all */
};

/* Leading resident blocks. No system call, changes nothing. */
int kvs_match(struct kvs_cache *cache, const struct kvs_key *keys, uint64_t count,
              struct kvs_match *out);
/* The same, after names were walked where the index does not know. Ticket result: blocks; the
 * reason is in a following kvs_match. */
int kvs_find(struct kvs_cache *cache, const struct kvs_key *keys, uint64_t count,
             struct kvs_ticket **out);
/* 1: resident, 0: not (or not known yet). */
int kvs_contains(struct kvs_cache *cache, const struct kvs_key *key);
/* Forgets every extent that holds the key; a peer: those it has met. Ticket result: extents
 * dropped, or a negative errno when a file could not be unlinked or a root not be looked through:
 * nothing that is known to hold the key is served, but it may be found again. */
int kvs_delete(struct kvs_cache *cache, const struct kvs_key *key, struct kvs_ticket **out);

/* Why a block that is not here left, and when (seconds since 1970); ABSENT: not known. */
enum kvs_reason kvs_removed(struct kvs_cache *cache, const struct kvs_key *key, int64_t *when_s);

/* ----------------------------------------------------------------------------------- leases */

struct kvs_lease;

/* Protects blocks [first, end) of the chain keys[0..end) from eviction until released or until
 * timeout_ns after the last use; idempotent per owner: the same owner asking for the same range
 * again gets the same lease (count it as one more kvs_lease_release). What the index does not know
 * yet is looked for when a load starts. retention: class number, or -1 for the extent's own. */
int kvs_lease_open(struct kvs_cache *cache, const struct kvs_key *keys, uint64_t first,
                   uint64_t end, const char *owner, int retention, int64_t timeout_ns,
                   struct kvs_lease **out);
void kvs_lease_release(struct kvs_lease *lease);
/* 1 while it protects. */
int kvs_lease_alive(struct kvs_lease *lease);

/* ------------------------------------------------------------------------------------ loads */

struct kvs_target {
    void *base;           /* page 0 of this layer and part; NULL: not wanted */
    uint64_t page_stride; /* bytes from one page to the next */
};

/* Caller memory. Local token t of the lease's range lies in page table[t / page_tokens] at
 * (t % page_tokens) * (part bytes / block_tokens). No table: page j is page j. Entry -1: not
 * written. page_tokens divides block_tokens or is a multiple of it; then `first` of the lease must
 * sit on a page. The memory stays the caller's duty until the load's drained ticket is done. */
struct kvs_into {
    const struct kvs_target *targets; /* parts of layer 0, then of layer 1 ... */
    uint32_t page_tokens;
    const int32_t *table;
    uint64_t table_entries;
};

enum kvs_load_flags {
    KVS_LOAD_BLOCK = 1,   /* into one contiguous pool buffer, layer after layer (get) */
    KVS_LOAD_PREFETCH = 2 /* into the RAM tier; layers release themselves */
};

struct kvs_load;

/* Starts reading; returns at once. Renews the leased extents. -E2BIG: one layer does not fit the
 * pool (*needed_bytes says what would). */
int kvs_load_open(struct kvs_lease *lease, const struct kvs_into *into, uint32_t flags,
                  int64_t deadline_ns, uint64_t *needed_bytes, struct kvs_load **out);
/* Done when layers 0..layer are verified or given up. Close the ticket. */
struct kvs_ticket *kvs_load_layer_ticket(struct kvs_load *load, uint32_t layer);
/* Done when no read or copy can write caller memory any more. Close the ticket. */
struct kvs_ticket *kvs_load_drained(struct kvs_load *load);

struct kvs_layer {
    uint64_t blocks;         /* leading blocks good in layers 0..this, counted from `first` */
    enum kvs_reason reason;  /* of the block that ended them */
    uint32_t span_count;     /* pool views; 0 with caller memory */
    int64_t ready_ns;        /* boot clock, when it became ready */
};

struct kvs_span {
    const void *cells;       /* block after block, each a whole cell */
    uint64_t first_block;    /* absolute */
    uint64_t block_count;
};

/* -EAGAIN while not ready, -EINVAL for a bad number. */
int kvs_load_layer(struct kvs_load *load, uint32_t layer, struct kvs_layer *out);
/* Views end with kvs_load_release of the layer. -ENOENT past span_count or after release. */
int kvs_load_span(struct kvs_load *load, uint32_t layer, uint32_t index, struct kvs_span *out);
void kvs_load_release(struct kvs_load *load, uint32_t layer);
/* KVS_LOAD_BLOCK: the whole block once the last layer is ready. */
int kvs_load_block(struct kvs_load *load, const void **data, uint64_t *bytes);
void kvs_load_cancel(struct kvs_load *load);

struct kvs_load_stats {
    uint64_t reads;         /* operations sent to the device */
    uint64_t disk_bytes;    /* of cells */
    uint64_t ram_bytes;     /* of cells found in the pool */
    uint64_t direct_bytes;  /* of cells read straight into caller memory */
    uint64_t bounced_bytes; /* of cells copied to caller memory */
    uint64_t failed_blocks;
    int64_t opened_ns;      /* boot clock */
    int64_t finished_ns;    /* 0 while running */
};
void kvs_load_stats(struct kvs_load *load, struct kvs_load_stats *out);
/* Cancels what is left, releases every layer. The memory rule of kvs_into holds on. */
void kvs_load_close(struct kvs_load *load);

/* ---------------------------------------------------------------------------------- writers */

struct kvs_source {
    const void *base;      /* block 0 of the range */
    uint64_t block_stride; /* bytes from one block to the next; >= the part's bytes */
};

enum kvs_writer_flags { KVS_WRITER_SINGLE = 1 /* one key, parent and start not known (put) */ };

struct kvs_writer;

/* Blocks [start, count) of the chain. Resident blocks are skipped; the others form extents cut at
 * absolute multiples of extent_blocks, up to the first that admission or the write budget refuses:
 * it and all behind it are not written, and what is put of them is not looked at. `extras` holds a
 * 32-byte digest per block (zero: none) or is NULL. `token_ids` (block_tokens a block) go into the
 * extents, for tools; NULL: they do not. Nothing is visible before commit. */
int kvs_writer_open(struct kvs_cache *cache, const struct kvs_key *keys, uint64_t count,
                    uint64_t start, int retention, uint32_t flags, const struct kvs_key *extras,
                    const int32_t *token_ids, struct kvs_writer **out);
/* keys[0..count) must repeat the chain so far and go on. */
int kvs_writer_extend(struct kvs_writer *writer, const struct kvs_key *keys, uint64_t count,
                      const struct kvs_key *extras, const int32_t *token_ids);
/* Cells of `layer` for blocks [first, first + count), absolute, any order, each at most once.
 * sources: one per part. Ticket: done when the sources may be reused; result 0, or the number of
 * cells dropped for want of room. */
int kvs_writer_put(struct kvs_writer *writer, uint32_t layer, uint64_t first, uint64_t count,
                   const struct kvs_source *sources, struct kvs_ticket **out);
/* Publishes in chain order up to the first extent that lacks a cell. Ticket result: the number of
 * blocks from `start` that are resident now. The writer takes no more puts. */
int kvs_writer_commit(struct kvs_writer *writer, struct kvs_ticket **out);
struct kvs_writer_stats {
    uint64_t bytes_submitted;  /* of cells, handed to the device */
    uint64_t bytes_written;    /* of cells, the device said done */
    uint64_t blocks_skipped;   /* were resident */
    uint64_t blocks_dropped;   /* no room, or the device said no */
    uint64_t blocks_refused;   /* by admission or the write budget, known when they are offered */
    uint64_t blocks_admitted; /* leading ones, from `start`, that are resident or to be written */
    uint64_t extents; /* made by this writer */
};
void kvs_writer_stats(struct kvs_writer *writer, struct kvs_writer_stats *out);
/* Abandons what was not committed. Sources stay the caller's duty until their tickets are done. */
void kvs_writer_close(struct kvs_writer *writer);

/* What is resident now survives a power cut, whoever put it: syncs the file system of each root,
 * and with it what other programs wrote there. Ticket result: 0 or -errno. */
int kvs_flush(struct kvs_store *store, struct kvs_ticket **out);

/* What a store says of itself: counters, roots, pool. */
#include "kvs_report.h"

#endif
