/*
 * fault_plan.h: what the fault engine decides about an operation, and how it carries it out.
 *
 * How faults combine: each fault of the plan counts every operation of its kind, so that one
 * fault's `skip` does not depend on the others; all that fire on an operation apply; of two error
 * numbers the first in the plan wins; an error beats a short result. A cut takes the operation that
 * it fires on and all that are decided later; earlier ones still reach the file.
 *
 * Not thread-safe: the fault engine holds its lock.
 */
#ifndef KVS_FAULT_PLAN_H
#define KVS_FAULT_PLAN_H

#include "io_fault.h"

enum { KVS_FAULT_PLAN_LIMIT = 64 };

struct kvs_fault_plan {
    struct kvs_fault_counter {
        struct kvs_fault fault;
        uint64_t seen;
        uint64_t fired;
    } counters[KVS_FAULT_PLAN_LIMIT];
    unsigned count;
    int is_cut;
};

struct kvs_fault_fate {
    int error;             /* positive errno, 0: none */
    int stalls;
    int64_t delay_ns;
    uint64_t move_at_most; /* bytes */
    uint64_t flip_bit;     /* UINT64_MAX: none */
};

/* Called once per operation, in order of submission. */
struct kvs_fault_fate kvs_fault_decide(struct kvs_fault_plan *plan, enum kvs_io_kind io_kind);
/* Moves the bytes as far as fate lets it; returns the operation's result. Blocks on the file. */
int32_t kvs_fault_carry_out(const struct kvs_io_op *op, const struct kvs_fault_fate *fate);

#endif
