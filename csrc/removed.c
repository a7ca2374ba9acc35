/*
 * removed.c: two small memories of what is not there.
 *
 * removed: why a block left (evicted, expired, deleted, damaged), so that a miss has a reason. A
 * fixed table, newest wins; a wrong or lost entry costs a less precise reason, nothing else. The
 * owner keeps the last 5,460 removals of a root in <root>/removed.ring too, written within a minute
 * by a file worker, and whole or not at all: the next life and tools read it.
 * absent: names a walk did not find a moment ago, so that a peer's next match answers at once.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "root_files.h"
#include "store.h"
#include "xxh3.h"

enum { REMOVED_SLOTS = 1 << 16, ABSENT_SLOTS = 1 << 12, ABSENT_LIFE_NS = 1000000000, SAVE_S = 60 };

struct kvs_absent {
    uint64_t tag;
    int64_t when_ns;
};

static const char ring_name[] = "removed.ring";
static const char ring_new[] = "removed.ring.new";

struct kvs_removals {
    uint64_t added; /* since open; the newest is entries[(added - 1) % KVS_RING_MAX] */
    uint64_t saved, noticed; /* `added` of the last save, and when one was last asked for */
    int64_t saved_ns;
    int saving;
    struct kvs_removed entries[KVS_RING_MAX];
};

int kvs_removed_open(struct kvs_store *store)
{
    store->removed = calloc(REMOVED_SLOTS, sizeof(*store->removed));
    store->absent = calloc(ABSENT_SLOTS, sizeof(*store->absent));
    return store->removed && store->absent ? 0 : -ENOMEM;
}

static struct kvs_removed *slot_of(struct kvs_store *store, uint64_t tag)
{
    return &store->removed[tag % REMOVED_SLOTS];
}

/* NONE: the block is back. */
void kvs_removed_note_locked(struct kvs_root *root, uint64_t tag, enum kvs_reason reason)
{
    struct kvs_removed note = {tag, kvs_store_now_s(root->store), reason, 0};
    *slot_of(root->store, tag) = note;
    if (root->removals) {
        root->removals->entries[root->removals->added++ % KVS_RING_MAX] = note;
    }
}

enum kvs_reason kvs_removed_reason_locked(struct kvs_store *store, uint64_t tag)
{
    const struct kvs_removed *slot = slot_of(store, tag);
    return slot->tag == tag && slot->reason ? (enum kvs_reason)slot->reason : KVS_REASON_ABSENT;
}

enum kvs_reason kvs_removed(struct kvs_cache *cache, const struct kvs_key *key, int64_t *when_s)
{
    struct kvs_store *store = cache->store;
    uint64_t tag = kvs_tag(cache->ns, key);
    kvs_lock(store);
    enum kvs_reason reason = kvs_removed_reason_locked(store, tag);
    *when_s = reason == KVS_REASON_ABSENT ? 0 : slot_of(store, tag)->when_s;
    kvs_unlock(store);
    return reason;
}

void kvs_removed_clear_locked(struct kvs_root *root, uint64_t tag)
{
    const struct kvs_removed *slot = slot_of(root->store, tag);
    if (slot->tag == tag && slot->reason) {
        kvs_removed_note_locked(root, tag, KVS_REASON_NONE);
    }
    struct kvs_absent *absent = &root->store->absent[tag % ABSENT_SLOTS];
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

/* The removals in order, oldest first. Returns what `added` was. */
static uint64_t ring_fill(struct kvs_root *root, struct kvs_ring *out)
{
    const struct kvs_removals *ring = root->removals;
    kvs_lock(root->store);
    uint64_t added = ring->added;
    out->count = added < KVS_RING_MAX ? added : KVS_RING_MAX;
    for (uint64_t i = 0; i < out->count; i++) {
        out->entries[i] = ring->entries[(added - out->count + i) % KVS_RING_MAX];
    }
    kvs_unlock(root->store);
    memcpy(out->magic, KVS_RING_MAGIC, sizeof(out->magic));
    out->xxh3 = kvs_xxh3(out->entries, out->count * sizeof(out->entries[0]));
    return added;
}

/* Under a name of its own first, then over the old one: a crash leaves either. */
static int ring_write(struct kvs_root *root, const struct kvs_ring *ring)
{
    struct kvs_fs *fs = root->store->fs;
    struct kvs_fs_temp temp;
    int error = fs->calls->open_temp(fs, root->fd, ".", "tmp", &temp);
    if (error < 0) {
        return error;
    }
    error = fs->calls->write_at(fs, temp.fd, ring, KVS_RING_BYTES, 0);
    if (!error) {
        error = fs->calls->link(fs, root->fd, &temp, ring_new);
        if (error == -EEXIST) { /* of a life that ended just here */
            fs->calls->unlink(fs, root->fd, ring_new);
            error = fs->calls->link(fs, root->fd, &temp, ring_new);
        }
    }
    if (error && temp.name[0]) {
        fs->calls->unlink(fs, root->fd, temp.name);
    }
    fs->calls->close(fs, temp.fd);
    return error ? error : fs->calls->rename(fs, root->fd, ring_new, ring_name);
}

void kvs_removed_save(struct kvs_root *root)
{
    struct kvs_ring *image = root->removals ? calloc(1, KVS_RING_BYTES) : NULL;
    if (image) {
        uint64_t added = ring_fill(root, image);
        if (added != root->removals->saved && ring_write(root, image) == 0) {
            root->removals->saved = added; /* only a save looks at it, one at a time */
        }
        free(image);
    }
}

static void save_job(struct kvs_root *root, void *argument)
{
    (void)argument;
    kvs_removed_save(root);
    kvs_lock(root->store);
    root->removals->saving = 0;
    root->removals->saved_ns = kvs_store_now_ns(root->store);
    kvs_unlock(root->store);
}

void kvs_removed_round_locked(struct kvs_root *root, int64_t now_ns)
{
    struct kvs_removals *ring = root->removals;
    if (ring && root->is_owner && !ring->saving && ring->added != ring->noticed &&
        now_ns - ring->saved_ns >= SAVE_S * KVS_NS_PER_S) {
        ring->noticed = ring->added;
        ring->saving = kvs_job_add_locked(root, save_job, NULL, 0) == 0;
    }
}

static int ring_read(struct kvs_root *root, struct kvs_ring *out)
{
    struct kvs_fs *fs = root->store->fs;
    int fd = fs->calls->open_read(fs, root->fd, ring_name);
    if (fd < 0) {
        return fd;
    }
    int error = fs->calls->read_at(fs, fd, out, KVS_RING_BYTES, 0);
    fs->calls->close(fs, fd);
    if (!error && !kvs_ring_is_whole(out)) {
        error = -EBADMSG;
    }
    return error;
}

void kvs_removed_load(struct kvs_root *root)
{
    struct kvs_store *store = root->store;
    if (root->removals) {
        return; /* the owner again: what it remembers is as good as what it finds */
    }
    struct kvs_ring *image = calloc(1, KVS_RING_BYTES);
    struct kvs_removals *ring = calloc(1, sizeof(*ring));
    if (!image || !ring) {
        free(image);
        free(ring);
        return; /* reasons will be less precise */
    }
    int error = ring_read(root, image);
    kvs_lock(store);
    for (uint64_t i = 0; !error && i < image->count; i++) {
        const struct kvs_removed *note = &image->entries[i];
        if (note->reason < KVS_REASON_COUNT) {
            *slot_of(store, note->tag) = *note;
            ring->entries[ring->added++] = *note;
        }
    }
    ring->noticed = ring->added;
    ring->saved = error ? UINT64_MAX : ring->added; /* a torn one is replaced at close */
    root->removals = ring;
    kvs_unlock(store);
    free(image);
}
