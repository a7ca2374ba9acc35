/*
 * plan.h: what plan.c, plan_direct.c and plan_pool.c share. Everything here runs on the root's I/O
 * thread under the lock.
 */
#ifndef KVS_PLAN_H
#define KVS_PLAN_H

#include "store.h"

enum { KVS_PLAN_ALIGN = 4096 }; /* of direct I/O: file offset, memory, length */

/* A transfer that reads `bytes` at `offset`, with a reference to the file; NULL: no memory. */
struct kvs_transfer *kvs_read_new_locked(enum kvs_transfer_kind kind, struct kvs_file *file,
                                         uint64_t offset, uint8_t *memory, uint64_t bytes);
/* Once plan.c has attached it, while the lock is held. */
struct kvs_file *kvs_span_file_locked(const struct kvs_load_span *span);
/* Cells of the span that are still worth reading: those before the first known bad block. */
uint32_t kvs_span_wanted_locked(const struct kvs_load *load, uint32_t layer,
                                const struct kvs_load_span *span);
/* Whether these cells are in the region, or will be. */
int kvs_region_covers(const struct kvs_region *region, uint32_t first, uint32_t count);
/* plan_direct.c: one span straight into caller memory: 0, or -ENOTSUP when alignment forbids it. */
int kvs_plan_direct_locked(struct kvs_load *load, uint32_t layer, uint32_t span);

#endif
