/*
 * fs_plan.h: which calls of a faulty file system fail, are dropped, stall or kill; and how often
 * each was made. Part of fs_fault.c, which fs_fault.h describes.
 */
#ifndef KVS_FS_PLAN_H
#define KVS_FS_PLAN_H

#include <pthread.h>

#include "fs_fault.h"

enum { KVS_FS_DROP = 0, KVS_FS_PASS = 1 }; /* or a negative errno */

struct kvs_fs_planned {
    struct kvs_fs_fault fault;
    uint64_t fired;
};

struct kvs_fs_plan {
    pthread_mutex_t mutex;
    pthread_cond_t released;
    uint64_t releases;
    unsigned stalled;
    struct kvs_fs_planned faults[KVS_FS_FAULT_PLAN];
    unsigned length;
    uint64_t calls[KVS_FS_CALL_COUNT];
};

void kvs_fs_plan_init(struct kvs_fs_plan *plan);
void kvs_fs_plan_end(struct kvs_fs_plan *plan);
/* Counts the call. PASS, DROP, or the negative errno to fail with; a call that stalls comes back
 * when it is released. */
int kvs_fs_plan_judge(struct kvs_fs_plan *plan, enum kvs_fs_call call);
void kvs_fs_plan_add(struct kvs_fs_plan *plan, const struct kvs_fs_fault *fault);
void kvs_fs_plan_clear(struct kvs_fs_plan *plan);
void kvs_fs_plan_release(struct kvs_fs_plan *plan);
unsigned kvs_fs_plan_stalled(struct kvs_fs_plan *plan);
uint64_t kvs_fs_plan_calls(struct kvs_fs_plan *plan, enum kvs_fs_call call);

#endif
