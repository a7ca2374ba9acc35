/*
 * scrub.h: what the scrub of a root (scrub.c) offers to the other files of the core.
 */
#ifndef KVS_SCRUB_H
#define KVS_SCRUB_H

#include "types.h"

int kvs_scrub_open(struct kvs_root *root, uint64_t bytes_per_s); /* 0: none */
void kvs_scrub_close(struct kvs_root *root);                     /* after the threads left */
/* Begins the next step when it may. */
void kvs_scrub_next_locked(struct kvs_root *root);
/* The extent left the index: what is open of it is of no use any more. */
void kvs_scrub_gone_locked(struct kvs_root *root, const struct kvs_extent *extent);
void kvs_scrub_read_done(struct kvs_root *root); /* I/O thread */
void kvs_scrub_info_locked(const struct kvs_root *root, struct kvs_root_info *out);

#endif
