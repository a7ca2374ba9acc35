/*
 * fs_plan.c: the plan of a faulty file system. Makes no call itself.
 *
 * The mutex guards all of it; a call that stalls gives it up.
 */
#include "fs_plan.h"

#include <assert.h>
#include <signal.h>

void kvs_fs_plan_init(struct kvs_fs_plan *plan)
{
    pthread_mutex_init(&plan->mutex, NULL);
    pthread_cond_init(&plan->released, NULL);
}

void kvs_fs_plan_end(struct kvs_fs_plan *plan)
{
    pthread_cond_destroy(&plan->released);
    pthread_mutex_destroy(&plan->mutex);
}

/* With the mutex held, which is given up meanwhile. */
static void stall(struct kvs_fs_plan *plan)
{
    const uint64_t before = plan->releases;
    __atomic_fetch_add(&plan->stalled, 1, __ATOMIC_RELAXED);
    while (plan->releases == before) {
        pthread_cond_wait(&plan->released, &plan->mutex);
    }
    __atomic_fetch_sub(&plan->stalled, 1, __ATOMIC_RELAXED);
}

int kvs_fs_plan_judge(struct kvs_fs_plan *plan, enum kvs_fs_call call)
{
    int verdict = KVS_FS_PASS;
    pthread_mutex_lock(&plan->mutex);
    plan->calls[call]++;
    for (unsigned i = 0; i < plan->length && verdict == KVS_FS_PASS; i++) {
        struct kvs_fs_planned *planned = &plan->faults[i];
        const int spent = planned->fault.count > 0 && planned->fired == planned->fault.count;
        if (planned->fault.call != call || spent) {
            continue;
        }
        if (planned->fault.skip > 0) {
            planned->fault.skip--;
            continue;
        }
        planned->fired++;
        if (planned->fault.stalls) {
            stall(plan);
            break;
        }
        if (planned->fault.error == KVS_FS_FAULT_KILL) {
            raise(SIGKILL);
        }
        verdict = -planned->fault.error; /* DROP is 0 */
    }
    pthread_mutex_unlock(&plan->mutex);
    return verdict;
}

void kvs_fs_plan_add(struct kvs_fs_plan *plan, const struct kvs_fs_fault *fault)
{
    assert(fault->call < KVS_FS_CALL_COUNT && fault->error >= 0);
    assert(fault->error > 0 || fault->stalls /* there is no descriptor to drop such a call with */
           || (fault->call != KVS_FS_OPEN_ROOT && fault->call != KVS_FS_OPEN_READ &&
               fault->call != KVS_FS_OPEN_TEMP && fault->call != KVS_FS_LOCK));
    pthread_mutex_lock(&plan->mutex);
    const int fits = plan->length < KVS_FS_FAULT_PLAN;
    if (fits) {
        plan->faults[plan->length++] = (struct kvs_fs_planned){.fault = *fault};
    }
    pthread_mutex_unlock(&plan->mutex);
    assert(fits);
    (void)fits;
}

void kvs_fs_plan_clear(struct kvs_fs_plan *plan)
{
    pthread_mutex_lock(&plan->mutex);
    plan->length = 0;
    pthread_mutex_unlock(&plan->mutex);
}

void kvs_fs_plan_release(struct kvs_fs_plan *plan)
{
    pthread_mutex_lock(&plan->mutex);
    plan->releases++;
    pthread_cond_broadcast(&plan->released);
    pthread_mutex_unlock(&plan->mutex);
}

unsigned kvs_fs_plan_stalled(struct kvs_fs_plan *plan)
{
    return __atomic_load_n(&plan->stalled, __ATOMIC_RELAXED);
}

uint64_t kvs_fs_plan_calls(struct kvs_fs_plan *plan, enum kvs_fs_call call)
{
    assert(call < KVS_FS_CALL_COUNT);
    pthread_mutex_lock(&plan->mutex);
    const uint64_t calls = plan->calls[call];
    pthread_mutex_unlock(&plan->mutex);
    return calls;
}
