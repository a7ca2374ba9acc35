/*
 * root.c: one directory on one device: opening it, its identity, its lock, its engine, its size.
 *
 * Invariants:
 *   1. Messages of a failed open say what to do.
 *   2. The best engine that works is used; what refused and why is kept for info().
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "root_files.h"
#include "store.h"

enum { LOCK_TRIES = 4 };

static const char owner_lock[] = "owner.lock";
static const char identity[] = "root.json";

/* ---- identity ---- */

int kvs_identity_read(struct kvs_fs *fs, int root_fd, uint8_t *uuid)
{
    char text[4096];
    int fd = fs->calls->open_read(fs, root_fd, identity);
    if (fd < 0) {
        return fd;
    }
    int error = fs->calls->read_at(fs, fd, text, sizeof(text), 0);
    fs->calls->close(fs, fd);
    return error ? error : kvs_uuid_from_text(text, sizeof(text), uuid);
}

static int identity_write(struct kvs_root *root)
{
    struct kvs_fs *fs = root->store->fs;
    struct kvs_fs_temp temp;
    char text[4096];
    memset(text, ' ', sizeof(text));
    if (getrandom(root->uuid, sizeof(root->uuid), 0) != sizeof(root->uuid)) {
        return -EIO;
    }
    int length = snprintf(text, sizeof(text), "{\"format\": %u, \"uuid\": \"", KVS_FORMAT_VERSION);
    for (int i = 0; i < 16; i++) {
        length += snprintf(text + length, sizeof(text) - (size_t)length, "%02x", root->uuid[i]);
    }
    length += snprintf(text + length, sizeof(text) - (size_t)length, "\"}");
    text[length] = ' ';
    text[sizeof(text) - 1] = '\n';
    int error = fs->calls->open_temp(fs, root->fd, ".", "tmp", &temp);
    if (error < 0) {
        return error;
    }
    error = fs->calls->write_at(fs, temp.fd, text, sizeof(text), 0);
    if (!error) {
        error = fs->calls->link(fs, root->fd, &temp, identity);
    }
    fs->calls->close(fs, temp.fd);
    if (error && temp.name[0]) {
        fs->calls->unlink(fs, root->fd, temp.name);
    }
    return error == -EEXIST ? kvs_identity_read(fs, root->fd, root->uuid) : error;
}

/* Only an owner writes one, also in place of a damaged one. A peer that comes before it, and an
 * owner that cannot, take the path for it: lookups probe every root, so this costs a probe, not a
 * block. */
static void identity_take(struct kvs_root *root)
{
    int error = kvs_identity_read(root->store->fs, root->fd, root->uuid);
    if (root->is_owner && kvs_reason_of_errno(error) == KVS_REASON_DAMAGED) {
        kvs_quarantine_move(root, identity);
    }
    root->has_identity = error == 0 || (root->is_owner && identity_write(root) == 0);
    if (!root->has_identity) {
        memset(root->uuid, 0, sizeof(root->uuid));
        for (size_t i = 0; root->path[i]; i++) {
            root->uuid[i % 16] = (uint8_t)(root->uuid[i % 16] * 31 + root->path[i]);
        }
    }
}

void kvs_root_order(struct kvs_store *store, const struct kvs_key *key, uint8_t *order)
{
    double score[KVS_ROOTS_MAX];
    for (uint32_t i = 0; i < store->root_count; i++) {
        uint64_t mixed, salt;
        memcpy(&mixed, key->bytes + 8, sizeof(mixed));
        memcpy(&salt, store->roots[i].uuid, sizeof(salt));
        mixed = (mixed ^ salt) * 0x9E3779B97F4A7C15u;
        mixed ^= mixed >> 32;
        mixed *= 0xD6E8FEB86659FD93u;
        double unit = ((double)(mixed >> 11) + 0.5) / 9007199254740992.0; /* (0, 1) */
        /* Weighted rendezvous: the largest -w / ln(u) wins (Wang and Ravishankar's scheme). */
        score[i] = -(double)store->roots[i].capacity_bytes / log(unit);
        uint32_t at = i;
        while (at > 0 && score[order[at - 1]] < score[i]) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = (uint8_t)i;
    }
}

/* ---- lock ---- */

int kvs_root_try_lock(struct kvs_root *root, char *holder, uint32_t holder_bytes)
{
    struct kvs_fs *fs = root->store->fs;
    int lock_fd = -1;
    int error = fs->calls->lock(fs, root->fd, owner_lock, holder, holder_bytes, &lock_fd);
    if (error) {
        return error;
    }
    kvs_lock(root->store);
    root->lock_fd = lock_fd;
    root->is_owner = 1;
    root->warming = 1;
    kvs_unlock(root->store);
    kvs_quarantine_count(root);
    kvs_removed_load(root);
    return 0;
}

void kvs_root_unlock(struct kvs_root *root, int lock_fd)
{
    struct kvs_fs *fs = root->store->fs;
    fs->calls->unlock(fs, root->fd, owner_lock, lock_fd);
}

/* ---- engine ---- */

static uint32_t depth_of(const struct kvs_options *options)
{
    return options->io_depth ? options->io_depth : 64;
}

static int engine_open(struct kvs_root *root, const struct kvs_options *options)
{
    struct kvs_io_wish wish = {
        .engine = options->engine,
        .depth = depth_of(options),
        .file_system = root->space.type,
        .direct = root->direct,
    };
    int error = kvs_io_choose(&wish, &root->engine, root->engine_why);
    if (!error && options->engine != KVS_ENGINE_URING_PLAIN) {
        root->register_error = root->engine->calls->register_memory(
            root->engine, kvs_arena_base(root->store->arena), kvs_arena_bytes(root->store->arena));
    }
    return error;
}

/* ---- open, start, stop, close ---- */

static void size_take(struct kvs_root *root, const struct kvs_root_options *options,
                      const struct kvs_options *all)
{
    uint64_t total = root->space.total_bytes;
    root->reserve_bytes = all->reserve_bytes ? all->reserve_bytes : total / 100;
    root->capacity_bytes = options->capacity_bytes;
    if (root->capacity_bytes == 0) {
        uint64_t share = total / 5 * 4;
        root->capacity_bytes = share > root->reserve_bytes ? share - root->reserve_bytes : share;
    }
}

static int lock_take(struct kvs_root *root, char *message, uint32_t message_bytes)
{
    char holder[160] = "";
    if (root->store->role == KVS_ROLE_PEER) {
        return 0;
    }
    int error = -EBUSY;
    /* A peer that looks whether there is an owner holds the lock for a moment. */
    for (int i = 0; error == -EBUSY && i < LOCK_TRIES; i++) {
        struct timespec moment = {0, i * 10000000l};
        nanosleep(&moment, NULL);
        error = kvs_root_try_lock(root, holder, sizeof(holder));
    }
    if (error && root->store->role == KVS_ROLE_AUTO) {
        return 0; /* taken, or read-only: a peer's lot */
    }
    if (error == -EBUSY) {
        snprintf(message, message_bytes,
                 "%s has an owner already (%s): open it with role=\"peer\" or \"auto\", or close "
                 "the other process",
                 root->path, holder);
    } else if (kvs_reason_of_errno(error) == KVS_REASON_DAMAGED) {
        snprintf(message, message_bytes,
                 "%s/owner.lock is not a regular file: remove it and open again", root->path);
    } else if (error) {
        snprintf(message, message_bytes,
                 "cannot lock %s/owner.lock: %s; the owner needs to write this directory, "
                 "role=\"peer\" does not",
                 root->path, strerror(-error));
    }
    return error;
}

/* Absolute: it is opened again when its disk comes back, whatever the working directory is then. */
static void path_take(struct kvs_root *root, const char *path)
{
    char here[sizeof(root->path) / 2];
    if (path[0] != '/' && getcwd(here, sizeof(here))) {
        snprintf(root->path, sizeof(root->path), "%s/%.500s", here, path);
    } else {
        snprintf(root->path, sizeof(root->path), "%s", path);
    }
}

struct kvs_root *kvs_root_add(struct kvs_store *store)
{
    struct kvs_root *root = &store->roots[store->root_count];
    root->number = store->root_count++;
    root->store = store;
    root->lock_fd = -1;
    root->fd = -1;
    kvs_recency_open(root);
    kvs_expiry_open(root);
    kvs_list_init(&root->dirty_times);
    kvs_list_init(&root->leaving);
    root->reads_tail = &root->reads;
    root->writes_tail = &root->writes;
    pthread_cond_init(&root->job_ready, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&root->opener_wanted, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_cond_init(&root->help_wanted, NULL);
    root->ended_tail = &root->ended;
    return root;
}

int kvs_root_open(struct kvs_store *store, const struct kvs_root_options *options,
                  const struct kvs_options *all, struct kvs_root *root, char *message,
                  uint32_t message_bytes)
{
    path_take(root, options->path);
    root->fd = store->fs->calls->open_root(store->fs, options->path, 1);
    if (root->fd < 0) {
        snprintf(message, message_bytes,
                 "cannot open %s: %s; name a directory on the SSD that this user may write (its "
                 "parent must exist)",
                 options->path, strerror(-root->fd));
        return root->fd;
    }
    struct kvs_fs_stat stat;
    int error = store->fs->calls->stat_fd(store->fs, root->fd, &stat);
    root->device = stat.device;
    root->inode = stat.inode;
    error = error ? error : store->fs->calls->space(store->fs, root->fd, &root->space);
    if (error) {
        snprintf(message, message_bytes, "cannot read the size of the file system of %s: %s",
                 options->path, strerror(-error));
        return error;
    }
    size_take(root, options, all);
    error = lock_take(root, message, message_bytes);
    if (error) {
        return error;
    }
    error = kvs_root_probe(root, message, message_bytes);
    if (error) {
        return error;
    }
    identity_take(root);
    root->engine = options->engine;
    if (root->engine) {
        /* A test's engine: it sees the pool as the real ones do. */
        root->register_error = root->engine->calls->register_memory(
            root->engine, kvs_arena_base(store->arena), kvs_arena_bytes(store->arena));
        return 0;
    }
    error = engine_open(root, all);
    if (error) {
        snprintf(message, message_bytes,
                 "no I/O engine for %s: %s; engine=\"auto\" takes what works", options->path,
                 root->engine_why[0] ? root->engine_why : strerror(-error));
    }
    return error;
}

int kvs_root_start(struct kvs_root *root, const struct kvs_options *options)
{
    root->slot_count =
        root->engine->depth < depth_of(options) ? root->engine->depth : depth_of(options);
    root->bytes_in_flight_max =
        options->io_bytes_in_flight ? options->io_bytes_in_flight : (uint64_t)64 << 20;
    root->slots = calloc(root->slot_count, sizeof(*root->slots));
    if (!root->slots) {
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < root->slot_count; i++) {
        root->slots[i].next_free = root->free_slot;
        root->free_slot = &root->slots[i];
    }
    int error = kvs_scrub_open(root, options->scrub_bytes_per_s);
    if (!error) {
        error = kvs_jobs_start(root);
    }
    if (!error) {
        kvs_helpers_start(root, options->helpers);
        error = -pthread_create(&root->io_thread, NULL, kvs_io_thread, root);
        root->io_running = error == 0;
    }
    if (!error && root->is_owner) {
        kvs_lock(root->store);
        error = kvs_job_add_locked(root, kvs_scan_job, NULL, 0);
        kvs_unlock(root->store);
    }
    return error;
}

void kvs_root_stop(struct kvs_root *root)
{
    if (root->io_running) {
        kvs_lock(root->store);
        root->io_asleep = 1;
        kvs_root_wake(root);
        kvs_unlock(root->store);
        pthread_join(root->io_thread, NULL);
        kvs_lock(root->store);
        root->io_running = 0; /* views may be released any time: nobody wakes a closed engine */
        kvs_unlock(root->store);
        kvs_helpers_stop(root);
    }
    kvs_jobs_stop(root);
}

void kvs_root_close(struct kvs_root *root)
{
    struct kvs_fs *fs = root->store->fs;
    kvs_scrub_close(root);
    if (root->engine) {
        root->engine->calls->close(root->engine);
        root->engine = NULL;
    }
    if (root->lock_fd >= 0) {
        kvs_removed_save(root);
        kvs_root_unlock(root, root->lock_fd);
    }
    kvs_lock(root->store);
    int fd = root->fd;
    root->fd = root->lock_fd = -1;
    root->is_owner = 0;
    kvs_unlock(root->store);
    if (fd >= 0) {
        fs->calls->close(fs, fd);
    }
    free(root->removals);
    root->removals = NULL;
    free(root->slots);
    root->slots = root->free_slot = NULL;
}
