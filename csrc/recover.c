/*
 * recover.c: looks whether a root that is down answers again, by its path, one small read through
 * its engine and calls of fs.h; and takes the directory that is there when it is another one.
 *
 * A disk may come back as a new mount: then the store's descriptor leads to a file system that is
 * gone, and the path to the same store (by the uuid in root.json). The root moves over: lock, files
 * and index are given up and taken anew. Without root.json at the path the disk is not mounted and
 * the root stays down; nothing is ever created there. It lets go of the old directory then: as
 * long as somebody holds a file system, a new mount of its device is the old, dead one.
 *
 * Runs on a file worker whose calls are made though the root is down. There is one probe of a root
 * at a time, so a device that never answers costs one worker.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store.h"

enum { READ_BYTES = 4096 }; /* of root.json: all of it */

static const int64_t LET_GO_NS = 8 * KVS_NS_PER_S; /* between probes: the fourth */

static const char not_mounted[] = "is its disk mounted?";

/* ---- is it there ---- */

/* 0, or why it is not the directory of this root. */
static int identity_check(struct kvs_root *root, int fd, char *why)
{
    struct kvs_fs *fs = root->store->fs;
    uint8_t uuid[16];
    struct kvs_fs_space space;
    int error =
        root->has_identity ? kvs_identity_read(fs, fd, uuid) : fs->calls->space(fs, fd, &space);
    if (error == -ENOENT) {
        snprintf(why, KVS_TROUBLE_BYTES, "there is no root.json at its path: %s", not_mounted);
    } else if (error) {
        snprintf(why, KVS_TROUBLE_BYTES, "root.json cannot be read: %s", strerror(-error));
    } else if (root->has_identity && memcmp(uuid, root->uuid, sizeof(uuid)) != 0) {
        snprintf(why, KVS_TROUBLE_BYTES, "the directory at its path is another store's");
        error = -ENXIO;
    }
    return error;
}

struct probe_read {
    struct kvs_transfer transfer;
    int done; /* under the lock: what its job waits for */
};

void kvs_probe_read_done(struct kvs_root *root, struct kvs_transfer *transfer)
{
    kvs_lock(root->store);
    KVS_ENTRY(transfer, struct probe_read, transfer)->done = 1;
    pthread_cond_broadcast(&root->store->changed);
    kvs_unlock(root->store);
}

/* Waits until the engine gives the read back, however long: till then the memory is its. */
static int engine_read(struct kvs_root *root, int fd, void *memory)
{
    struct kvs_store *store = root->store;
    struct probe_read read = {
        .transfer = {.kind = KVS_TRANSFER_PROBE, .fd = fd, .bytes = READ_BYTES, .memory = memory}};
    kvs_lock(store);
    if (store->closing) {
        kvs_unlock(store);
        return -ESHUTDOWN;
    }
    kvs_transfer_queue_locked(root, &read.transfer);
    kvs_root_wake(root);
    while (!read.done) {
        pthread_cond_wait(&store->changed, &store->lock);
    }
    kvs_unlock(store);
    return read.transfer.error;
}

static int engine_check(struct kvs_root *root, int root_fd, char *why)
{
    struct kvs_fs *fs = root->store->fs;
    if (!root->has_identity) {
        return 0; /* a peer before any owner: there is no file to read */
    }
    void *memory = aligned_alloc(READ_BYTES, READ_BYTES);
    int fd = memory ? fs->calls->open_read(fs, root_fd, "root.json") : -ENOMEM;
    int error = fd;
    if (fd >= 0) {
        int64_t began_ns = kvs_store_now_ns(root->store);
        error = engine_read(root, fd, memory);
        int64_t took_ns = kvs_store_now_ns(root->store) - began_ns;
        fs->calls->close(fs, fd);
        if (!error && took_ns > kvs_slow_ns(root->store)) {
            snprintf(why, KVS_TROUBLE_BYTES, "a read of one page took %.3g s",
                     (double)took_ns / 1e9);
            error = -ETIMEDOUT;
        } else if (error) {
            snprintf(why, KVS_TROUBLE_BYTES, "a read of one page failed: %s", strerror(-error));
        }
    } else {
        snprintf(why, KVS_TROUBLE_BYTES, "root.json cannot be opened: %s", strerror(-fd));
    }
    free(memory);
    return error;
}

/* ---- another directory ---- */

static void files_release_locked(struct kvs_root *root)
{
    struct kvs_store *store = root->store;
    for (uint32_t i = 0; i < store->extent_count; i++) {
        if (kvs_extent_at(store, i) && kvs_extent_at(store, i)->root == root->number) {
            kvs_file_release_locked(store, kvs_extent_at(store, i));
        }
    }
}

static void lock_give_up(struct kvs_root *root)
{
    struct kvs_store *store = root->store;
    kvs_lock(store);
    int lock_fd = root->lock_fd;
    root->lock_fd = -1;
    root->was_owner |= root->is_owner;
    root->is_owner = 0;
    kvs_unlock(store);
    if (lock_fd >= 0) {
        kvs_root_unlock(root, lock_fd);
    }
}

/* Holds nothing of the old directory any more. The index stays: its blocks are down, not absent. */
static void let_go(struct kvs_root *root)
{
    struct kvs_store *store = root->store;
    kvs_lock(store);
    int held = root->inode != 0;
    root->device = root->inode = 0;
    files_release_locked(root);
    kvs_unlock(store);
    if (held) {
        lock_give_up(root);
        store->fs->calls->replace(store->fs, root->fd, -1);
    }
}

/* What the index knows of it, and which directories were made: the scan finds out anew. */
static void forget_locked(struct kvs_root *root)
{
    struct kvs_store *store = root->store;
    for (uint32_t i = 0; i < store->extent_count; i++) {
        struct kvs_extent *extent = kvs_extent_at(store, i);
        if (extent && extent->root == root->number && extent->state == KVS_EXTENT_LIVE) {
            kvs_room_refund_locked(root, extent->physical_bytes);
            extent->physical_bytes = 0;
            kvs_extent_forget_locked(store, extent, KVS_REASON_NONE);
        }
    }
    for (uint32_t i = 0; i < store->namespace_count; i++) {
        memset(store->namespaces[i]->bucket_made[root->number], 0, KVS_BUCKETS / 8);
    }
    root->space_read_ns = 0;
}

/* Takes `fd`. */
static int move_over(struct kvs_root *root, int fd, const struct kvs_fs_stat *there)
{
    struct kvs_store *store = root->store;
    char holder[160];
    lock_give_up(root);
    int error = store->fs->calls->replace(store->fs, root->fd, fd);
    kvs_lock(store);
    root->device = there->device;
    root->inode = there->inode;
    files_release_locked(root);
    forget_locked(root);
    int was_owner = root->was_owner;
    kvs_unlock(store);
    if (!error && was_owner) {
        /* Another process may have it: then a peer, until the keeper gets the lock. */
        kvs_root_try_lock(root, holder, sizeof(holder));
    }
    return error;
}

/* The descriptor in use leads elsewhere, or to a file system that was shut down. */
static int must_move(struct kvs_root *root, const struct kvs_fs_stat *there)
{
    uint8_t uuid[16];
    return there->device != root->device || there->inode != root->inode ||
           (root->has_identity && kvs_identity_read(root->store->fs, root->fd, uuid) < 0);
}

/* A dead file system is kept for a few probes: it may answer again by itself. */
static int is_lost(const struct kvs_root *root, int error)
{
    return error == -ENOENT || error == -ENOTDIR ||
           (kvs_device_error(error) && root->breaker.wait_ns >= LET_GO_NS);
}

static int probe(struct kvs_root *root, char *why)
{
    struct kvs_fs *fs = root->store->fs;
    struct kvs_fs_stat there;
    int fd = fs->calls->open_root(fs, root->path, 0);
    if (fd < 0 && is_lost(root, fd)) {
        let_go(root);
    }
    if (fd < 0) {
        snprintf(why, KVS_TROUBLE_BYTES, "its path cannot be opened: %s; %s", strerror(-fd),
                 not_mounted);
        return fd;
    }
    there.device = root->device;
    there.inode = root->inode;
    int error = fs->calls->stat_fd(fs, fd, &there);
    if (error) {
        snprintf(why, KVS_TROUBLE_BYTES, "its path does not answer: %s", strerror(-error));
    }
    error = error ? error : identity_check(root, fd, why);
    error = error ? error : engine_check(root, fd, why);
    int elsewhere = there.device != root->device || there.inode != root->inode;
    if (error && (elsewhere || is_lost(root, error))) {
        let_go(root);
    }
    if (error || !must_move(root, &there)) {
        fs->calls->close(fs, fd);
        return error;
    }
    error = move_over(root, fd, &there);
    if (error) {
        snprintf(why, KVS_TROUBLE_BYTES, "cannot take the directory at its path: %s",
                 strerror(-error));
    }
    return error;
}

void kvs_probe_job(struct kvs_root *root, void *argument)
{
    (void)argument;
    char why[KVS_TROUBLE_BYTES] = "";
    kvs_worker_set_probes(1);
    int error = probe(root, why);
    kvs_worker_set_probes(0);
    kvs_lock(root->store);
    if (error) {
        kvs_breaker_stay_open_locked(root, why);
    } else {
        kvs_breaker_close_locked(root);
    }
    kvs_unlock(root->store);
}

void kvs_path_look(struct kvs_root *root)
{
    struct kvs_fs *fs = root->store->fs;
    struct kvs_fs_stat there;
    const char *why = NULL;
    int fd = fs->calls->open_root(fs, root->path, 0);
    if (fd == -ENOENT || fd == -ENOTDIR) {
        why = "its path leads to no directory: is its disk mounted?";
    } else if (fd >= 0 && fs->calls->stat_fd(fs, fd, &there) == 0 &&
               (there.device != root->device || there.inode != root->inode)) {
        why = "its path leads to another directory: is its disk mounted?";
    }
    if (fd >= 0) {
        fs->calls->close(fs, fd);
    }
    if (why) {
        kvs_lock(root->store);
        kvs_breaker_trip_locked(root, why);
        kvs_unlock(root->store);
    }
}
