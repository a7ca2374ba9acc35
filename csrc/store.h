/*
 * store.h: the private parts of a store and how they hang together: who owns what (below), the
 * structs (types.h), and what each file offers to the others (extents.h has a part of it). Only
 * files of the core include it; the pure leaves (format, index, levels, arena, keys, xxh3, list)
 * and both waists do not know it.
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
 *   6. Threads: per root one I/O thread (ring, verification, copies to callers), helpers for its
 *      verification and copies, and a few file workers (everything of fs.h); per store one copier
 *      (puts) and one keeper (time).
 */
#ifndef KVS_STORE_H
#define KVS_STORE_H

#include "extents.h"
#include "scrub.h"
#include "types.h"
#include "writer.h"

/* ---- store.c ---- */
/* All of a store but its pool, its roots and its threads; kvs_store_drop frees it. */
int kvs_store_new(const struct kvs_options *options, struct kvs_store **out);
void kvs_store_hold(struct kvs_store *store);
void kvs_store_drop(struct kvs_store *store);
int kvs_store_check(const struct kvs_store *store); /* 0, -ESHUTDOWN or -ECHILD */
/* now + timeout, also for time-outs that mean "never". */
static inline int64_t kvs_later(int64_t now_ns, int64_t timeout_ns)
{
    return timeout_ns > INT64_MAX - now_ns ? INT64_MAX : now_ns + timeout_ns;
}
static inline void kvs_lock(struct kvs_store *store)
{
    pthread_mutex_lock(&store->lock);
}
static inline void kvs_unlock(struct kvs_store *store)
{
    pthread_mutex_unlock(&store->lock);
}

/* ---- wall.c ---- */
void kvs_wall_open(struct kvs_store *store);
int64_t kvs_store_now_ns(struct kvs_store *store);
/* Wall seconds as the store believes them: a stepped clock cannot expire a cache. */
int64_t kvs_store_now_s(struct kvs_store *store);
/* Follows the wall clock, or names a step of it. */
void kvs_wall_round_locked(struct kvs_store *store, int64_t now_ns);

/* ---- info.c ---- */
void kvs_load_count_locked(struct kvs_load *load); /* it has ended */

/* ---- ticket.c ---- */
struct kvs_ticket *kvs_ticket_open(struct kvs_store *store, int refs); /* NULL: no memory */
void kvs_ticket_finish_locked(struct kvs_ticket *ticket, int64_t result);
struct kvs_ticket *kvs_ticket_hold_locked(struct kvs_ticket *ticket);
void kvs_ticket_drop_locked(struct kvs_ticket *ticket);

/* ---- namespace.c ---- */
struct kvs_namespace *kvs_namespace_find_locked(struct kvs_store *store, const char *name);
int kvs_namespace_add_locked(struct kvs_store *store, const char *name, struct kvs_namespace **out);
void kvs_namespace_free(struct kvs_namespace *ns);
/* The first layer from `layer` on that has cells; layer_count: none. */
uint32_t kvs_cells_next(const struct kvs_namespace *ns, uint32_t layer);
void kvs_path_of(const struct kvs_namespace *ns, const struct kvs_key *key, char *path);
void kvs_bucket_of(const struct kvs_namespace *ns, const struct kvs_key *key, char *path,
                   uint32_t *bucket);

/* ---- removed.c: why a key is not there ---- */
int kvs_removed_open(struct kvs_store *store); /* freed with the store */
void kvs_removed_note_locked(struct kvs_root *root, uint64_t tag, enum kvs_reason reason);
enum kvs_reason kvs_removed_reason_locked(struct kvs_store *store, uint64_t tag);
void kvs_removed_clear_locked(struct kvs_root *root, uint64_t tag); /* the block is back */
/* The newest reasons of a root outlive it in <root>/removed.ring. Owner only, no lock held. */
void kvs_removed_save(struct kvs_root *root);
void kvs_removed_load(struct kvs_root *root);
void kvs_removed_round_locked(struct kvs_root *root, int64_t now_ns); /* saves now and then */
void kvs_absent_note_locked(struct kvs_store *store, uint64_t tag);
int kvs_absent_known_locked(struct kvs_store *store, uint64_t tag);

/* ---- pool.c: regions ---- */
/* A region with memory for `bytes`, refs 1, not attached; NULL when there is no room. */
struct kvs_region *kvs_region_open_locked(struct kvs_store *store, uint64_t bytes);
/* The same, which would be nice to have: not at any price to the RAM tier. */
struct kvs_region *kvs_region_open_long_locked(struct kvs_store *store, uint64_t bytes);
/* Of a region that nobody else knows yet: its memory behind the first `bytes` (whole units) becomes
 * a region like it; NULL: no memory for the record, nothing changed. */
struct kvs_region *kvs_region_cut_locked(struct kvs_store *store, struct kvs_region *region,
                                         uint64_t bytes);
void kvs_region_attach_locked(struct kvs_region *region, struct kvs_extent *extent);
void kvs_region_detach_locked(struct kvs_store *store, struct kvs_region *region);
void kvs_region_hold_locked(struct kvs_store *store, struct kvs_region *region);
void kvs_region_drop_locked(struct kvs_store *store, struct kvs_region *region);
void *kvs_pool_take_locked(struct kvs_store *store, uint64_t bytes);
void kvs_pool_give_locked(struct kvs_store *store, void *memory);
uint64_t kvs_pool_room_locked(struct kvs_store *store); /* free + evictable */

/* ---- files.c: open extent files and the fd cache ---- */
void kvs_file_want_locked(struct kvs_store *store, struct kvs_extent *extent);
void kvs_file_ref_locked(struct kvs_file *file);
struct kvs_file *kvs_file_hold_locked(struct kvs_store *store, struct kvs_extent *extent);
void kvs_file_drop_locked(struct kvs_store *store, struct kvs_file *file);
void kvs_file_release_locked(struct kvs_store *store, struct kvs_extent *extent);
/* File workers: gives an unlinked extent's bytes back, at once or when its last reader is done. */
void kvs_file_end(struct kvs_root *root, struct kvs_extent *extent);
/* What an errno of the metadata waist means for whoever asked for the block. */
enum kvs_reason kvs_reason_of_errno(int error);
/* Reads and checks a header's first page; file workers only. NONE: the caller closes *fd. */
enum kvs_reason kvs_header_read(struct kvs_root *root, const char *path, int *fd,
                                struct kvs_extent_header *header, struct kvs_fs_stat *stat);
/* Opens the file for loads: all of its header, in one read where it is as long as we write it,
 * against the namespace's layout. File workers only. */
enum kvs_reason kvs_file_open(struct kvs_root *root, struct kvs_namespace *ns, const char *path,
                              struct kvs_extent_header *header, struct kvs_fs_stat *stat,
                              struct kvs_file **out);
/* Closes a file that no extent holds; file workers only. */
void kvs_file_discard(struct kvs_file *file);
void kvs_file_free(struct kvs_file *file); /* the record alone */
/* 0, or -ESTALE: the caller discards the file. */
int kvs_file_attach_locked(struct kvs_store *store, struct kvs_extent *extent,
                           struct kvs_file *file);
/* Closes files beyond the cache's limit; file workers only. */
void kvs_files_trim(struct kvs_store *store);
/* Descriptors have run out: fewer are kept from now on. 1: some were closed. */
int kvs_files_spare(struct kvs_store *store);

/* ---- unnamed.c ---- */
/* File workers: lets go of open files that another process unlinked. */
void kvs_unnamed_forget(struct kvs_root *root);

/* ---- root.c, probe.c and jobs.c ---- */
/* The next root of the store, with nothing open. */
struct kvs_root *kvs_root_add(struct kvs_store *store);
int kvs_root_open(struct kvs_store *store, const struct kvs_root_options *options,
                  const struct kvs_options *all, struct kvs_root *root, char *message,
                  uint32_t message_bytes);
int kvs_root_start(struct kvs_root *root, const struct kvs_options *options);
/* After the lock, before the engine. */
int kvs_root_probe(struct kvs_root *root, char *message, uint32_t message_bytes);
void kvs_root_stop(struct kvs_root *root);
void kvs_root_close(struct kvs_root *root);
int kvs_root_try_lock(struct kvs_root *root, char *holder, uint32_t holder_bytes);
void kvs_root_unlock(struct kvs_root *root, int lock_fd);
/* The uuid in a directory's root.json. */
int kvs_identity_read(struct kvs_fs *fs, int root_fd, uint8_t *uuid);
/* Roots by rendezvous rank for a key. */
void kvs_root_order(struct kvs_store *store, const struct kvs_key *key, uint8_t *order);
void kvs_job_put_locked(struct kvs_root *root, struct kvs_job *job, int urgent); /* takes it */
int kvs_job_add_locked(struct kvs_root *root, void (*run)(struct kvs_root *, void *),
                       void *argument, int urgent);
/* For work that is of no single root: one that is in use, if any is. */
struct kvs_root *kvs_root_in_use_locked(struct kvs_store *store);
int kvs_job_add_anywhere_locked(struct kvs_store *store, void (*run)(struct kvs_root *, void *),
                                void *argument, int urgent);
int kvs_jobs_start(struct kvs_root *root);
void kvs_jobs_stop(struct kvs_root *root);
/* Workers that a call keeps too long: their root goes down, others take their place. */
void kvs_workers_round_locked(struct kvs_root *root, int64_t now_ns);
struct kvs_worker *kvs_worker_self(void); /* NULL on other threads */
/* The next calls by descriptor are for files of this root; the one before. */
struct kvs_root *kvs_worker_at(struct kvs_root *root);
int kvs_worker_probes(void); /* this worker's calls are made though the root is down */
void kvs_worker_set_probes(int on);

/* ---- a device in trouble: breaker.h ---- */
static inline int kvs_root_down_locked(const struct kvs_root *root)
{
    return root->breaker.state != KVS_BREAKER_CLOSED;
}
/* Wakes I/O threads that sleep; under the lock. */
void kvs_root_wake(struct kvs_root *root);
void kvs_wake_all(struct kvs_store *store);

/* ---- pace.c ---- */
/* A job for when the pace allows it: gives `bytes` back to the file system. */
int kvs_job_add_slow_locked(struct kvs_root *root, void (*run)(struct kvs_root *, void *),
                            void *argument, uint64_t bytes);
/* A close: a slow job when it is the last of an unlinked file of `bytes`. */
void kvs_job_put_close_locked(struct kvs_root *root, struct kvs_job *job);
struct kvs_job *kvs_slow_take_locked(struct kvs_root *root, struct kvs_worker *worker);
/* The slow job that the worker was at, if any, is over or waited for no more. */
void kvs_slow_over_locked(struct kvs_worker *worker);
/* File workers: runs one slow job at once; 0: there is none. */
int kvs_slow_hurry(struct kvs_root *root);
/* Whether more may be unlinked now; what was unlinked. */
int kvs_pace_free_locked(const struct kvs_root *root);
void kvs_pace_charge_locked(struct kvs_root *root, uint64_t bytes);
void kvs_pace_round_locked(struct kvs_root *root); /* slow jobs go on when they may */

/* ---- scan.c ---- */
void kvs_scan_job(struct kvs_root *root, void *life); /* life: looks_life of the root */
/* The root came back: what was remembered of it, and a look that may never end, count no more. */
void kvs_scan_anew_locked(struct kvs_root *root);
/* A rescan begins, unless a look is queued or running. */
void kvs_look_soon_locked(struct kvs_root *root);

/* ---- adopt.c ---- */
/* The owner: moves what the name leads to aside, if it is still refused. 0: the name is free, or
 * leads to something else now. */
int kvs_refused_move(struct kvs_root *root, struct kvs_namespace *ns, const struct kvs_key *name);
int kvs_header_has_key(const struct kvs_extent_header *header, const struct kvs_key *name);
/* Takes a file found by name into the index; *out pinned, or a reason. to_load: keep it open. */
enum kvs_reason kvs_adopt(struct kvs_root *root, struct kvs_namespace *ns,
                          const struct kvs_key *name, int to_load, struct kvs_extent **out);

/* ---- match.c ---- */
uint64_t kvs_match_locked(struct kvs_store *store, struct kvs_namespace *ns,
                          const struct kvs_key *keys, uint64_t count, enum kvs_reason *reason);
/* Why a block that the index does not serve is not there. */
enum kvs_reason kvs_miss_reason_locked(struct kvs_store *store, struct kvs_namespace *ns,
                                       const struct kvs_key *key);
/* One step of a walk, file workers only: the file named by the key, on any root. 1: it is good. */
int kvs_walk_step(struct kvs_store *store, struct kvs_namespace *ns, const struct kvs_key *key);
/* Walks names from block `from` on; file workers only. Returns blocks known resident. */
uint64_t kvs_walk(struct kvs_root *root, struct kvs_namespace *ns, const struct kvs_key *keys,
                  uint64_t count);

/* ---- delete.c ---- */
/* When a look has ended: deletes that waited for it go on. */
void kvs_deletes_resume_locked(struct kvs_store *store);

/* ---- lease.c ---- */
int kvs_pins_add_locked(struct kvs_pins *pins, struct kvs_extent *extent); /* 0 or -ENOMEM */
/* The leading extents of keys[first..end) that the index knows. 0 or -ENOMEM. */
int kvs_pins_add_chain_locked(struct kvs_store *store, struct kvs_namespace *ns,
                              const struct kvs_key *keys, uint64_t first, uint64_t end,
                              struct kvs_pins *pins);
void kvs_pins_drop_locked(struct kvs_store *store, struct kvs_pins *pins); /* for use again */
void kvs_pins_end_locked(struct kvs_store *store, struct kvs_pins *pins);
void kvs_lease_expire_locked(struct kvs_store *store, int64_t now_ns);
void kvs_lease_drop_locked(struct kvs_lease *lease);

/* ---- load.c, load_open.c, plan.c, deliver.c ---- */
void kvs_load_hold_locked(struct kvs_load *load);
void kvs_load_drop_locked(struct kvs_load *load);
/* The open files that it keeps for its later layers; they are opened again when needed. */
void kvs_load_files_return_locked(struct kvs_load *load);
void kvs_load_end_locked(struct kvs_load *load, enum kvs_reason reason);
void kvs_load_span_done_locked(struct kvs_load *load, uint32_t layer, uint32_t span);
/* Blocks from `block` (absolute) on are bad in `layer` and all later ones. */
void kvs_load_cut_locked(struct kvs_load *load, uint32_t layer, uint64_t block,
                         enum kvs_reason reason);
/* Why there are fewer blocks than asked for in `layer`, which is ready. */
enum kvs_reason kvs_load_reason_locked(const struct kvs_load *load, uint32_t layer);
/* It may be over: all of it done, or given up. */
void kvs_load_progress_locked(struct kvs_load *load);
void kvs_load_memory_done_locked(struct kvs_load *load);
void kvs_load_deadlines_locked(struct kvs_store *store, int64_t now_ns);
void kvs_load_spans_locked(struct kvs_load *load);
/* Turns the next spans into transfers, as many as the device can be given now. */
void kvs_plan_reads_locked(struct kvs_root *root);
/* One span through the pool: 0, or -EAGAIN when there is no room now. */
int kvs_plan_region_locked(struct kvs_load *load, uint32_t layer, uint32_t span);
/* A read is over (or given up): verify, copy, tell the loads. 1 when it has to be read again. */
int kvs_transfer_read_done(struct kvs_root *root, struct kvs_transfer *transfer);
void kvs_deliver_waiters(struct kvs_store *store, struct kvs_region *region);
/* Where a block goes in caller memory when it lies there in one piece, else NULL. */
uint8_t *kvs_into_block(const struct kvs_load *load, uint32_t layer, uint64_t local_block,
                        int *wanted);
void kvs_into_copy(const struct kvs_load *load, uint32_t layer, uint64_t local_block,
                   const uint8_t *cells, uint32_t count);

/* ---- ending.c ---- */
/* wanted < 0: as many as the cores suggest. */
void kvs_helpers_start(struct kvs_root *root, int wanted);
void kvs_helpers_stop(struct kvs_root *root); /* after the I/O thread */
void kvs_ending_add_locked(struct kvs_root *root, struct kvs_transfer *transfer);
void kvs_ending_some(struct kvs_root *root);

/* ---- io_thread.c, transfers.c ---- */
void *kvs_io_thread(void *root);
/* The next to submit pieces of: reads first. What nobody wants any more goes to its end. */
struct kvs_transfer *kvs_transfer_next_locked(struct kvs_root *root);
void kvs_transfer_leave_queue_locked(struct kvs_root *root, struct kvs_transfer *transfer);
void kvs_transfer_give_up_locked(struct kvs_root *root, struct kvs_transfer *transfer, int error);
void kvs_transfer_queue_locked(struct kvs_root *root, struct kvs_transfer *transfer);
/* Nobody waits for what is in flight any more; its memory stays the engine's until it is back. */
void kvs_transfers_give_up_locked(struct kvs_root *root);

/* ---- evict.c ---- */
/* File workers: makes `bytes` fit the budget and charges them. 0, or -ENOSPC. */
int kvs_room_charge(struct kvs_root *root, uint64_t bytes);
void kvs_room_refund_locked(struct kvs_root *root, uint64_t bytes);
/* What was charged is allocated now (or will not be), so the file system counts it itself. */
void kvs_room_taken_locked(struct kvs_root *root, uint64_t bytes, int allocated);
/* File workers: frees some bytes: what is paced (pace.c), else one extent. 0, or -ENOSPC. */
int kvs_evict_one(struct kvs_root *root, int force);
/* After ENOSPC or EDQUOT: 1 if something was evicted, or a directory removed where inodes are what
 * is short: try again. *tries counts over one put. */
int kvs_evict_helps(struct kvs_root *root, int error, uint32_t *tries);
/* File workers: evicts until the budget holds, after others' extents were adopted. */
void kvs_room_restore(struct kvs_root *root);
void kvs_count_removed_locked(struct kvs_store *store, const struct kvs_extent *extent,
                              enum kvs_reason reason);

/* ---- leave.c ---- */
/* Forgets a live extent. kvs_leave must follow; if it cannot be queued, the file stays until
 * somebody needs its name. */
void kvs_leave_locked(struct kvs_store *store, struct kvs_extent *extent, enum kvs_reason reason);
/* Unlinks or moves the file, gives its bytes back, drops the pin of kvs_leave_locked. On an error
 * it stays charged and pinned, and kvs_leave_again_locked has it tried again. */
int kvs_leave(struct kvs_root *root, struct kvs_extent *extent);
void kvs_leave_again_locked(struct kvs_root *root);
void kvs_leave_job(struct kvs_root *root, void *extent);
/* File workers: afterwards no forgotten extent has its file under this name. */
void kvs_name_clear(struct kvs_root *root, const struct kvs_namespace *ns,
                    const struct kvs_key *name);

/* ---- keeper.c ---- */
void *kvs_keeper_thread(void *store);
void kvs_keeper_round(struct kvs_store *store);

/* ---- times.c ---- */
void kvs_times_take_locked(const struct kvs_root *root, struct kvs_extent *extent,
                           const struct kvs_fs_stat *stat);
/* Later times that another process wrote to the file; file workers only. */
void kvs_times_refresh(struct kvs_root *root, struct kvs_extent *extent);
void kvs_times_follow_locked(struct kvs_store *store, struct kvs_extent *extent, int64_t by_s);
void kvs_times_mark_locked(struct kvs_store *store, struct kvs_extent *extent);
/* Jobs for what changed long enough ago, or for all. */
void kvs_times_write_back_locked(struct kvs_root *root, int64_t now_ns, int all);
void kvs_times_flush_all(struct kvs_store *store);

/* ---- quarantine.c ---- */
void kvs_quarantine_locked(struct kvs_store *store, struct kvs_extent *extent,
                           enum kvs_reason reason);
/* A read of it failed. Once may be chance; when a read that was begun later (`again`) fails too,
 * and the device did others meanwhile, the extent goes: its key is not tried for ever. */
void kvs_extent_unreadable_locked(struct kvs_root *root, struct kvs_extent *extent, int again);
void kvs_quarantine_count(struct kvs_root *root);
/* One worker at a time looks at what a name leads to and moves it aside: else the second would move
 * what the first one's put has made meanwhile. Not nested. */
void kvs_judge_begin(struct kvs_root *root);
void kvs_judge_end(struct kvs_root *root);
/* Frees the name: moves what is there aside, or deletes what cannot be moved. The owner only. */
int kvs_quarantine_move(struct kvs_root *root, const char *path);

#endif
