/*
 * removed.c: two small memories of what is not there.
 *
 * removed: why a block left (evicted, expired, deleted, damaged), so that a miss has a reason. A
 * fixed table, newest wins; a wrong or lost entry costs a less precise reason, nothing else.
 * absent: names a walk did not find a moment ago, so that a peer's next match answers at once.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "root_files.h"
#include "store.h"
#include "xxh3.h"

enum { REMOVED_SLOTS = 1 << 16, ABSENT_SLOTS = 1 << 12, ABSENT_LIFE_NS = 1000000000 };

struct kvs_absent {
    uint64_t tag;
    int64_t when_ns;
};

static const char ring_name[] = "removed.ring";

int kvs_removed_open(struct kvs_store *store)
{
    store->removed = calloc(REMOVED_SLOTS, sizeof(*store->removed));
    store->absent = calloc(ABSENT_SLOTS, sizeof(*store->absent));
    return store->removed && store->absent ? 0 : -ENOMEM;
}

void kvs_removed_note_locked(struct kvs_store *store, uint64_t tag, enum kvs_reason reason)
{
    struct kvs_removed *slot = &store->removed[tag % REMOVED_SLOTS];
    slot->tag = tag;
    slot->reason = reason;
    slot->when_s = kvs_store_now_s(store);
}

enum kvs_reason kvs_removed_reason_locked(struct kvs_store *store, uint64_t tag)
{
    const struct kvs_removed *slot = &store->removed[tag % REMOVED_SLOTS];
    return slot->tag == tag && slot->reason ? (enum kvs_reason)slot->reason : KVS_REASON_ABSENT;
}

void kvs_removed_clear_locked(struct kvs_store *store, uint64_t tag)
{
    struct kvs_removed *slot = &store->removed[tag % REMOVED_SLOTS];
    if (slot->tag == tag) {
        slot->reason = KVS_REASON_NONE;
    }
    struct kvs_absent *absent = &store->absent[tag % ABSENT_SLOTS];
    if (absent->tag == tag) {
        absent->when_ns = 0;
    }
}

void kvs_absent_note_locked(struct kvs_store *store, uint64_t tag)
{
    struct kvs_absent *slot = &store->absent[tag % ABSENT_SLOTS];
    slot->tag = tag;
    slot->when_ns = kvs_store_now_ns(store);
}

int kvs_absent_known_locked(struct kvs_store *store, uint64_t tag)
{
    const struct kvs_absent *slot = &store->absent[tag % ABSENT_SLOTS];
    return slot->tag == tag && slot->when_ns &&
           kvs_store_now_ns(store) - slot->when_ns < ABSENT_LIFE_NS;
}

/* ---- across restarts ---- */

static void ring_fill(struct kvs_store *store, struct kvs_ring *ring)
{
    memcpy(ring->magic, KVS_RING_MAGIC, sizeof(ring->magic));
    kvs_lock(store);
    for (uint32_t i = 0; i < REMOVED_SLOTS && ring->count < KVS_RING_MAX; i++) {
        if (store->removed[i].reason) {
            ring->entries[ring->count++] = store->removed[i];
        }
    }
    kvs_unlock(store);
    ring->xxh3 = kvs_xxh3(ring->entries, ring->count * sizeof(ring->entries[0]));
}

void kvs_removed_save(struct kvs_root *root)
{
    struct kvs_fs *fs = root->store->fs;
    struct kvs_fs_temp temp;
    struct kvs_ring *ring = calloc(1, KVS_RING_BYTES);
    if (!ring || fs->calls->open_temp(fs, root->fd, ".", "tmp", &temp) < 0) {
        free(ring);
        return;
    }
    ring_fill(root->store, ring);
    int error = fs->calls->write_at(fs, temp.fd, ring, KVS_RING_BYTES, 0);
    if (!error) {
        fs->calls->unlink(fs, root->fd, ring_name);
        error = fs->calls->link(fs, root->fd, &temp, ring_name);
    }
    if (error && temp.name[0]) {
        fs->calls->unlink(fs, root->fd, temp.name);
    }
    fs->calls->close(fs, temp.fd);
    free(ring);
}

void kvs_removed_load(struct kvs_root *root)
{
    struct kvs_store *store = root->store;
    struct kvs_fs *fs = store->fs;
    struct kvs_ring *ring = calloc(1, KVS_RING_BYTES);
    int fd = ring ? fs->calls->open_read(fs, root->fd, ring_name) : -1;
    if (fd >= 0) {
        int whole =
            fs->calls->read_at(fs, fd, ring, KVS_RING_BYTES, 0) == 0 && kvs_ring_is_whole(ring);
        kvs_lock(store);
        for (uint64_t i = 0; whole && i < ring->count; i++) {
            struct kvs_removed *slot = &store->removed[ring->entries[i].tag % REMOVED_SLOTS];
            if (ring->entries[i].reason < KVS_REASON_COUNT && !slot->reason) {
                *slot = ring->entries[i];
            }
        }
        kvs_unlock(store);
        fs->calls->close(fs, fd);
    }
    free(ring);
}
