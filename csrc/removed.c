/*
 * removed.c: two small memories of what is not there.
 *
 * removed: why a block left (evicted, expired, deleted, damaged), so that a miss has a reason. A
 * fixed table, newest wins; a wrong or lost entry costs a less precise reason, nothing else.
 * absent: names a walk did not find a moment ago, so that a peer's next match answers at once.
 */
#include "store.h"

enum { ABSENT_LIFE_NS = 1000000000 };

void kvs_removed_note_locked(struct kvs_store *store, uint64_t tag, enum kvs_reason reason)
{
    struct kvs_removed *slot = &store->removed[tag % KVS_REMOVED_SLOTS];
    slot->tag = tag;
    slot->reason = reason;
    slot->when_s = kvs_store_now_s(store);
}

enum kvs_reason kvs_removed_reason_locked(struct kvs_store *store, uint64_t tag)
{
    const struct kvs_removed *slot = &store->removed[tag % KVS_REMOVED_SLOTS];
    return slot->tag == tag && slot->reason ? (enum kvs_reason)slot->reason : KVS_REASON_ABSENT;
}

void kvs_removed_clear_locked(struct kvs_store *store, uint64_t tag)
{
    struct kvs_removed *slot = &store->removed[tag % KVS_REMOVED_SLOTS];
    if (slot->tag == tag) {
        slot->reason = KVS_REASON_NONE;
    }
    struct kvs_absent *absent = &store->absent[tag % KVS_ABSENT_SLOTS];
    if (absent->tag == tag) {
        absent->when_ns = 0;
    }
}

void kvs_absent_note_locked(struct kvs_store *store, uint64_t tag)
{
    struct kvs_absent *slot = &store->absent[tag % KVS_ABSENT_SLOTS];
    slot->tag = tag;
    slot->when_ns = kvs_store_now_ns(store);
}

int kvs_absent_known_locked(struct kvs_store *store, uint64_t tag)
{
    const struct kvs_absent *slot = &store->absent[tag % KVS_ABSENT_SLOTS];
    return slot->tag == tag && slot->when_ns &&
           kvs_store_now_ns(store) - slot->when_ns < ABSENT_LIFE_NS;
}
