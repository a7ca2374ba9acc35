/*
 * scrub.c: reads every cell of a root once in a while, so that damage is found before a load meets
 * it. Only for the owner, when asked for, and while the device has nothing else to do.
 *
 * One step at a time: a job of the file workers that closes the last file and opens the next one,
 * or one read of at most KVS_PIECE_BYTES by the I/O thread. A step is begun by the keeper and by
 * the end of the step before. What is wrong twice is quarantined, as a load does it. Recency,
 * times, the RAM tier and the cache of open files are left alone: it has a buffer and a
 * descriptor of its own.
 *
 * Invariants:
 *   1. While `busy` the step under way owns what is below it in the struct; else the lock does.
 *   2. No step begins while the root has an operation queued or in flight, so a load waits for one
 *      piece at most.
 *   3. In any time T at most T * bytes_per_s + a fifth of a second's bytes (at least a piece) are
 *      read, and a header.
 *   4. The extent is pinned during a step only. Between steps it may go; then its file is closed by
 *      the next one.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "format_rules.h"
#include "store.h"
#include "xxh3.h"

enum {
    ALIGN = KVS_FORMAT_PAGE_BYTES,
    PASS_S = 7 * 86400, /* from the begin of a pass to the begin of the next, at least */
    LOOKS_MAX = 4096    /* records looked at in one step */
};

struct kvs_scrub {
    uint64_t bytes_per_s;
    int64_t budget_bytes, filled_ns;
    int64_t pass_began_ns; /* 0: never */
    uint32_t next;         /* the pass goes through the extents by number */
    uint32_t pass_extents; /* looked at in this pass */
    int in_pass, busy;
    struct kvs_extent *extent; /* pinned; of the step under way */
    /* the open file, and the extent it was opened for */
    int fd;          /* -1: none */
    uint32_t number; /* of the extent */
    int gone;        /* it left meanwhile; the lock's */
    struct kvs_extent_header header;
    uint32_t *cell_bytes; /* [layer] */
    uint64_t *checksums;  /* [layer][block] */
    /* the cells being read: one, or as many as fit a piece */
    uint64_t region_offset; /* of `layer` */
    uint32_t layer, block, count;
    uint64_t first, bytes, done; /* their range in the file, and how much of it was read */
    int retried;
    uint8_t *memory;
    uint64_t memory_bytes;
    struct kvs_transfer read;
};

int kvs_scrub_open(struct kvs_root *root, uint64_t bytes_per_s)
{
    if (bytes_per_s == 0) {
        return 0;
    }
    root->scrub = calloc(1, sizeof(*root->scrub));
    if (!root->scrub) {
        return -ENOMEM;
    }
    root->scrub->bytes_per_s = bytes_per_s;
    root->scrub->fd = -1;
    root->scrub->filled_ns = kvs_store_now_ns(root->store);
    return 0;
}

static void file_close(struct kvs_root *root, struct kvs_scrub *scrub)
{
    if (scrub->fd >= 0) {
        root->store->fs->calls->close(root->store->fs, scrub->fd);
    }
    free(scrub->cell_bytes);
    free(scrub->checksums);
    scrub->fd = -1;
    scrub->cell_bytes = NULL;
    scrub->checksums = NULL;
}

void kvs_scrub_close(struct kvs_root *root)
{
    struct kvs_scrub *scrub = root->scrub;
    if (scrub) {
        assert(!scrub->busy);
        file_close(root, scrub);
        free(scrub->memory);
        free(scrub);
        root->scrub = NULL;
    }
}

void kvs_scrub_info_locked(const struct kvs_root *root, struct kvs_root_info *out)
{
    out->scrub_bytes_per_s = root->scrub ? root->scrub->bytes_per_s : 0;
    out->scrub_pass_extents = root->scrub ? root->scrub->pass_extents : 0;
}

/* ---- which cells ---- */

/* On to the next cells that have bytes. 0: that was the last. */
static int cells_next(struct kvs_scrub *scrub)
{
    const struct kvs_extent_header *header = &scrub->header;
    scrub->block += scrub->count;
    while (scrub->layer < header->layer_count &&
           (scrub->block == header->block_count || scrub->cell_bytes[scrub->layer] == 0)) {
        uint64_t region = (uint64_t)scrub->cell_bytes[scrub->layer] * header->block_count;
        scrub->region_offset += kvs_format_round_up(region, ALIGN);
        scrub->layer++;
        scrub->block = 0;
    }
    if (scrub->layer == header->layer_count) {
        return 0;
    }
    uint64_t cell = scrub->cell_bytes[scrub->layer];
    uint64_t start = scrub->region_offset + scrub->block * cell;
    uint64_t room = (KVS_PIECE_BYTES - start % ALIGN) / cell, left = header->block_count;
    left -= scrub->block;
    scrub->count = (uint32_t)(room == 0 ? 1 : room < left ? room : left);
    scrub->first = start / ALIGN * ALIGN;
    scrub->bytes = kvs_format_round_up(start + scrub->count * cell, ALIGN) - scrub->first;
    scrub->done = 0;
    scrub->retried = 0;
    return 1;
}

static int cells_are_good(const struct kvs_scrub *scrub)
{
    uint64_t cell = scrub->cell_bytes[scrub->layer];
    const uint64_t *sums =
        &scrub->checksums[(size_t)scrub->layer * scrub->header.block_count + scrub->block];
    const uint8_t *at = scrub->memory + (scrub->region_offset + scrub->block * cell - scrub->first);
    uint32_t good = 0;
    while (good < scrub->count && kvs_xxh3(at + good * cell, cell) == sums[good]) {
        good++;
    }
    return good == scrub->count;
}

static int memory_fits(struct kvs_scrub *scrub)
{
    if (scrub->memory_bytes < scrub->bytes) {
        free(scrub->memory);
        scrub->memory = aligned_alloc(ALIGN, scrub->bytes);
        scrub->memory_bytes = scrub->memory ? scrub->bytes : 0;
    }
    return scrub->memory != NULL;
}

/* ---- a file is opened, on a file worker ---- */

static enum kvs_reason rest_read(struct kvs_root *root, struct kvs_scrub *scrub)
{
    const struct kvs_extent_header *header = &scrub->header;
    struct kvs_fs *fs = root->store->fs;
    void *buffer = aligned_alloc(ALIGN, header->header_bytes);
    size_t cells = (size_t)header->layer_count * header->block_count;
    scrub->cell_bytes = malloc(header->layer_count * sizeof(*scrub->cell_bytes));
    scrub->checksums = malloc(cells * sizeof(*scrub->checksums));
    enum kvs_reason reason = KVS_REASON_IO_ERROR;
    if (buffer && scrub->cell_bytes && scrub->checksums &&
        fs->calls->read_at(fs, scrub->fd, buffer, header->header_bytes, 0) == 0) {
        enum kvs_verdict verdict =
            kvs_format_decode_rest(buffer, header, scrub->cell_bytes, scrub->checksums);
        reason = verdict == KVS_VERDICT_GOOD ? KVS_REASON_NONE : KVS_REASON_DAMAGED;
    }
    free(buffer);
    return reason;
}

/* Reads the header for the pinned extent. NONE: the file is open and its first cells are next. */
static enum kvs_reason file_open(struct kvs_root *root, struct kvs_scrub *scrub)
{
    const struct kvs_extent *extent = scrub->extent;
    const struct kvs_extent_header *header = &scrub->header;
    char path[KVS_PATH_BYTES];
    struct kvs_fs_stat stat;
    kvs_path_of(extent->ns, &extent->name, path);
    enum kvs_reason reason = kvs_header_read(root, path, &scrub->fd, &scrub->header, &stat);
    if (!reason && (header->block_count != extent->block_count ||
                    memcmp(&header->keys[extent->named], &extent->name, KVS_KEY_BYTES) != 0)) {
        reason = KVS_REASON_FOREIGN; /* another file by now: whoever loads it judges */
    }
    if (!reason) {
        reason = rest_read(root, scrub);
    }
    scrub->region_offset = header->header_bytes;
    scrub->layer = scrub->block = scrub->count = 0;
    if (!reason && !cells_next(scrub)) {
        reason = KVS_REASON_ABSENT; /* no layer has bytes */
    }
    return reason;
}

/* ---- steps ---- */

static void damaged_locked(struct kvs_store *store, struct kvs_extent *extent)
{
    if (extent->state == KVS_EXTENT_LIVE) {
        store->stats.scrub_damaged++;
        kvs_quarantine_locked(store, extent, KVS_REASON_DAMAGED);
    }
}

static void step_end_locked(struct kvs_root *root)
{
    struct kvs_scrub *scrub = root->scrub;
    if (scrub->extent) {
        kvs_extent_unpin_locked(root->store, scrub->extent);
        scrub->extent = NULL;
    }
    scrub->busy = 0;
    kvs_scrub_next_locked(root);
}

/* Closes the file that is done with, opens the next extent's if there is one. */
static void turn_job(struct kvs_root *root, void *argument)
{
    struct kvs_scrub *scrub = argument;
    struct kvs_store *store = root->store;
    file_close(root, scrub);
    enum kvs_reason reason = scrub->extent ? file_open(root, scrub) : KVS_REASON_NONE;
    if (reason) {
        file_close(root, scrub);
    }
    kvs_lock(store);
    if (scrub->extent) {
        scrub->pass_extents++;
        scrub->budget_bytes -= reason ? ALIGN : scrub->header.header_bytes;
    }
    if (reason == KVS_REASON_DAMAGED) {
        damaged_locked(store, scrub->extent);
    }
    step_end_locked(root);
    kvs_unlock(store);
}

static uint64_t piece_bytes(const struct kvs_scrub *scrub)
{
    uint64_t left = scrub->bytes - scrub->done;
    return left < KVS_PIECE_BYTES ? left : KVS_PIECE_BYTES;
}

static void read_locked(struct kvs_root *root, struct kvs_extent *extent)
{
    struct kvs_scrub *scrub = root->scrub;
    if (!memory_fits(scrub)) {
        return; /* later, perhaps */
    }
    kvs_extent_pin_locked(extent);
    scrub->extent = extent;
    scrub->busy = 1;
    scrub->read = (struct kvs_transfer){.kind = KVS_TRANSFER_SCRUB,
                                        .fd = scrub->fd,
                                        .file_offset = scrub->first + scrub->done,
                                        .memory = scrub->memory + scrub->done,
                                        .bytes = piece_bytes(scrub)};
    scrub->budget_bytes -= (int64_t)scrub->read.bytes;
    kvs_transfer_queue_locked(root, &scrub->read);
    kvs_root_wake(root);
}

/* What the end of a read says of the extent: NONE: good so far. */
static enum kvs_reason judge(struct kvs_scrub *scrub)
{
    if (scrub->read.error) {
        return scrub->read.error == -ENODATA ? KVS_REASON_DAMAGED : KVS_REASON_IO_ERROR;
    }
    scrub->done += scrub->read.bytes;
    if (scrub->done < scrub->bytes || cells_are_good(scrub)) {
        return KVS_REASON_NONE;
    }
    if (scrub->retried) {
        return KVS_REASON_DAMAGED;
    }
    scrub->retried = 1;
    scrub->done = 0;
    return KVS_REASON_NONE;
}

void kvs_scrub_read_done(struct kvs_root *root)
{
    struct kvs_scrub *scrub = root->scrub;
    struct kvs_store *store = root->store;
    enum kvs_reason reason = judge(scrub);
    int over = reason || (scrub->done == scrub->bytes && !cells_next(scrub));
    kvs_lock(store);
    store->stats.scrub_bytes += scrub->read.error ? 0 : scrub->read.bytes;
    store->stats.scrub_extents += over && !reason;
    if (reason == KVS_REASON_DAMAGED) {
        damaged_locked(store, scrub->extent);
    }
    if (over) {
        scrub->layer = scrub->header.layer_count;
    }
    step_end_locked(root);
    kvs_unlock(store);
}

/* ---- what next ---- */

static void budget_fill_locked(struct kvs_scrub *scrub, int64_t now_ns)
{
    uint64_t burst = scrub->bytes_per_s / 5;
    int64_t most = burst > KVS_PIECE_BYTES ? (int64_t)burst : KVS_PIECE_BYTES;
    unsigned __int128 more = (uint64_t)(now_ns - scrub->filled_ns);
    more = more * scrub->bytes_per_s / KVS_NS_PER_S;
    if (more > 0) {
        scrub->filled_ns = now_ns;
        int fills = more >= (uint64_t)(most - scrub->budget_bytes);
        scrub->budget_bytes = fills ? most : scrub->budget_bytes + (int64_t)more;
    }
}

/* The next live extent of this root; NULL when the pass is over, or goes on in the next round. */
static struct kvs_extent *pick_locked(struct kvs_root *root, int64_t now_ns)
{
    struct kvs_scrub *scrub = root->scrub;
    struct kvs_store *store = root->store;
    if (!scrub->in_pass) {
        if (scrub->pass_began_ns && now_ns - scrub->pass_began_ns < PASS_S * KVS_NS_PER_S) {
            return NULL;
        }
        scrub->in_pass = 1;
        scrub->pass_began_ns = now_ns;
        scrub->next = scrub->pass_extents = 0;
    }
    for (int i = 0; i < LOOKS_MAX && scrub->next < store->extent_count; i++) {
        struct kvs_extent *extent = kvs_extent_at(store, scrub->next++);
        if (extent && extent->root == root->number && extent->state == KVS_EXTENT_LIVE) {
            return extent;
        }
    }
    if (scrub->next >= store->extent_count) {
        scrub->in_pass = 0;
        store->stats.scrub_passes += scrub->pass_extents > 0;
        scrub->pass_began_ns = scrub->pass_extents > 0 ? scrub->pass_began_ns : 0;
    }
    return NULL;
}

/* The extent whose file is open, when it has cells left. */
static struct kvs_extent *current_locked(const struct kvs_root *root)
{
    const struct kvs_scrub *scrub = root->scrub;
    int goes_on = scrub->fd >= 0 && !scrub->gone && scrub->layer < scrub->header.layer_count;
    return goes_on ? kvs_extent_at(root->store, scrub->number) : NULL;
}

void kvs_scrub_gone_locked(struct kvs_root *root, const struct kvs_extent *extent)
{
    if (root->scrub && root->scrub->number == extent->number) {
        root->scrub->gone = 1;
    }
}

void kvs_scrub_next_locked(struct kvs_root *root)
{
    struct kvs_scrub *scrub = root->scrub;
    struct kvs_store *store = root->store;
    if (!scrub || scrub->busy || store->closing) {
        return;
    }
    /* Else it holds no file either: a disk that is down may have to be unmounted. */
    int runs = root->is_owner && !root->warming && !kvs_root_down_locked(root);
    int64_t now_ns = kvs_store_now_ns(store);
    budget_fill_locked(scrub, now_ns);
    struct kvs_extent *extent = runs ? current_locked(root) : NULL;
    uint64_t wanted = extent ? piece_bytes(scrub) : KVS_FORMAT_PAGE_BYTES;
    int may = runs && scrub->budget_bytes >= (int64_t)wanted && root->ops_in_flight == 0 &&
              !root->reads && !root->writes && !root->ended;
    if (extent) {
        if (may) {
            read_locked(root, extent);
        }
        return;
    }
    scrub->extent = may ? pick_locked(root, now_ns) : NULL;
    if (!scrub->extent && scrub->fd < 0) {
        return;
    }
    if (kvs_job_add_locked(root, turn_job, scrub, 0) < 0) {
        scrub->extent = NULL;
        return;
    }
    scrub->busy = 1;
    if (scrub->extent) {
        kvs_extent_pin_locked(scrub->extent);
        scrub->number = scrub->extent->number;
        scrub->gone = 0;
    }
}
