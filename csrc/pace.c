/*
 * pace.c: giving space back to the file system without disturbing reads.
 *
 * On some devices the unlink or last close of 68 MB takes 10 ms and reads wait. So what nobody
 * waits for (deletes, last closes of unlinked and of abandoned files) are slow jobs: one at a time,
 * when a worker has nothing else to do, and not faster than PACE_BYTES a second. Expiry keeps the
 * same pace. Eviction for a put does not wait, but it is counted, and the put takes what slow jobs
 * would free before it evicts.
 *
 * Invariants:
 *   1. No worker waits for the pace: a job starts late, or stops and is started again.
 *   2. A store that closes runs its slow jobs without pace.
 *   3. One that a device keeps does not hold up those behind it: its worker counts no more once it
 *      was replaced.
 */
#include <errno.h>
#include <stdlib.h>

#include "store.h"

enum { PACE_BYTES = 1 << 30, AHEAD_NS = 100000000 }; /* one round of the keeper */

int kvs_pace_free_locked(const struct kvs_root *root)
{
    return root->pace_ns <= kvs_store_now_ns(root->store) + AHEAD_NS;
}

void kvs_pace_charge_locked(struct kvs_root *root, uint64_t bytes)
{
    int64_t now_ns = kvs_store_now_ns(root->store);
    int64_t from_ns = root->pace_ns > now_ns ? root->pace_ns : now_ns;
    /* A file has less than 2^33 bytes: no overflow. */
    root->pace_ns = from_ns + (int64_t)(bytes * (uint64_t)KVS_NS_PER_S / PACE_BYTES);
}

static void put_slow_locked(struct kvs_root *root, struct kvs_job *job)
{
    job->slow = 1;
    *root->slow_tail = job;
    root->slow_tail = &job->next;
    pthread_cond_signal(&root->job_ready);
}

int kvs_job_add_slow_locked(struct kvs_root *root, void (*run)(struct kvs_root *, void *),
                            void *argument, uint64_t bytes)
{
    struct kvs_job *job = calloc(1, sizeof(*job));
    if (!job) {
        return -ENOMEM;
    }
    *job = (struct kvs_job){.run = run, .argument = argument, .bytes = bytes};
    put_slow_locked(root, job);
    return 0;
}

void kvs_job_put_close_locked(struct kvs_root *root, struct kvs_job *job)
{
    if (job->bytes) {
        put_slow_locked(root, job);
    } else {
        kvs_job_put_locked(root, job, 0);
    }
}

static struct kvs_job *first_take_locked(struct kvs_root *root, struct kvs_worker *worker)
{
    struct kvs_job *job = root->slow_jobs;
    if (job) {
        root->slow_jobs = job->next;
        if (!root->slow_jobs) {
            root->slow_tail = &root->slow_jobs;
        }
        root->slow_running++;
        worker->slow_of = root;
        kvs_pace_charge_locked(root, job->bytes);
    }
    return job;
}

void kvs_slow_over_locked(struct kvs_worker *worker)
{
    if (worker->slow_of) {
        worker->slow_of->slow_running--;
        worker->slow_of = NULL;
    }
}

struct kvs_job *kvs_slow_take_locked(struct kvs_root *root, struct kvs_worker *worker)
{
    int may = root->workers_stop || (root->slow_running == 0 && kvs_pace_free_locked(root));
    return may ? first_take_locked(root, worker) : NULL;
}

int kvs_slow_hurry(struct kvs_root *root)
{
    struct kvs_worker *worker = kvs_worker_self();
    kvs_lock(root->store);
    int may = worker && !kvs_root_down_locked(root);
    struct kvs_job *job = may ? first_take_locked(root, worker) : NULL;
    kvs_unlock(root->store);
    if (!job) {
        return 0;
    }
    job->run(root, job->argument);
    free(job);
    kvs_lock(root->store);
    kvs_slow_over_locked(worker);
    pthread_cond_broadcast(&root->store->changed);
    kvs_unlock(root->store);
    return 1;
}

void kvs_pace_round_locked(struct kvs_root *root)
{
    if (root->slow_jobs && kvs_pace_free_locked(root)) {
        pthread_cond_signal(&root->job_ready);
    }
}
