/*
 * writer.c: the life of a writer as its caller sees it: open, extend, put, commit, close. Staging
 * is in stage.c, the file's birth in publish.c.
 *
 * A writer owns a list of extents to be made, in chain order, never across a grid cut. Blocks that
 * are resident at open (or extend) are in none of them and their puts are ignored.
 *
 * Invariants:
 *   1. Nothing is visible before commit; after close without commit nothing ever is.
 *   2. An extent to be made has its length fixed once: at open, at the grid cut, or at commit.
 *   3. The commit ticket is finished exactly once, also when everything was dropped.
 *   4. Room is never made at the cost of the chain's own head: what of it was resident at open is
 *      pinned until the writer ends. A prompt larger than the budget keeps its first blocks.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store.h"

enum { PUTS_MAX = 1 << 16 }; /* waiting for the copier, in a store */

void kvs_writer_hold_locked(struct kvs_writer *writer)
{
    writer->refs++;
}

/* The caller holds a reference to the store of its own. */
void kvs_writer_drop_locked(struct kvs_writer *writer)
{
    if (--writer->refs > 0) {
        return;
    }
    for (uint32_t i = 0; i < writer->made_count; i++) {
        if (writer->made[i]->extent) {
            kvs_extent_unpin_locked(writer->store, writer->made[i]->extent);
        }
        kvs_made_free(writer->made[i]);
    }
    kvs_pins_end_locked(writer->store, &writer->parents);
    kvs_ticket_drop_locked(writer->commit);
    atomic_fetch_sub(&writer->store->refs, 1);
    free(writer->made);
    free(writer->keys);
    free(writer->extras);
    free(writer->token_ids);
    free(writer);
}

static int extras_append(struct kvs_writer *writer, uint64_t count, const struct kvs_key *extras)
{
    if (!extras && !writer->extras) {
        return 0;
    }
    struct kvs_key *grown = realloc(writer->extras, (count + 1) * sizeof(*grown));
    if (!grown) {
        return -ENOMEM;
    }
    writer->extras = grown;
    if (extras) {
        memcpy(grown, extras, count * sizeof(*grown));
    } else { /* a chain made of keys alone goes on: no digest is known of its new blocks */
        memset(grown + writer->count, 0, (count - writer->count) * sizeof(*grown));
    }
    return 0;
}

/* Known ids reach from block 0 without a gap; an extent that lacks some does without any. */
static int token_ids_append(struct kvs_writer *writer, uint64_t count, const int32_t *token_ids)
{
    if (!token_ids) {
        return 0;
    }
    uint64_t tokens = writer->ns->block_tokens, known = writer->id_blocks * tokens;
    int32_t *grown = realloc(writer->token_ids, (count * tokens + 1) * sizeof(*grown));
    if (!grown) {
        return -ENOMEM;
    }
    memcpy(grown + known, token_ids + known, (count * tokens - known) * sizeof(*grown));
    writer->token_ids = grown;
    writer->id_blocks = count;
    return 0;
}

static int keys_append(struct kvs_writer *writer, const struct kvs_key *keys, uint64_t count,
                       const struct kvs_key *extras, const int32_t *token_ids)
{
    struct kvs_key *grown = realloc(writer->keys, (count + 1) * sizeof(*keys));
    if (!grown) {
        return -ENOMEM;
    }
    writer->keys = grown;
    memcpy(grown, keys, count * sizeof(*keys));
    int error = extras_append(writer, count, extras);
    if (!error) {
        error = token_ids_append(writer, count, token_ids);
    }
    if (!error) {
        writer->count = count;
    }
    return error;
}

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
        uint32_t run = kvs_extent_follow_locked(found, position, &keys[*at], count - *at);
        *resident += run, *at += run;
    }
    uint64_t first = *at, cut = (first / grid + 1) * grid, end = cut < count ? cut : count;
    while (*at < end &&
           (*at == first || !kvs_extent_lookup_locked(store, ns, &keys[*at], now_s, &position))) {
        ++*at;
    }
    return (uint32_t)(*at - first);
}

/* Extents for the blocks of [from, writer->count) that are not resident. */
static int made_plan_locked(struct kvs_writer *writer, uint64_t from, int fixed)
{
    uint64_t grid = writer->flags & KVS_WRITER_SINGLE ? 1 : writer->ns->extent_blocks;
    uint64_t at = from;
    uint32_t count;
    int error = 0;
    while (!error && (count = kvs_missing_next_locked(writer->store, writer->ns, writer->keys,
                                                      writer->count, grid, writer->class_number,
                                                      &at, &writer->stats.blocks_skipped)) > 0) {
        uint64_t first = at - count, cut = (first / grid + 1) * grid;
        int open_end = !fixed && at == writer->count && at < cut;
        error = kvs_made_new_locked(writer, first, count,
                                    (uint32_t)(open_end ? cut - first : count), !open_end);
    }
    return error;
}

int kvs_writer_open(struct kvs_cache *cache, const struct kvs_key *keys, uint64_t count,
                    uint64_t start, int retention, uint32_t flags, const struct kvs_key *extras,
                    const int32_t *token_ids, struct kvs_writer **out)
{
    struct kvs_store *store = cache->store;
    int error = kvs_store_check(store);
    if (error) {
        return error;
    }
    if (start > count || count > KVS_CHAIN_BLOCKS_MAX || !cache->ns->has_layout ||
        retention >= (int)store->class_count ||
        ((flags & KVS_WRITER_SINGLE) && (count != 1 || start != 0))) {
        return -EINVAL;
    }
    struct kvs_writer *writer = calloc(1, sizeof(*writer));
    struct kvs_ticket *commit = writer ? kvs_ticket_open(store, 1) : NULL;
    if (!commit) {
        free(writer);
        return -ENOMEM;
    }
    kvs_store_hold(store);
    writer->store = store;
    writer->ns = cache->ns;
    writer->commit = commit;
    writer->start = start;
    writer->flags = flags;
    writer->refs = 1;
    writer->class_number = (uint8_t)(retention < 0 ? (int)store->default_class : retention);
    kvs_lock(store);
    error = store->closing ? -ESHUTDOWN : keys_append(writer, keys, count, extras, token_ids);
    if (!error) {
        error =
            kvs_pins_add_chain_locked(store, writer->ns, writer->keys, 0, count, &writer->parents);
    }
    if (!error) {
        error = made_plan_locked(writer, start, 1);
    }
    if (error) {
        kvs_writer_drop_locked(writer);
    } else {
        writer->refs++; /* the list's */
        kvs_list_add_last(&store->writers, &writer->link);
        *out = writer;
    }
    kvs_unlock(store);
    return error;
}

/* The open-ended last extent takes new blocks up to its grid cut. */
static void last_grow_locked(struct kvs_writer *writer, uint64_t *from)
{
    struct kvs_writer_extent *last =
        writer->made_count ? writer->made[writer->made_count - 1] : NULL;
    if (!last || last->fixed || last->first + last->count != *from) {
        return;
    }
    while (*from < writer->count && last->count < last->count_max) {
        last->count++;
        ++*from;
        for (uint32_t i = 0; i < writer->ns->layer_count; i++) {
            last->cells_missing += writer->ns->cell_bytes[i] ? 1 : 0;
        }
    }
    if (last->count == last->count_max) {
        last->fixed = 1;
        kvs_made_create_locked(writer, last);
    }
}

int kvs_writer_extend(struct kvs_writer *writer, const struct kvs_key *keys, uint64_t count,
                      const struct kvs_key *extras, const int32_t *token_ids)
{
    struct kvs_store *store = writer->store;
    int error = kvs_store_check(store);
    if (error) {
        return error;
    }
    kvs_lock(store);
    uint64_t from = writer->count;
    if (writer->state != KVS_WRITER_OPEN) {
        error = -EBUSY;
    } else if (count < from || count > KVS_CHAIN_BLOCKS_MAX || writer->flags ||
               memcmp(keys, writer->keys, from * sizeof(*keys)) != 0) {
        error = -EINVAL;
    } else {
        error = keys_append(writer, keys, count, extras, token_ids);
    }
    if (!error) {
        last_grow_locked(writer, &from);
        error = made_plan_locked(writer, from, 0);
    }
    kvs_unlock(store);
    return error;
}

int kvs_writer_put(struct kvs_writer *writer, uint32_t layer, uint64_t first, uint64_t count,
                   const struct kvs_source *sources, struct kvs_ticket **out)
{
    struct kvs_store *store = writer->store;
    int error = kvs_store_check(store);
    if (error) {
        return error;
    }
    struct kvs_put *put = calloc(1, sizeof(*put));
    struct kvs_ticket *ticket = put ? kvs_ticket_open(store, 2) : NULL;
    if (!ticket) {
        free(put);
        return -ENOMEM;
    }
    kvs_lock(store);
    if (store->closing || writer->state != KVS_WRITER_OPEN) {
        error = store->closing ? -ESHUTDOWN : -EBUSY;
    } else if (layer >= writer->ns->layer_count || first < writer->start || count > writer->count ||
               first > writer->count - count) {
        error = -EINVAL;
    } else if (store->put_count >= PUTS_MAX) {
        error = -EAGAIN; /* the caller does not wait for handles: bounded all the same */
    } else {
        put->writer = writer;
        put->ticket = ticket;
        put->layer = layer;
        put->first = first;
        put->count = count;
        memcpy(put->sources, sources, writer->ns->part_counts[layer] * sizeof(*sources));
        writer->puts_pending++;
        store->put_count++;
        kvs_writer_hold_locked(writer);
        *store->puts_tail = put;
        store->puts_tail = &put->next;
        pthread_cond_signal(&store->put_ready);
        *out = ticket;
    }
    if (error) {
        kvs_ticket_drop_locked(ticket);
        kvs_ticket_drop_locked(ticket);
        free(put);
    }
    kvs_unlock(store);
    return error;
}

/* ---- the end ---- */

static int made_complete(const struct kvs_writer_extent *made)
{
    return made->state != KVS_MADE_DROPPED && made->cells_missing == 0;
}

static int made_settled(const struct kvs_writer *writer, const struct kvs_writer_extent *made)
{
    if (made->state != KVS_MADE_READY || made->writes_in_flight > 0) {
        return 0;
    }
    for (uint32_t i = 0; i < writer->ns->layer_count; i++) {
        if (writer->ns->cell_bytes[i] && !made->layer_sent[i]) {
            return 0;
        }
    }
    return 1;
}

void kvs_writer_progress_locked(struct kvs_writer *writer)
{
    int lacking = 0;
    if (writer->state != KVS_WRITER_COMMITTING || writer->puts_pending > 0 || writer->publishing) {
        return;
    }
    for (uint32_t i = 0; i < writer->made_count; i++) {
        struct kvs_writer_extent *made = writer->made[i];
        lacking = lacking || !made_complete(made);
        if (lacking) {
            kvs_made_drop_locked(writer, made);
        } else if (!made_settled(writer, made)) {
            return;
        }
    }
    writer->publishing = 1;
    kvs_writer_hold_locked(writer);
    if (kvs_job_add_anywhere_locked(writer->store, kvs_publish_job, writer, 1) < 0) {
        kvs_writer_end_locked(writer);
        kvs_writer_drop_locked(writer);
    }
}

int kvs_writer_commit(struct kvs_writer *writer, struct kvs_ticket **out)
{
    struct kvs_store *store = writer->store;
    int error = kvs_store_check(store);
    if (error) {
        return error;
    }
    kvs_store_hold(store);
    kvs_lock(store);
    if (writer->state == KVS_WRITER_OPEN && !store->closing) {
        struct kvs_writer_extent *last =
            writer->made_count ? writer->made[writer->made_count - 1] : NULL;
        writer->state = KVS_WRITER_COMMITTING;
        writer->commit_ns = kvs_store_now_ns(store);
        if (last && !last->fixed) {
            last->fixed = 1;
            kvs_made_create_locked(writer, last);
        }
        *out = kvs_ticket_hold_locked(writer->commit);
        kvs_writer_progress_locked(writer);
    } else if (writer->state == KVS_WRITER_OPEN) {
        error = -ESHUTDOWN;
    } else {
        *out = kvs_ticket_hold_locked(writer->commit);
    }
    kvs_unlock(store);
    kvs_store_drop(store);
    return error;
}

void kvs_writer_end_locked(struct kvs_writer *writer)
{
    if (writer->state == KVS_WRITER_DONE) {
        return;
    }
    struct kvs_store *store = writer->store;
    if (writer->state == KVS_WRITER_COMMITTING) {
        kvs_latency_note(&store->latencies[KVS_STAGE_COMMIT],
                         kvs_store_now_ns(store) - writer->commit_ns);
    }
    writer->state = KVS_WRITER_DONE;
    kvs_pins_end_locked(store, &writer->parents);
    for (uint32_t i = 0; i < writer->made_count; i++) {
        struct kvs_writer_extent *made = writer->made[i];
        if (made->state == KVS_MADE_PUBLISHED) {
            /* A writer that is kept after its commit must not keep its extents from eviction. */
            kvs_extent_unpin_locked(store, made->extent);
            made->extent = NULL;
        } else {
            kvs_made_drop_locked(writer, made);
        }
    }
    enum kvs_reason why;
    uint64_t resident = kvs_match_locked(store, writer->ns, writer->keys + writer->start,
                                         writer->count - writer->start, &why);
    kvs_ticket_finish_locked(writer->commit, (int64_t)resident);
    kvs_list_remove(&writer->link);
    kvs_writer_drop_locked(writer);
}

void kvs_writer_close(struct kvs_writer *writer)
{
    struct kvs_store *store = writer->store;
    kvs_store_hold(store);
    kvs_lock(store);
    if (writer->state == KVS_WRITER_OPEN) {
        kvs_writer_end_locked(writer);
    }
    kvs_writer_drop_locked(writer);
    kvs_unlock(store);
    kvs_store_drop(store);
}
