/*
 * virtual_clock.h: what the fault engine needs of the virtual clock beyond io_fault.h.
 */
#ifndef KVS_VIRTUAL_CLOCK_H
#define KVS_VIRTUAL_CLOCK_H

#include "io_fault.h"

/* From now on each advance writes the eventfd `fd`. -ENOSPC when too many watch. */
int kvs_virtual_clock_watch(struct kvs_virtual_clock *clock, int fd);
void kvs_virtual_clock_unwatch(struct kvs_virtual_clock *clock, int fd);
/* Moves time forward to boot_ns; does nothing when it is there already. */
void kvs_virtual_clock_advance_to(struct kvs_virtual_clock *clock, int64_t boot_ns);

#endif
