/*
 * jobs.c: the file workers of a root. Everything of fs.h happens on them, several at a time,
 * because cold opens and last closes take 0.3 to 10 ms and must not sit on the I/O thread.
 *
 * Urgent jobs (opens, walks: a load waits) go before the others (unlink, times, scan), slow ones
 * (pace.c) come last. A worker that a call of fs.h keeps for io_timeout is replaced: the root whose
 * device it waits for goes down (fs_watch.c notes which), and what its own root has to do goes on.
 *
 * Where urgent jobs queue up, openers help, each of which calls the next: a header that is read
 * beside large reads comes back with them, so the headers must be asked for before the device is
 * full. They are started when they are needed, from a worker where possible (a caller may be an
 * event loop), and leave when nobody has needed them for a while.
 *
 * Invariants:
 *   1. A job runs exactly once, also when the store is closing.
 *   2. At most KVS_WORKERS_MAX workers and KVS_OPENERS openers, stuck ones included: a dead device
 *      takes no more threads.
 *   3. Openers are never needed: they do nothing where descriptors are short, and one that is stuck
 *      is replaced when the next is called, if there is a place.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "store.h"

/* A clock that a test drives may jump while a call is under way that takes its real time. */
enum { CALL_MIN_NS = 50000000 };

/* An open has up to three descriptors for a moment. */
enum { FILES_PER_OPENER = 16, OPENER_IDLE_S = 2 };

static _Thread_local struct kvs_worker *self;
static _Thread_local int probes;

struct kvs_worker *kvs_worker_self(void)
{
    return self;
}

int kvs_worker_probes(void)
{
    return probes;
}

void kvs_worker_set_probes(int on)
{
    probes = on;
}

struct kvs_root *kvs_worker_at(struct kvs_root *root)
{
    struct kvs_root *before = root;
    if (self) {
        kvs_lock(root->store);
        before = self->at;
        self->at = root;
        kvs_unlock(root->store);
    }
    return before;
}

static void queue_add(struct kvs_job ***tail, struct kvs_job *job)
{
    **tail = job;
    *tail = &job->next;
}

static struct kvs_job *queue_take(struct kvs_job **first, struct kvs_job ***tail)
{
    struct kvs_job *job = *first;
    if (job) {
        *first = job->next;
        if (!*first) {
            *tail = first;
        }
    }
    return job;
}

static uint32_t openers_most_locked(const struct kvs_root *root)
{
    uint32_t most = root->store->file_max / FILES_PER_OPENER;
    return most < KVS_OPENERS ? most : KVS_OPENERS;
}

static int opener_wanted_locked(const struct kvs_root *root)
{
    return root->urgent_jobs && root->openers_busy < openers_most_locked(root);
}

static void *worker_main(void *argument);

/* In a place that was never used or whose worker has left. */
static int worker_start(struct kvs_root *root, int opener)
{
    uint32_t first = opener ? KVS_WORKERS_MAX : 0;
    uint32_t end = opener ? KVS_WORKER_PLACES : KVS_WORKERS_MAX;
    for (uint32_t i = first; i < end; i++) {
        struct kvs_worker *worker = &root->workers[i];
        if (worker->started && !worker->left) {
            continue;
        }
        if (worker->started) {
            pthread_join(worker->thread, NULL); /* it has nothing left to do but return */
        }
        *worker = (struct kvs_worker){.home = root, .at = root, .opener = opener != 0};
        int error = pthread_create(&worker->thread, NULL, worker_main, worker);
        worker->started = error == 0;
        return -error;
    }
    return -EAGAIN;
}

/* One more, when a job waits for it. */
static void opener_call_locked(struct kvs_root *root)
{
    if (opener_wanted_locked(root) && root->openers_idle > 0) {
        pthread_cond_signal(&root->opener_wanted);
    } else if (opener_wanted_locked(root) && !root->workers_stop) {
        (void)worker_start(root, 1);
    }
}

static struct kvs_job *job_take_locked(struct kvs_root *root, struct kvs_worker *worker)
{
    /* At the end it may be alone with what its own last job added. */
    int opener = worker->opener && !root->workers_stop;
    if (opener && !opener_wanted_locked(root)) {
        return NULL;
    }
    struct kvs_job *job = queue_take(&root->urgent_jobs, &root->urgent_tail);
    if (!job && !opener) {
        job = queue_take(&root->jobs, &root->jobs_tail);
    }
    if (!job && !opener) {
        job = kvs_slow_take_locked(root, worker);
    }
    return job;
}

/* 0: an opener that nobody called for a while. Real time, also where a test drives the clock. */
static int job_wait_locked(struct kvs_root *root, const struct kvs_worker *worker)
{
    if (!worker->opener) {
        root->workers_idle++;
        pthread_cond_wait(&root->job_ready, &root->store->lock);
        root->workers_idle--;
        return 1;
    }
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += OPENER_IDLE_S;
    root->openers_idle++;
    int error = pthread_cond_timedwait(&root->opener_wanted, &root->store->lock, &until);
    root->openers_idle--;
    return error != ETIMEDOUT || opener_wanted_locked(root) || root->workers_stop;
}

static void *worker_main(void *argument)
{
    struct kvs_worker *worker = argument;
    struct kvs_root *root = worker->home;
    struct kvs_store *store = root->store;
    self = worker;
    kvs_lock(store);
    while (!worker->replaced) {
        struct kvs_job *job = job_take_locked(root, worker);
        if (job) {
            worker->at = root;
            root->openers_busy += worker->opener;
            opener_call_locked(root);
            kvs_unlock(store);
            job->run(root, job->argument);
            kvs_lock(store);
            root->openers_busy -= worker->opener;
            kvs_slow_over_locked(worker);
            free(job);
            pthread_cond_broadcast(&store->changed);
        } else if (root->workers_stop) {
            break; /* asked to stop, and nothing is left to do */
        } else if (!job_wait_locked(root, worker)) {
            break;
        }
    }
    worker->left = 1;
    kvs_unlock(store);
    return NULL;
}

void kvs_job_put_locked(struct kvs_root *root, struct kvs_job *job, int urgent)
{
    queue_add(urgent ? &root->urgent_tail : &root->jobs_tail, job);
    pthread_cond_signal(&root->job_ready);
    if (urgent && root->workers_idle == 0) {
        opener_call_locked(root); /* else the worker that takes it calls */
    }
}

int kvs_job_add_locked(struct kvs_root *root, void (*run)(struct kvs_root *, void *),
                       void *argument, int urgent)
{
    struct kvs_job *job = calloc(1, sizeof(*job));
    if (!job) {
        return -ENOMEM;
    }
    *job = (struct kvs_job){.run = run, .argument = argument};
    kvs_job_put_locked(root, job, urgent);
    return 0;
}

struct kvs_root *kvs_root_in_use_locked(struct kvs_store *store)
{
    uint32_t at = 0;
    while (at + 1 < store->root_count && kvs_root_down_locked(&store->roots[at])) {
        at++;
    }
    return &store->roots[at];
}

int kvs_job_add_anywhere_locked(struct kvs_store *store, void (*run)(struct kvs_root *, void *),
                                void *argument, int urgent)
{
    return kvs_job_add_locked(kvs_root_in_use_locked(store), run, argument, urgent);
}

int kvs_jobs_start(struct kvs_root *root)
{
    int error = 0;
    root->jobs_tail = &root->jobs;
    root->urgent_tail = &root->urgent_jobs;
    root->slow_tail = &root->slow_jobs;
    kvs_lock(root->store);
    for (uint32_t i = 0; i < KVS_FILE_WORKERS && !error; i++) {
        error = worker_start(root, 0);
    }
    kvs_unlock(root->store);
    return error;
}

static void call_is_late_locked(const struct kvs_worker *worker, int64_t now_ns)
{
    char why[KVS_TROUBLE_BYTES];
    snprintf(why, sizeof(why), "a call of its file system has not come back for %.3g s",
             (double)(now_ns - worker->since_ns) / 1e9);
    kvs_breaker_trip_locked(worker->at, why);
}

void kvs_workers_round_locked(struct kvs_root *root, int64_t now_ns)
{
    int64_t real_ns = kvs_clock_real_boot_ns(NULL);
    for (uint32_t i = 0; i < KVS_WORKER_PLACES; i++) {
        struct kvs_worker *worker = &root->workers[i];
        if (!worker->started || worker->left || worker->replaced || worker->since_ns == 0 ||
            real_ns - worker->since_real_ns < CALL_MIN_NS ||
            !kvs_overdue(root->store, worker->since_ns, now_ns, &worker->rounds)) {
            continue;
        }
        if (!worker->patient) {
            call_is_late_locked(worker, now_ns);
        }
        kvs_slow_over_locked(worker); /* those behind it need not wait for it */
        worker->replaced = worker->opener || worker_start(root, 0) == 0;
    }
}

/* Runs what is queued (jobs may queue more), then joins. */
void kvs_jobs_stop(struct kvs_root *root)
{
    kvs_lock(root->store);
    root->workers_stop = 1;
    pthread_cond_broadcast(&root->job_ready);
    pthread_cond_broadcast(&root->opener_wanted);
    kvs_unlock(root->store);
    for (uint32_t i = 0; i < KVS_WORKER_PLACES; i++) {
        if (root->workers[i].started) {
            pthread_join(root->workers[i].thread, NULL);
            root->workers[i].started = 0;
        }
    }
}
