/*
 * types_work.h: the structs of work under way on a store: transfers, leases, loads, writers, puts.
 * What they work on: types.h, which includes this file. Who owns what: store.h.
 */
#ifndef KVS_TYPES_WORK_H
#define KVS_TYPES_WORK_H

#include <stdint.h>

#include "kvs.h"
#include "list.h"

enum {
    KVS_PIECE_BYTES = 1 << 20, /* one device operation at most */
    KVS_OWNER_BYTES = 64
};

struct kvs_discard; /* birth.c */
struct kvs_extent;
struct kvs_file;
struct kvs_namespace;
struct kvs_region;
struct kvs_writer_extent;

/* ---- transfers: what the I/O thread moves ---- */

enum kvs_transfer_kind {
    KVS_TRANSFER_REGION,
    KVS_TRANSFER_DIRECT,
    KVS_TRANSFER_HIT, /* a region of the RAM tier, to be copied to callers: nothing to read */
    KVS_TRANSFER_WRITE,
    KVS_TRANSFER_SCRUB, /* has nothing but memory; scrub.c's own */
    KVS_TRANSFER_PROBE /* of the root itself: recover.c */
};

struct kvs_transfer {
    struct kvs_transfer *next;
    enum kvs_transfer_kind kind;
    int fd;
    uint64_t file_offset;
    uint8_t *memory;
    uint64_t bytes, submitted;
    uint32_t in_flight;
    int32_t error;
    uint8_t again_checked, again_refused; /* read once more, after a cell failed, after an error */
    uint8_t again; /* planned when a read of its extent had failed before */
    struct kvs_file *file; /* held (reads) */
    struct kvs_region *region; /* held (REGION, WRITE), with those behind it */
    struct kvs_load *load; /* held (DIRECT) */
    uint32_t layer, layers, span; /* DIRECT; several layers: of a get() */
    uint8_t position, count; /* DIRECT: cells of the extent in this run */
    struct kvs_writer *writer; /* held (WRITE) */
    struct kvs_writer_extent *made; /* WRITE */
};

struct kvs_slot {
    struct kvs_io_op op;
    struct kvs_transfer *transfer;
    struct kvs_slot *next_free;
    uint64_t piece_start; /* in the transfer */
    uint32_t piece_bytes, tries;
    int64_t started_ns;
    uint8_t rounds; /* of the keeper that saw it overdue */
    uint8_t late; /* given up: nobody waits for it, and its time says nothing of the device */
    int32_t short_bytes; /* what each try moved; -1: not the same */
};

/* ---- pins ---- */

/* Extents of a chain that are held against eviction. Zero it; kvs_pins_end_locked ends it. */
struct kvs_pins {
    struct kvs_extent **extents;
    uint32_t count, room;
};

/* ---- leases ---- */

struct kvs_lease {
    struct kvs_store *store; /* held */
    struct kvs_link link; /* store->leases while alive */
    struct kvs_namespace *ns;
    struct kvs_key *keys; /* [end] */
    uint64_t first, end;
    struct kvs_pins pins;
    uint32_t refs, holds; /* holds: handles of its owner; refs: with running loads */
    int retention, alive;
    uint32_t loads_running;
    int64_t timeout_ns, ends_ns;
    char owner[KVS_OWNER_BYTES];
};

/* ---- loads ---- */

enum kvs_load_state { KVS_LOAD_RESOLVING, KVS_LOAD_WAITING, KVS_LOAD_RUNNING, KVS_LOAD_ENDED };

struct kvs_load_span {
    struct kvs_extent *extent; /* pinned until the load ends */
    struct kvs_file *file; /* held once attached */
    uint64_t first_block; /* absolute */
    uint32_t next_layer; /* not planned yet */
    uint8_t position, count; /* cells in the extent */
    uint8_t root, failed;
};

struct kvs_run { /* one span of one layer */
    struct kvs_region *region; /* held for the reader, NULL with caller memory */
    uint16_t direct_pending; /* transfers straight into caller memory */
    uint8_t reread; /* one of them failed its check: once more, through the pool */
    uint8_t over; /* counted as done: what still comes of it is thrown away */
};

struct kvs_load_layer_state {
    uint32_t pending; /* spans not done */
    uint64_t good; /* leading blocks, counted from first */
    uint64_t blocks; /* once ready: min over layers 0..this */
    uint64_t held_bytes; /* of the load's, in the pool */
    uint8_t reason, ready, released;
    int64_t ready_ns;
    struct kvs_ticket *ticket; /* held */
};

struct kvs_load {
    struct kvs_store *store; /* held */
    struct kvs_link link; /* store->loads until ended */
    struct kvs_lease *lease; /* held */
    struct kvs_namespace *ns;
    struct kvs_load_span *spans;
    uint32_t span_count, refs, flags;
    struct kvs_run *runs; /* [layer][span] */
    struct kvs_load_layer_state *layers;
    uint32_t layers_ready;
    uint32_t front_layer[KVS_ROOTS_MAX], span_hint[KVS_ROOTS_MAX]; /* plan.c */
    uint64_t tried_round[KVS_ROOTS_MAX];
    uint32_t span_roots; /* bit per root that has spans */
    uint32_t starved_roots; /* bit per root: its next span found no room in the pool */
    uint64_t first, blocks; /* of the lease */
    uint8_t state;
    uint8_t apart; /* there was no piece of the pool for several layers: it is not asked again */
    int64_t deadline_ns; /* boot clock */
    uint64_t held_bytes, reserved_bytes;
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
    uint64_t first; /* absolute */
    uint32_t count, count_max; /* blocks; count_max: up to the grid cut */
    uint8_t state, fixed;
    uint8_t wanted; /* FRESH: its file is to be made when the one before is */
    uint8_t apart; /* there was no piece of the pool for several layers: it is not asked again */
    uint32_t cells_missing, writes_in_flight;
    uint32_t root;
    uint8_t *have; /* [layer][count_max] */
    uint8_t *layer_sent; /* [layer] */
    uint32_t *layer_have; /* [layer] */
    uint64_t *checksums; /* [layer][count_max] */
    struct kvs_fs_temp temp; /* fd -1: none */
    struct kvs_discard *discard; /* to be: giving up a file must not fail for want of memory */
    uint64_t charged_bytes;
    uint32_t header_bytes, with_extras, with_ids;
    uint64_t file_bytes;
    uint64_t *region_offsets;
};

enum kvs_writer_state { KVS_WRITER_OPEN, KVS_WRITER_COMMITTING, KVS_WRITER_DONE };

struct kvs_writer {
    struct kvs_store *store; /* held */
    struct kvs_link link; /* store->writers */
    struct kvs_namespace *ns;
    struct kvs_key *keys; /* [count] */
    struct kvs_key *extras; /* [count] digests, or NULL */
    int32_t *token_ids; /* of the first id_blocks blocks; 0: the caller keeps none */
    uint64_t id_blocks;
    struct kvs_pins parents; /* what was resident at open: no room is made at its cost */
    uint64_t start, count;
    enum kvs_refusal refusal; /* why not all blocks are written */
    uint64_t admitted_end; /* the first block that was refused, or count */
    uint32_t flags, refs, puts_pending;
    uint8_t state, class_number, publishing;
    uint8_t creating[KVS_ROOTS_MAX]; /* a file is being made there */
    struct kvs_writer_extent **made;
    uint32_t made_count;
    struct kvs_ticket *commit; /* held */
    int64_t commit_ns;
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

#endif
