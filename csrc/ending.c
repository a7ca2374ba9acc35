/*
 * ending.c: the end of a transfer. All its pieces are back; it waits here until the root's I/O
 * thread or one of its helpers verifies, copies and tells.
 *
 * The I/O thread alone ends reads as fast as one core hashes them. When more wait than it takes in
 * a round, helpers wake and take from the same queue; below that they sleep and cost nothing.
 *
 * Invariants:
 *   1. A transfer is ended once, by whoever took it. `ending` counts those that were taken and are
 *      not over: the I/O thread does not leave before.
 *   2. Helpers wake only after the device was fed: one may take the I/O thread's core, and
 *      a device that completes in bursts would stand idle meanwhile.
 *   3. Whoever is not the I/O thread wakes it afterwards: there may be room now for what it plans.
 */
#define _GNU_SOURCE 1 /* sched_getaffinity */
#include <assert.h>
#include <sched.h>
#include <stdlib.h>

#include "store.h"

/* Between two looks at the device. */
enum { ENDS_PER_ROUND = 4, BYTES_PER_ROUND = 1 << 20 };

void kvs_ending_add_locked(struct kvs_root *root, struct kvs_transfer *transfer)
{
    transfer->next = NULL;
    *root->ended_tail = transfer;
    root->ended_tail = &transfer->next;
    root->ended_count++;
}

static struct kvs_transfer *take_locked(struct kvs_root *root)
{
    struct kvs_transfer *transfer = root->ended;
    if (transfer) {
        root->ended = transfer->next;
        root->ended_tail = root->ended ? root->ended_tail : &root->ended;
        root->ended_count--;
        root->ending++;
    }
    return transfer;
}

static void end(struct kvs_root *root, struct kvs_transfer *transfer)
{
    switch (transfer->kind) {
    case KVS_TRANSFER_WRITE:
        kvs_made_written(transfer);
        return;
    case KVS_TRANSFER_PROBE:
        kvs_probe_read_done(root, transfer);
        return;
    case KVS_TRANSFER_SCRUB:
        kvs_scrub_read_done(root);
        return;
    case KVS_TRANSFER_HIT:
        kvs_deliver_waiters(root->store, transfer->region);
        free(transfer);
        return;
    case KVS_TRANSFER_REGION:
    case KVS_TRANSFER_DIRECT:
        break;
    }
    if (kvs_transfer_read_done(root, transfer)) {
        transfer->submitted = 0;
        transfer->error = 0;
        kvs_lock(root->store);
        kvs_transfer_queue_locked(root, transfer);
        kvs_unlock(root->store);
    }
}

void kvs_ending_some(struct kvs_root *root)
{
    struct kvs_transfer *transfer;
    uint64_t bytes = 0;
    kvs_lock(root->store);
    if (root->ended_count > ENDS_PER_ROUND && root->helpers_idle) {
        pthread_cond_signal(&root->help_wanted);
    }
    for (int i = 0;
         i < ENDS_PER_ROUND && bytes < BYTES_PER_ROUND && (transfer = take_locked(root)) != NULL;
         i++) {
        bytes += transfer->bytes;
        kvs_unlock(root->store);
        end(root, transfer);
        kvs_lock(root->store);
        root->ending--;
    }
    kvs_unlock(root->store);
}

static void *helper_main(void *argument)
{
    struct kvs_root *root = argument;
    kvs_lock(root->store);
    for (;;) {
        struct kvs_transfer *transfer = take_locked(root);
        if (transfer) {
            kvs_unlock(root->store);
            end(root, transfer);
            kvs_lock(root->store);
            root->ending--;
            kvs_root_wake(root);
        } else if (root->helpers_stop) {
            break;
        } else {
            root->helpers_idle++;
            pthread_cond_wait(&root->help_wanted, &root->store->lock);
            root->helpers_idle--;
        }
    }
    kvs_unlock(root->store);
    return NULL;
}

static uint32_t cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof(set), &set) == 0 ? (uint32_t)CPU_COUNT(&set) : 1;
}

/* One core is the I/O thread's. A machine that gives no more threads verifies with that one. */
void kvs_helpers_start(struct kvs_root *root, int wanted)
{
    uint32_t most = wanted < 0 ? cores() - 1 : (uint32_t)wanted;
    most = most < KVS_HELPERS_MAX ? most : KVS_HELPERS_MAX;
    while (root->helper_count < most &&
           pthread_create(&root->helpers[root->helper_count], NULL, helper_main, root) == 0) {
        root->helper_count++;
    }
}

void kvs_helpers_stop(struct kvs_root *root)
{
    kvs_lock(root->store);
    assert(root->helper_count == 0 || !root->ended);
    root->helpers_stop = 1;
    pthread_cond_broadcast(&root->help_wanted);
    kvs_unlock(root->store);
    while (root->helper_count > 0) {
        pthread_join(root->helpers[--root->helper_count], NULL);
    }
}
