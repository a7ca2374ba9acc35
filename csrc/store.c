/*
 * store.c: opening: memory, roots, threads, in order; references and fork. Closing is in close.c.
 *
 * The arena stays mapped until the last handle is closed: views may be looked at.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "store.h"

enum { FILES_MAX = 65536, SMALL_TABLE = 1024 };
static const int64_t IO_TIMEOUT_NS = 10 * KVS_NS_PER_S;

/* ---- fork: a child has the memory but none of the threads ---- */

static atomic_uint fork_generation;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void in_child(void)
{
    atomic_fetch_add(&fork_generation, 1);
}

static void fork_watch(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

int kvs_store_check(const struct kvs_store *store)
{
    if (store->fork_generation != atomic_load(&fork_generation)) {
        return -ECHILD;
    }
    return atomic_load(&store->is_closing) ? -ESHUTDOWN : 0;
}

/* ---- references ---- */

void kvs_store_hold(struct kvs_store *store)
{
    atomic_fetch_add(&store->refs, 1);
}

static void store_free(struct kvs_store *store)
{
    kvs_extents_free(store);
    kvs_index_close(store->index);
    for (uint32_t i = 0; i < store->namespace_count; i++) {
        kvs_namespace_free(store->namespaces[i]);
    }
    for (uint32_t i = 0; i < store->root_count; i++) {
        pthread_cond_destroy(&store->roots[i].job_ready);
        pthread_cond_destroy(&store->roots[i].opener_wanted);
        pthread_cond_destroy(&store->roots[i].help_wanted);
    }
    free(store->namespaces);
    free(store->removed);
    free(store->absent);
    free(store->offers);
    if (store->arena) {
        kvs_arena_close(store->arena);
    }
    kvs_fs_watch_close(store->fs);
    if (store->owns_fs && store->fs_inner) {
        kvs_fs_posix_close(store->fs_inner);
    }
    pthread_cond_destroy(&store->changed);
    pthread_cond_destroy(&store->ticket_done);
    pthread_cond_destroy(&store->put_ready);
    pthread_cond_destroy(&store->keeper_wake);
    pthread_mutex_destroy(&store->lock);
    free(store);
}

void kvs_store_drop(struct kvs_store *store)
{
    if (atomic_fetch_sub(&store->refs, 1) == 1) {
        store_free(store);
    }
}

/* ---- open ---- */

static void conditions_init(struct kvs_store *store)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&store->lock, NULL);
    pthread_cond_init(&store->changed, &monotonic);
    pthread_cond_init(&store->ticket_done, &monotonic);
    pthread_cond_init(&store->put_ready, &monotonic);
    pthread_cond_init(&store->keeper_wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

/* Of a small table, and that is the only kind whose size matters. */
static uint64_t descriptors_open(uint64_t limit)
{
    uint64_t count = 0;
    for (int fd = 0; fd < (int)limit && limit <= SMALL_TABLE; fd++) {
        count += fcntl(fd, F_GETFD) >= 0;
    }
    return count;
}

/* Chains of short extents need hundreds of files: takes what the hard limit gives, uses a quarter.
 * Of a small limit, half of what remains when the store has its own. */
static int files_limit(struct kvs_store *store, uint32_t root_count)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0) {
        return -errno;
    }
    if (limit.rlim_cur < limit.rlim_max) {
        struct rlimit raised = {limit.rlim_max, limit.rlim_max};
        if (setrlimit(RLIMIT_NOFILE, &raised) == 0) {
            limit = raised;
        }
    }
    /* Directory, lock, the engine's two; one per worker that opens, an event loop's queue. */
    uint64_t needed = root_count * (4 + KVS_FILE_WORKERS) + 1;
    needed += descriptors_open(limit.rlim_cur);
    store->descriptor_limit = limit.rlim_cur;
    if (needed + 2 > limit.rlim_cur) {
        return -EMFILE;
    }
    uint64_t quarter = limit.rlim_cur / 4, half = (limit.rlim_cur - needed) / 2;
    uint64_t max = quarter < half ? quarter : half;
    store->file_max = max > FILES_MAX ? FILES_MAX : max > 1 ? (uint32_t)max : 1;
    return 0;
}

static int options_check(const struct kvs_options *options)
{
    if (options->root_count == 0 || options->root_count > KVS_ROOTS_MAX ||
        options->class_count == 0 || options->class_count > KVS_CLASSES_MAX ||
        options->default_class >= options->class_count) {
        return -EINVAL;
    }
    for (uint32_t i = 0; i < options->class_count; i++) {
        if (options->classes[i].ttl_s <= 0) {
            return -EINVAL;
        }
    }
    return 0;
}

static struct kvs_clock real_clock = KVS_CLOCK_REAL;

int kvs_store_new(const struct kvs_options *options, struct kvs_store **out)
{
    struct kvs_store *store = calloc(1, sizeof(*store));
    if (!store) {
        return -ENOMEM;
    }
    conditions_init(store);
    atomic_init(&store->refs, 1);
    store->fork_generation = atomic_load(&fork_generation);
    store->role = options->role;
    store->class_count = options->class_count;
    store->default_class = options->default_class;
    store->min_age_s = options->min_age_s < 0 ? 60 : options->min_age_s;
    memcpy(store->classes, options->classes, options->class_count * sizeof(store->classes[0]));
    store->clock = options->clock ? options->clock : &real_clock;
    kvs_wall_open(store);
    store->puts_tail = &store->puts;
    kvs_list_init(&store->cached);
    kvs_list_init(&store->files);
    kvs_list_init(&store->leases);
    kvs_list_init(&store->loads);
    kvs_list_init(&store->writers);
    store->io_timeout_ns = options->io_timeout_ns > 0 ? options->io_timeout_ns : IO_TIMEOUT_NS;
    store->fs_inner = options->fs;
    store->owns_fs = options->fs == NULL;
    int error = kvs_removed_open(store);
    error = error ? error : kvs_admission_open(store, options);
    if (!error && store->owns_fs) {
        error = kvs_fs_posix_open(&store->fs_inner);
    }
    error = error ? error : kvs_fs_watch_open(store, &store->fs);
    if (!error) {
        error = kvs_index_open(kvs_extent_tag_of, store, &store->index);
    }
    if (error) {
        kvs_store_drop(store);
    } else {
        *out = store;
    }
    return error;
}

static int threads_start(struct kvs_store *store, const struct kvs_options *options)
{
    int error = 0;
    for (uint32_t i = 0; !error && i < store->root_count; i++) {
        error = kvs_root_start(&store->roots[i], options);
    }
    if (!error) {
        error = -pthread_create(&store->copier, NULL, kvs_copier_thread, store);
        store->copier_running = error == 0;
    }
    if (!error && !options->manual_ticks) {
        error = -pthread_create(&store->keeper, NULL, kvs_keeper_thread, store);
        store->keeper_running = error == 0;
    }
    return error;
}

int kvs_open(const struct kvs_options *options, struct kvs_store **out, char *message,
             uint32_t message_bytes)
{
    message[0] = 0;
    int error = options_check(options);
    if (error) {
        snprintf(message, message_bytes,
                 "bad options: 1 to %d roots, 1 to %d retention classes with a positive time to "
                 "live, a default class among them",
                 KVS_ROOTS_MAX, KVS_CLASSES_MAX);
        return error;
    }
    pthread_once(&fork_once, fork_watch);
    struct kvs_store *store = NULL;
    error = kvs_store_new(options, &store);
    if (error) {
        snprintf(message, message_bytes, "cannot open the store: %s", strerror(-error));
        return error;
    }
    if ((error = files_limit(store, options->root_count)) == -EMFILE) {
        snprintf(message, message_bytes,
                 "a limit of %llu open files leaves no room for a store beside those in use: raise "
                 "it (ulimit -n) by 64 or more",
                 (unsigned long long)store->descriptor_limit);
    }
    if (!error) {
        uint64_t pool = options->pool_bytes ? options->pool_bytes : (uint64_t)1 << 30;
        error = kvs_arena_open(pool, &store->arena);
        if (error) {
            snprintf(message, message_bytes,
                     "no memory for a pool of %llu bytes: %s; open with a smaller pool=",
                     (unsigned long long)pool, strerror(-error));
        }
    }
    for (uint32_t i = 0; !error && i < options->root_count; i++) {
        error = kvs_root_open(store, &options->roots[i], options, kvs_root_add(store), message,
                              message_bytes);
    }
    if (!error) {
        error = threads_start(store, options);
    }
    if (error) {
        if (!message[0]) {
            snprintf(message, message_bytes, "cannot open the store: %s", strerror(-error));
        }
        kvs_close(store);
        return error;
    }
    *out = store;
    return 0;
}
