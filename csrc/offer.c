/*
 * offer.c: what a writer makes of the blocks it is offered: those that are missing and admitted
 * become extents to be made, those that are resident are renewed, the others are refused.
 *
 * Decided once, when the chain is opened or extended: whoever puts layer by layer knows before the
 * first byte what of it is written.
 *
 * Invariants:
 *   1. No extent crosses a grid cut.
 *   2. The first refused block ends the chain: what lies behind a gap could not hit.
 */
#include "store.h"

uint32_t kvs_missing_next_locked(struct kvs_store *store, struct kvs_namespace *ns,
                                 const struct kvs_key *keys, uint64_t count, uint64_t grid,
                                 int class_number, uint64_t *at, uint64_t *resident)
{
    uint8_t position = 0;
    int64_t now_s = kvs_store_now_s(store);
    struct kvs_extent *found = NULL;
    while (*at < count &&
           (found = kvs_extent_lookup_locked(store, ns, &keys[*at], now_s, &position))) {
        /* Also an expired one: renewing costs nothing, writing it again would. */
        kvs_extent_touch_locked(store, found, class_number);
        uint32_t followed = kvs_extent_follow_locked(found, position, &keys[*at], count - *at);
        *resident += followed;
        *at += followed;
    }
    uint64_t first = *at, cut = (first / grid + 1) * grid, end = cut < count ? cut : count;
    while (*at < end &&
           (*at == first || !kvs_extent_lookup_locked(store, ns, &keys[*at], now_s, &position))) {
        ++*at;
    }
    return (uint32_t)(*at - first);
}

/* How many of the missing blocks [first, first + offered) are to be written, the leading ones. */
static uint32_t admit_locked(struct kvs_writer *writer, uint64_t first, uint32_t offered)
{
    enum kvs_refusal before = writer->refusal;
    uint32_t count = kvs_admit_locked(writer->store, writer->ns, &writer->keys[first], offered,
                                      &writer->refusal);
    writer->stats.blocks_refused += offered - count;
    if (writer->refusal && !before) {
        writer->admitted_end = first + count;
    }
    return count;
}

/* The open-ended last extent takes new blocks up to its grid cut, those that are admitted. */
static void last_grow_locked(struct kvs_writer *writer, uint64_t *from)
{
    struct kvs_writer_extent *last =
        writer->made_count ? writer->made[writer->made_count - 1] : NULL;
    if (!last || last->fixed || last->first + last->count != *from || *from == writer->count) {
        return;
    }
    uint64_t room = last->count_max - last->count, more = writer->count - *from;
    uint32_t offered = (uint32_t)(more < room ? more : room);
    uint32_t count = admit_locked(writer, *from, offered);
    last->count += count;
    *from += offered;
    for (uint32_t i = 0; i < writer->ns->layer_count; i++) {
        last->cells_missing += writer->ns->cell_bytes[i] ? count : 0;
    }
    if (last->count == last->count_max) {
        last->fixed = 1;
        kvs_made_create_locked(writer, last);
    }
}

int kvs_offer_locked(struct kvs_writer *writer, uint64_t from, int fixed)
{
    uint64_t grid = writer->flags & KVS_WRITER_SINGLE ? 1 : writer->ns->extent_blocks;
    uint32_t offered;
    int error = 0;
    if (writer->refusal == KVS_REFUSED_NOT) {
        writer->admitted_end = writer->count;
    }
    last_grow_locked(writer, &from);
    uint64_t at = from;
    while (!error && (offered = kvs_missing_next_locked(writer->store, writer->ns, writer->keys,
                                                        writer->count, grid, writer->class_number,
                                                        &at, &writer->stats.blocks_skipped)) > 0) {
        uint64_t first = at - offered, cut = (first / grid + 1) * grid;
        uint32_t count = admit_locked(writer, first, offered);
        int open_end = !fixed && at == writer->count && at < cut && count == offered;
        if (count > 0) {
            error = kvs_made_new_locked(writer, first, count,
                                        (uint32_t)(open_end ? cut - first : count), !open_end);
        }
    }
    return error;
}
