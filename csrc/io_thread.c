/*
 * io_thread.c: the I/O thread of a root. Plans reads, cuts transfers into device operations, keeps
 * the engine fed, judges completions. The only caller of submit and reap.
 *
 * Reads go before writes. Work is bounded by operations and by bytes in flight, because submission
 * sleeps inside the kernel once the device's tags run out.
 *
 * Invariants:
 *   1. A slot is free, or belongs to the engine from submit to reap, whatever became of its load.
 *   2. A transfer ends exactly once: when all of it was submitted (or given up) and nothing of it
 *      is in flight.
 *   3. A short completion is tried again whole, a bounded number of times, then it is an error: the
 *      end of the file when a read ended at the same place each time, else the device's.
 *   4. The device is fed before transfers are ended (ending.c), and again every few of them.
 */
#include <assert.h>
#include <stdlib.h>
#include <unistd.h>

#include "store.h"

enum { BATCH = 64, TRIES_MAX = 4 };

void kvs_root_wake(struct kvs_root *root)
{
    if (root->io_running && root->io_asleep) {
        root->io_asleep = 0;
        uint64_t one = 1;
        ssize_t ignored = write(root->engine->wake_fd, &one, sizeof(one));
        (void)ignored; /* full counter: the thread is awake anyway */
    }
}

void kvs_wake_all(struct kvs_store *store)
{
    for (uint32_t i = 0; i < store->root_count; i++) {
        kvs_root_wake(&store->roots[i]);
    }
}

/* Even pieces: a large one with a small rest behind it would cost two operations as well. */
static uint32_t piece_bytes(uint64_t left)
{
    uint64_t pieces = (left + KVS_PIECE_BYTES - 1) / KVS_PIECE_BYTES;
    uint64_t bytes =
        (left / pieces + KVS_ARENA_UNIT_BYTES - 1) / KVS_ARENA_UNIT_BYTES * KVS_ARENA_UNIT_BYTES;
    return (uint32_t)(bytes < left ? bytes : left);
}

static void slot_fill(struct kvs_root *root, struct kvs_slot *slot, struct kvs_transfer *transfer,
                      int64_t now_ns)
{
    slot->started_ns = now_ns;
    slot->late = slot->rounds = 0;
    slot->transfer = transfer;
    slot->piece_start = transfer->submitted;
    slot->piece_bytes = piece_bytes(transfer->bytes - transfer->submitted);
    slot->tries = 0;
    slot->short_bytes = 0;
    transfer->submitted += slot->piece_bytes;
    transfer->in_flight++;
    if (transfer->kind == KVS_TRANSFER_WRITE) {
        transfer->writer->stats.bytes_submitted += slot->piece_bytes;
        return;
    }
    root->read_bytes_queued -= slot->piece_bytes;
    root->read_bytes_in_flight += slot->piece_bytes;
    if (transfer->kind == KVS_TRANSFER_DIRECT) {
        transfer->load->stats.reads++;
    } else if (transfer->kind == KVS_TRANSFER_REGION && transfer->region->waiters) {
        transfer->region->waiters->load->stats.reads++;
    }
}

static void slot_to_op(struct kvs_slot *slot)
{
    struct kvs_transfer *transfer = slot->transfer;
    slot->op = (struct kvs_io_op){
        .kind = transfer->kind == KVS_TRANSFER_WRITE ? KVS_IO_WRITE : KVS_IO_READ,
        .fd = transfer->fd,
        .buffer = transfer->memory + slot->piece_start,
        .offset = transfer->file_offset + slot->piece_start,
        .bytes = slot->piece_bytes,
        .owner = slot,
    };
}

/* Fills free slots with the next pieces, reads first. */
static unsigned batch_fill_locked(struct kvs_root *root, struct kvs_io_op **ops)
{
    unsigned count = 0;
    int64_t now_ns = root->reads || root->writes ? kvs_store_now_ns(root->store) : 0;
    while (count < BATCH && root->free_slot && root->bytes_in_flight < root->bytes_in_flight_max) {
        struct kvs_transfer *transfer = kvs_transfer_next_locked(root);
        if (!transfer) {
            break;
        }
        struct kvs_slot *slot = root->free_slot;
        root->free_slot = slot->next_free;
        slot_fill(root, slot, transfer, now_ns);
        slot_to_op(slot);
        if (transfer->submitted == transfer->bytes) {
            kvs_transfer_leave_queue_locked(root, transfer);
        }
        root->ops_in_flight++;
        root->bytes_in_flight += slot->piece_bytes;
        ops[count++] = &slot->op;
    }
    if (root->ops_in_flight > root->ops_in_flight_max) {
        root->ops_in_flight_max = root->ops_in_flight;
    }
    return count;
}

static void count_piece_locked(struct kvs_root *root, const struct kvs_slot *slot, int error,
                               int64_t took_ns)
{
    int write = slot->op.kind == KVS_IO_WRITE;
    if (error) {
        root->device_errors++;
        return;
    }
    *(write ? &root->device_written_bytes : &root->device_read_bytes) += slot->piece_bytes;
    enum kvs_stage stage = write ? KVS_STAGE_WRITE : KVS_STAGE_READ;
    kvs_latency_note(&root->store->latencies[stage], took_ns);
}

/* With its last piece the transfer goes to its end. */
static void piece_done(struct kvs_root *root, struct kvs_slot *slot)
{
    struct kvs_transfer *transfer = slot->transfer;
    int error = kvs_io_status(&slot->op);
    if (error == -EAGAIN && slot->op.result > 0) {
        error =
            slot->op.kind == KVS_IO_READ && slot->short_bytes == slot->op.result ? -ENODATA : -EIO;
    } else if (slot->op.result == -ENODATA) {
        error = -EIO; /* the kernel's word for a sector that cannot be read; no end of file */
    }
    int64_t took_ns = kvs_store_now_ns(root->store) - slot->started_ns;
    kvs_lock(root->store);
    count_piece_locked(root, slot, error, took_ns);
    if (!slot->late) {
        kvs_breaker_note_locked(root, error, took_ns);
    }
    root->io_asleep = 0; /* it plans again before it sleeps: no one needs to wake it */
    if (error && !transfer->error) {
        kvs_transfer_give_up_locked(root, transfer, error);
    }
    transfer->in_flight--;
    root->ops_in_flight--;
    if (slot->op.kind == KVS_IO_READ) {
        root->read_bytes_in_flight -= slot->piece_bytes;
    }
    root->bytes_in_flight -= slot->piece_bytes;
    slot->transfer = NULL;
    slot->next_free = root->free_slot;
    root->free_slot = slot;
    if (transfer->in_flight == 0 && transfer->submitted == transfer->bytes) {
        kvs_ending_add_locked(root, transfer);
    }
    kvs_unlock(root->store);
}

struct io_round {
    struct kvs_io_op
        *pending[2 * BATCH]; /* filled or to be repeated, not taken by the engine yet */
    unsigned pending_count;
};

/* Hands ops to the engine; what it does not take now is tried again after the next reap. 1 when an
 * operation was refused, which ends it. */
static int submit(struct kvs_root *root, struct io_round *round)
{
    struct kvs_io_op **ops = round->pending;
    unsigned sent = 0, count = round->pending_count;
    int refused = 0;
    while (sent < count) {
        int taken = root->engine->calls->submit(root->engine, ops + sent, count - sent);
        if (taken < 0) {
            /* The engine refused the operation itself: it completes with that error. */
            ops[sent]->result = taken;
            piece_done(root, ops[sent]->owner);
            refused = taken = 1;
        }
        if (taken == 0) {
            break;
        }
        sent += (unsigned)taken;
    }
    for (unsigned i = sent; i < count; i++) {
        ops[i - sent] = ops[i];
    }
    round->pending_count = count - sent;
    return refused;
}

static void completion(struct kvs_root *root, struct io_round *round, struct kvs_io_op *op)
{
    struct kvs_slot *slot = op->owner;
    if (kvs_io_status(op) == -EAGAIN && slot->tries < TRIES_MAX) {
        slot->short_bytes = slot->tries++ && slot->short_bytes != op->result ? -1 : op->result;
        slot_to_op(slot);
        assert(round->pending_count < 2 * BATCH);
        round->pending[round->pending_count++] = op;
        return;
    }
    piece_done(root, slot);
}

/* One round before waiting. Returns 1 when there is more to do at once, 0 to wait, -1 to stop. */
static int feed(struct kvs_root *root, struct io_round *round)
{
    struct kvs_store *store = root->store;
    kvs_lock(store);
    if (!store->closing) {
        kvs_plan_reads_locked(root);
    }
    if (round->pending_count == 0) {
        round->pending_count = batch_fill_locked(root, round->pending);
    }
    /* Who finds some to end plans again afterwards, even when a helper was quicker. Else a change
     * must wake the thread from here on. */
    int ends = root->ended != NULL;
    root->io_asleep = !ends;
    int stop = store->closing > 1 && root->ops_in_flight == 0 && !root->reads && !root->writes &&
               !root->ended && root->ending == 0;
    kvs_unlock(store);
    unsigned full = round->pending_count == BATCH;
    int refused = round->pending_count && submit(root, round);
    if (stop) {
        return -1;
    }
    return ends || refused || (full && round->pending_count == 0);
}

void *kvs_io_thread(void *argument)
{
    struct kvs_root *root = argument;
    struct kvs_io_op *done[BATCH];
    struct io_round round = {.pending_count = 0};
    int more;
    while ((more = feed(root, &round)) >= 0) {
        kvs_ending_some(root);
        int64_t timeout_ns = more ? 0 : round.pending_count ? 1000000 : -1;
        int count = root->engine->calls->reap(root->engine, done, BATCH, timeout_ns);
        if (count < 0) { /* an engine that only fails must not burn a core */
            struct timespec moment = {0, 1000000};
            nanosleep(&moment, NULL);
        }
        for (int i = 0; i < count; i++) {
            completion(root, &round, done[i]);
        }
    }
    return NULL;
}
