/*
 * room.c: who may use how much of the pool. Counts only: regions are the pool's (pool.c).
 *
 * Every running load is promised room for its largest layer (reserved_bytes), and reads ahead into
 * what nobody is promised.
 *
 * Invariants:
 *   1. The room in the pool is at least what is still owed to all running loads together.
 *   2. The promise is for the front: the layer that the slowest of the load's roots is at. What its
 *      other roots read ahead does not use it up, or the layer that is awaited would never come.
 */
#include "room.h"

/* The first layer that is not wholly planned. */
static uint32_t front_of(const struct kvs_load *load, uint32_t *furthest)
{
    uint32_t front = load->ns->layer_count;
    *furthest = 0;
    for (uint32_t root = 0; root < load->store->root_count; root++) {
        uint32_t at = load->front_layer[root];
        if (load->span_roots >> root & 1) {
            front = at < front ? at : front;
            *furthest = at > *furthest ? at : *furthest;
        }
    }
    return front;
}

/* What it may still take of its promise. */
static uint64_t owed(const struct kvs_load *load)
{
    uint64_t held = load->held_bytes;
    uint32_t furthest, front = front_of(load, &furthest);
    for (uint32_t ahead = front + 1; ahead <= furthest && ahead < load->ns->layer_count; ahead++) {
        held -= load->layers[ahead].held_bytes;
    }
    return held < load->reserved_bytes ? load->reserved_bytes - held : 0;
}

/* Past 7/8 of the pool nothing is promised, so that pieces of different sizes still find room. */
static int within_budget(const struct kvs_load *load)
{
    return load->store->reserved_total + load->reserved_bytes <=
           kvs_arena_bytes(load->store->arena) / 8 * 7;
}

/* While a load waits for room, the running ones read no further ahead than they were promised. */
uint64_t kvs_load_promised_locked(const struct kvs_store *store, const struct kvs_load *load)
{
    uint64_t bytes = 0;
    const struct kvs_link *head = &store->loads;
    int waiting_seen = 0;
    for (const struct kvs_link *at = head->next; at != head; at = at->next) {
        const struct kvs_load *other = KVS_ENTRY(at, struct kvs_load, link);
        int next = other->state == KVS_LOAD_WAITING && !waiting_seen;
        waiting_seen |= next;
        if (other != load && (other->state == KVS_LOAD_RUNNING || (next && within_budget(other)))) {
            bytes += owed(other);
        }
    }
    return bytes;
}

/* First come, first served: a load waits until its largest layer is sure to fit: others may have
 * read ahead into room that they were not promised. */
void kvs_load_admit_locked(struct kvs_store *store)
{
    for (struct kvs_link *at = store->loads.next; at != &store->loads;) {
        struct kvs_load *load = KVS_ENTRY(at, struct kvs_load, link);
        at = at->next;
        if (load->state != KVS_LOAD_WAITING) {
            continue;
        }
        if (!within_budget(load) ||
            kvs_pool_room_locked(store) <
                kvs_load_promised_locked(store, load) + load->reserved_bytes) {
            return;
        }
        load->state = KVS_LOAD_RUNNING;
        store->reserved_total += load->reserved_bytes;
        kvs_wake_all(store);
        kvs_load_progress_locked(load); /* all of it may be given up already */
        if (load->state == KVS_LOAD_ENDED) {
            return; /* ending it came back here for the others */
        }
    }
}

int kvs_room_for_locked(const struct kvs_load *load, uint32_t layer, uint64_t bytes)
{
    uint32_t furthest;
    uint64_t mine = owed(load);
    int ahead = layer > front_of(load, &furthest);
    if (!ahead && bytes <= mine) {
        return 1;
    }
    return kvs_pool_room_locked(load->store) >=
           kvs_load_promised_locked(load->store, load) + (ahead ? mine : 0) + bytes;
}

void kvs_room_take_locked(struct kvs_load *load, uint32_t layer, uint64_t bytes)
{
    load->held_bytes += bytes;
    load->layers[layer].held_bytes += bytes;
}

void kvs_room_give_locked(struct kvs_load *load, uint32_t layer, uint64_t bytes)
{
    load->held_bytes -= bytes;
    load->layers[layer].held_bytes -= bytes;
}
