/*
 * transfers.c: the queues of transfers between those that plan them and the root's I/O thread, and
 * how one is given up. Submits nothing.
 *
 * Invariants:
 *   1. Only the head of a queue can be partly submitted.
 *   2. A transfer leaves its queue when the last of it was submitted or given up; what is in flight
 *      then still belongs to the engine.
 */
#include <errno.h>

#include "store.h"

void kvs_transfer_queue_locked(struct kvs_root *root, struct kvs_transfer *transfer)
{
    transfer->next = NULL;
    if (transfer->kind == KVS_TRANSFER_WRITE) {
        *root->writes_tail = transfer;
        root->writes_tail = &transfer->next;
    } else {
        *root->reads_tail = transfer;
        root->reads_tail = &transfer->next;
        root->reads_queued++;
        root->read_bytes_queued += transfer->bytes;
    }
}

static int awaited(const struct kvs_load *load, uint32_t layer, uint32_t span)
{
    return load->state == KVS_LOAD_RUNNING &&
           !load->runs[(size_t)layer * load->span_count + span].over;
}

static int region_awaited(const struct kvs_region *region)
{
    for (const struct kvs_waiter *at = region->waiters; at; at = at->next) {
        if (awaited(at->load, at->layer, at->span)) {
            return 1;
        }
    }
    return 0;
}

/* Nobody joins what will not be whole. */
static void regions_close(const struct kvs_transfer *transfer)
{
    for (struct kvs_region *at = transfer->region; at; at = at->behind) {
        at->state = KVS_REGION_BAD;
    }
}

/* Nobody wants the rest of it any more. */
static int unwanted_locked(struct kvs_root *root, const struct kvs_transfer *transfer)
{
    switch (transfer->kind) {
    case KVS_TRANSFER_DIRECT:
        return !awaited(transfer->load, transfer->layer, transfer->span);
    case KVS_TRANSFER_WRITE:
        return transfer->made->state == KVS_MADE_DROPPED;
    case KVS_TRANSFER_SCRUB:
        return kvs_root_down_locked(root);
    case KVS_TRANSFER_PROBE:
    case KVS_TRANSFER_HIT: /* is never queued here */
        return 0;
    case KVS_TRANSFER_REGION:
        break;
    }
    for (const struct kvs_region *at = transfer->region; at; at = at->behind) {
        if (region_awaited(at)) {
            return 0;
        }
    }
    return 1;
}

/* Wholly submitted (or given up) transfers leave the queue at once: they may end any moment. */
void kvs_transfer_leave_queue_locked(struct kvs_root *root, struct kvs_transfer *transfer)
{
    if (root->reads == transfer) {
        root->reads = transfer->next;
        root->reads_queued--;
        root->reads_tail = root->reads ? root->reads_tail : &root->reads;
    } else if (root->writes == transfer) {
        root->writes = transfer->next;
        root->writes_tail = root->writes ? root->writes_tail : &root->writes;
    }
}

/* Only the head of a queue can be partly submitted, so what is left to submit is at its head. */
void kvs_transfer_give_up_locked(struct kvs_root *root, struct kvs_transfer *transfer, int error)
{
    transfer->error = transfer->error ? transfer->error : error;
    if (transfer->submitted == transfer->bytes) {
        return;
    }
    if (transfer->kind != KVS_TRANSFER_WRITE) {
        root->read_bytes_queued -= transfer->bytes - transfer->submitted;
    }
    transfer->submitted = transfer->bytes;
    kvs_transfer_leave_queue_locked(root, transfer);
    if (transfer->kind == KVS_TRANSFER_REGION) {
        regions_close(transfer);
    }
}

void kvs_transfers_give_up_locked(struct kvs_root *root)
{
    for (uint32_t i = 0; i < root->slot_count; i++) {
        struct kvs_transfer *transfer = root->slots[i].transfer;
        if (!transfer || transfer->kind == KVS_TRANSFER_PROBE) {
            continue;
        }
        root->slots[i].late = 1;
        kvs_transfer_give_up_locked(root, transfer, -ECANCELED);
        if (transfer->kind == KVS_TRANSFER_REGION) {
            regions_close(transfer);
        }
    }
}

struct kvs_transfer *kvs_transfer_next_locked(struct kvs_root *root)
{
    while (root->reads || root->writes) {
        struct kvs_transfer *transfer = root->reads ? root->reads : root->writes;
        if (!unwanted_locked(root, transfer)) {
            return transfer;
        }
        kvs_transfer_give_up_locked(root, transfer, -ECANCELED);
        if (transfer->in_flight == 0) {
            kvs_ending_add_locked(root, transfer);
        }
    }
    return NULL;
}
