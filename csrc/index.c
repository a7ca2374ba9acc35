/*
 * index.c: open addressing with linear probing over 8-byte slots, see index.h.
 *
 * A tag's home slot is its upper half scaled to the slot count (a multiply and a shift, so any slot
 * count will do and the table can grow by halves); its lowest 16 bits are the slot's fingerprint.
 *
 * Removal shifts entries back instead of leaving tombstones: between an entry's home and the entry
 * there is never a free slot. Neither removal nor resizing lets an entry overtake another one of
 * the same home, which keeps the entries of one tag in order.
 */
#include "index.h"

#include <errno.h>
#include <stdlib.h>

enum { SLOTS_MIN = 16 };

struct slot {
    uint32_t extent;
    uint16_t fingerprint;
    uint8_t position;
    uint8_t used;
};
_Static_assert(sizeof(struct slot) == 8, "eight slots a cache line");

struct kvs_index {
    kvs_index_tag_fn tag_of;
    void *arg;
    struct slot *slots; /* NULL while slot_count is 0 */
    uint32_t slot_count;
    uint32_t used_count;
};

static uint32_t home_of(uint64_t tag, uint32_t slot_count)
{
    return (uint32_t)(((tag >> 32) * slot_count) >> 32);
}

static uint32_t next_slot(const struct kvs_index *index, uint32_t at)
{
    return at + 1 == index->slot_count ? 0 : at + 1;
}

static uint64_t slot_tag(const struct kvs_index *index, const struct slot *slot)
{
    return index->tag_of(index->arg, slot->extent, slot->position);
}

/* Into the first free slot from its home on: behind all entries of the same tag. */
static void place(struct kvs_index *index, uint64_t tag, uint32_t extent, uint8_t position)
{
    uint32_t at = home_of(tag, index->slot_count);
    while (index->slots[at].used) {
        at = next_slot(index, at);
    }
    index->slots[at] = (struct slot){
        .extent = extent, .fingerprint = (uint16_t)tag, .position = position, .used = 1};
    index->used_count++;
}

static int resize(struct kvs_index *index, uint32_t slot_count)
{
    struct slot *slots = calloc(slot_count, sizeof(*slots));
    if (!slots) {
        return -ENOMEM;
    }
    struct kvs_index old = *index;
    index->slots = slots;
    index->slot_count = slot_count;
    index->used_count = 0;
    /* Behind a free slot, so that the entries of a run that wraps around are met in order. */
    uint32_t at = 0;
    while (at < old.slot_count && old.slots[at].used) {
        at++;
    }
    for (uint32_t seen = 0; seen < old.slot_count; seen++) {
        const struct slot *slot = &old.slots[at];
        if (slot->used) {
            place(index, slot_tag(index, slot), slot->extent, slot->position);
        }
        at = next_slot(&old, at);
    }
    free(old.slots);
    return 0;
}

static int make_room(struct kvs_index *index)
{
    uint64_t count = index->slot_count;
    if ((uint64_t)index->used_count + 1 <= count * 4 / 5) {
        return 0;
    }
    uint64_t wanted = count == 0 ? SLOTS_MIN : count + count / 2;
    return wanted > UINT32_MAX ? -ENOMEM : resize(index, (uint32_t)wanted);
}

static void give_room_back(struct kvs_index *index)
{
    uint32_t smaller = index->slot_count / 3 * 2;
    smaller = smaller < SLOTS_MIN ? SLOTS_MIN : smaller;
    if ((uint64_t)index->used_count * 100 < (uint64_t)index->slot_count * 35 &&
        smaller < index->slot_count) {
        (void)resize(index, smaller); /* without memory for it the larger table does as well */
    }
}

/* Fills the free slot `hole` from behind, until a free slot ends the run. */
static void shift_back(struct kvs_index *index, uint32_t hole)
{
    for (uint32_t at = next_slot(index, hole); index->slots[at].used; at = next_slot(index, at)) {
        uint32_t home = home_of(slot_tag(index, &index->slots[at]), index->slot_count);
        /* An entry whose home lies behind the hole would be lost in front of it. */
        int home_is_behind = hole < at ? hole < home && home <= at : hole < home || home <= at;
        if (!home_is_behind) {
            index->slots[hole] = index->slots[at];
            hole = at;
        }
    }
    index->slots[hole] = (struct slot){0};
}

int kvs_index_open(kvs_index_tag_fn tag_of, void *arg, struct kvs_index **out)
{
    struct kvs_index *index = calloc(1, sizeof(*index));
    if (!index) {
        return -ENOMEM;
    }
    index->tag_of = tag_of;
    index->arg = arg;
    *out = index;
    return 0;
}

void kvs_index_close(struct kvs_index *index)
{
    if (index) {
        free(index->slots);
        free(index);
    }
}

int kvs_index_insert(struct kvs_index *index, uint64_t tag, uint32_t extent, uint8_t position)
{
    int error = make_room(index);
    if (!error) {
        place(index, tag, extent, position);
    }
    return error;
}

int kvs_index_remove(struct kvs_index *index, uint64_t tag, uint32_t extent, uint8_t position)
{
    if (index->slot_count == 0) {
        return -ENOENT;
    }
    uint32_t at = home_of(tag, index->slot_count);
    for (; index->slots[at].used; at = next_slot(index, at)) {
        const struct slot *slot = &index->slots[at];
        if (slot->extent == extent && slot->position == position &&
            slot->fingerprint == (uint16_t)tag) {
            shift_back(index, at);
            index->used_count--;
            give_room_back(index);
            return 0;
        }
    }
    return -ENOENT;
}

int kvs_index_find(const struct kvs_index *index, uint64_t tag, struct kvs_index_cursor *cursor)
{
    if (cursor->probed >= index->slot_count) {
        return 0;
    }
    uint64_t at = (uint64_t)home_of(tag, index->slot_count) + cursor->probed;
    at = at >= index->slot_count ? at - index->slot_count : at;
    for (uint32_t slot_at = (uint32_t)at; index->slots[slot_at].used;
         slot_at = next_slot(index, slot_at)) {
        const struct slot *slot = &index->slots[slot_at];
        cursor->probed++;
        if (slot->fingerprint == (uint16_t)tag && slot_tag(index, slot) == tag) {
            cursor->extent = slot->extent;
            cursor->position = slot->position;
            return 1;
        }
    }
    return 0;
}

uint64_t kvs_index_count(const struct kvs_index *index)
{
    return index->used_count;
}

uint64_t kvs_index_bytes(const struct kvs_index *index)
{
    return sizeof(*index) + (uint64_t)index->slot_count * sizeof(struct slot);
}
