/*
 * admit.c: whether a missing block is worth writing: not when it is offered for the first time
 * (second-hit), and not beyond the bytes a day that a root may be written (write budget). Both
 * spare the device: what is refused is a miss later, never an error.
 *
 * Offers: a table of 2^19 buckets with the last eight keys each, by 16 bits of them: 8 MiB, made
 * for second-hit only. A key is forgotten when eight others of its bucket were offered after it:
 * after about four million others. A key that never was offered is taken for one that was with a
 * chance of at most 8 in 65,535. The table is not on disk: a new life has seen nothing.
 *
 * Budget: one moment per root, until which what was admitted is paid for; more may be when that has
 * passed. The boot clock counts, so no step of the wall clock buys anything.
 *
 * Invariants:
 *   1. In any time T of a life at most T's share of the budget, a day's budget that was saved up
 *      and one run of blocks are admitted. A life begins with an hour's share.
 *   2. A refusal waits for nothing: it is known when a block is offered.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store.h"

enum { OFFER_BUCKETS = 1 << 19, OFFER_WAYS = 8 };

static const int64_t HOUR_NS = 3600 * KVS_NS_PER_S;
static const int64_t DAY_NS = 24 * 3600 * KVS_NS_PER_S;
static const double COST_MAX_NS = 1e18; /* 30 years: of the smallest budgets */

int kvs_admission_open(struct kvs_store *store, const struct kvs_options *options)
{
    store->write_budget_bytes = options->write_budget_bytes;
    for (uint32_t i = 0; i < KVS_ROOTS_MAX; i++) {
        store->roots[i].writes_paid_ns = kvs_store_now_ns(store) - HOUR_NS;
    }
    if (options->admission == KVS_ADMIT_SECOND_HIT) {
        store->offers = calloc(OFFER_BUCKETS, OFFER_WAYS * sizeof(*store->offers));
    }
    return options->admission == KVS_ADMIT_SECOND_HIT && !store->offers ? -ENOMEM : 0;
}

/* Whether the table knows the block, which it does from now on. */
static int offered_before(struct kvs_store *store, uint64_t tag)
{
    if (!store->offers) {
        return 1;
    }
    uint16_t *bucket = &store->offers[(tag >> 32) % OFFER_BUCKETS * OFFER_WAYS];
    uint16_t mark = (uint16_t)(tag % UINT16_MAX + 1); /* 0: a free place */
    uint32_t at = 0;
    while (at < OFFER_WAYS - 1 && bucket[at] != mark) {
        at++;
    }
    int known = bucket[at] == mark;
    memmove(bucket + 1, bucket, at * sizeof(*bucket));
    bucket[0] = mark;
    return known;
}

/* ---- the budget ---- */

static int64_t cost_ns(const struct kvs_store *store, uint64_t bytes)
{
    double cost = (double)bytes * (double)DAY_NS / (double)store->write_budget_bytes;
    return (int64_t)(cost < COST_MAX_NS ? cost : COST_MAX_NS);
}

/* Also for a run that is larger than what is left: one larger than a day's budget has to begin. */
static int budget_take_locked(struct kvs_root *root, uint64_t bytes)
{
    struct kvs_store *store = root->store;
    if (store->write_budget_bytes == 0) {
        return 1;
    }
    int64_t now_ns = kvs_store_now_ns(store);
    if (root->writes_paid_ns > now_ns) {
        return 0;
    }
    int64_t saved_ns = now_ns - DAY_NS;
    int64_t from_ns = root->writes_paid_ns > saved_ns ? root->writes_paid_ns : saved_ns;
    root->writes_paid_ns = from_ns + cost_ns(store, bytes);
    return 1;
}

void kvs_admit_refund_locked(struct kvs_root *root, uint64_t bytes)
{
    if (root->store->write_budget_bytes) {
        root->writes_paid_ns -= cost_ns(root->store, bytes);
    }
}

uint64_t kvs_write_budget_left_locked(const struct kvs_root *root)
{
    int64_t saved_ns = kvs_store_now_ns(root->store) - root->writes_paid_ns;
    saved_ns = saved_ns < 0 ? 0 : saved_ns > DAY_NS ? DAY_NS : saved_ns;
    return (uint64_t)((double)root->store->write_budget_bytes * (double)saved_ns / (double)DAY_NS);
}

/* ---- both ---- */

/* A later miss of the chain ends here, so this one block tells why. */
static void refused_note_locked(struct kvs_store *store, const struct kvs_namespace *ns,
                                const struct kvs_key *key)
{
    uint64_t tag = kvs_tag(ns, key);
    if (kvs_removed_reason_locked(store, tag) != KVS_REASON_REFUSED) {
        struct kvs_root *root = &store->roots[kvs_place_of_locked(store, key)];
        kvs_removed_note_locked(root, tag, KVS_REASON_REFUSED);
    }
}

uint32_t kvs_admit_locked(struct kvs_store *store, const struct kvs_namespace *ns,
                          const struct kvs_key *keys, uint32_t count, enum kvs_refusal *refusal)
{
    uint32_t known = 0, admitted = 0;
    for (uint32_t i = 0; i < count; i++) {
        int before = offered_before(store, kvs_tag(ns, &keys[i]));
        known += before && known == i;
    }
    if (*refusal == KVS_REFUSED_NOT) {
        struct kvs_root *root = &store->roots[kvs_place_of_locked(store, &keys[0])];
        int within = known == 0 || budget_take_locked(root, known * ns->block_bytes);
        admitted = within ? known : 0;
        *refusal = !within         ? KVS_REFUSED_BUDGET
                   : known < count ? KVS_REFUSED_FIRST_OFFER
                                   : KVS_REFUSED_NOT;
        if (*refusal) {
            refused_note_locked(store, ns, &keys[admitted]);
        }
    }
    store->stats.refused_blocks[*refusal] += count - admitted;
    return admitted;
}
