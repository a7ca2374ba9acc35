/*
 * jobs.c: the file workers of a root. Everything of fs.h happens on them, several at a time,
 * because cold opens and last closes take 0.3 to 10 ms and must not sit on the I/O thread.
 *
 * Urgent jobs (opens, walks: a load waits) go before the others (unlink, times, scan), slow ones
 * (pace.c) come last.
 * Invariant: a job runs exactly once, also when the store is closing.
 */
#include <errno.h>
#include <stdlib.h>

#include "store.h"

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

int kvs_job_add_locked(struct kvs_root *root, void (*run)(struct kvs_root *, void *),
                       void *argument, int urgent)
{
    struct kvs_job *job = calloc(1, sizeof(*job));
    if (!job) {
        return -ENOMEM;
    }
    job->run = run;
    job->argument = argument;
    queue_add(urgent ? &root->urgent_tail : &root->jobs_tail, job);
    pthread_cond_signal(&root->job_ready);
    return 0;
}

static void *worker(void *argument)
{
    struct kvs_root *root = argument;
    struct kvs_store *store = root->store;
    kvs_lock(store);
    for (;;) {
        struct kvs_job *job = queue_take(&root->urgent_jobs, &root->urgent_tail);
        if (!job) {
            job = queue_take(&root->jobs, &root->jobs_tail);
        }
        if (!job) {
            job = kvs_slow_take_locked(root);
        }
        if (job) {
            kvs_unlock(store);
            job->run(root, job->argument);
            kvs_lock(store);
            root->slow_running -= job->slow;
            free(job);
            pthread_cond_broadcast(&store->changed);
        } else if (root->workers_stop) {
            break; /* asked to stop, and nothing is left to do */
        } else {
            pthread_cond_wait(&root->job_ready, &store->lock);
        }
    }
    kvs_unlock(store);
    return NULL;
}

int kvs_jobs_start(struct kvs_root *root)
{
    root->jobs_tail = &root->jobs;
    root->urgent_tail = &root->urgent_jobs;
    root->slow_tail = &root->slow_jobs;
    for (uint32_t i = 0; i < KVS_FILE_WORKERS; i++) {
        int error = pthread_create(&root->workers[i], NULL, worker, root);
        if (error) {
            return -error;
        }
        root->worker_count++;
    }
    return 0;
}

/* Runs what is queued (jobs may queue more), then joins. */
void kvs_jobs_stop(struct kvs_root *root)
{
    kvs_lock(root->store);
    root->workers_stop = 1;
    pthread_cond_broadcast(&root->job_ready);
    kvs_unlock(root->store);
    for (uint32_t i = 0; i < root->worker_count; i++) {
        pthread_join(root->workers[i], NULL);
    }
    root->worker_count = 0;
}
