/*
 * latency.c: histograms of times; see latency.h. A note is a count of leading zeros and two sums.
 */
#include <assert.h>

#include "latency.h"

void kvs_latency_note(struct kvs_latency *latency, int64_t ns)
{
    uint64_t time_ns = ns > 0 ? (uint64_t)ns : 0;
    uint64_t over = time_ns > 0 ? (time_ns - 1) >> KVS_LATENCY_FIRST_BITS : 0;
    uint32_t bucket = over > 0 ? 64 - (uint32_t)__builtin_clzll(over) : 0;
    latency->counts[bucket < KVS_LATENCY_BUCKETS ? bucket : KVS_LATENCY_BUCKETS - 1]++;
    latency->sum_ns += time_ns;
}

uint64_t kvs_latency_edge_ns(uint32_t bucket)
{
    assert(bucket < KVS_LATENCY_BUCKETS);
    return bucket == KVS_LATENCY_BUCKETS - 1 ? UINT64_MAX
                                             : 1ull << (KVS_LATENCY_FIRST_BITS + bucket);
}
