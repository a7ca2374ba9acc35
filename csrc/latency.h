/*
 * latency.h: how long things took, as a histogram over powers of two of nanoseconds.
 *
 * A leaf: no clock, no lock, no allocation. Whoever owns a histogram guards it; zeroed is empty.
 * Counts only grow. Bucket i counts times of at most kvs_latency_edge_ns(i) that are longer than
 * the edge before; the last one has no edge.
 */
#ifndef KVS_LATENCY_H
#define KVS_LATENCY_H

#include <stdint.h>

enum {
    KVS_LATENCY_BUCKETS = 24,
    KVS_LATENCY_FIRST_BITS = 13 /* the first edge: 8.2 us; so the last one is 34 s */
};

struct kvs_latency {
    uint64_t counts[KVS_LATENCY_BUCKETS];
    uint64_t sum_ns;
};

/* A time below 0 (a clock that a test turned) counts as 0. */
void kvs_latency_note(struct kvs_latency *latency, int64_t ns);
uint64_t kvs_latency_edge_ns(uint32_t bucket); /* UINT64_MAX for the last bucket */

#endif
