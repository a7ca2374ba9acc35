/*
 * Histograms of times: every time lies in the bucket whose edges hold it; sums and counts agree.
 */
#include "latency.h"

#include "format_test.h"

static uint32_t only_bucket(int64_t ns)
{
    struct kvs_latency latency = {.sum_ns = 0};
    uint32_t found = KVS_LATENCY_BUCKETS;
    kvs_latency_note(&latency, ns);
    for (uint32_t i = 0; i < KVS_LATENCY_BUCKETS; i++) {
        CHECK(latency.counts[i] <= 1);
        if (latency.counts[i]) {
            CHECK(found == KVS_LATENCY_BUCKETS);
            found = i;
        }
    }
    CHECK(found < KVS_LATENCY_BUCKETS);
    CHECK(latency.sum_ns == (ns > 0 ? (uint64_t)ns : 0));
    return found;
}

static void expect_between_edges(int64_t ns)
{
    uint32_t bucket = only_bucket(ns);
    uint64_t time_ns = ns > 0 ? (uint64_t)ns : 0;
    CHECK(time_ns <= kvs_latency_edge_ns(bucket));
    CHECK(bucket == 0 || time_ns > kvs_latency_edge_ns(bucket - 1));
}

static void test_edges(void)
{
    for (uint32_t i = 0; i + 1 < KVS_LATENCY_BUCKETS; i++) {
        int64_t edge = (int64_t)kvs_latency_edge_ns(i);
        CHECK(only_bucket(edge) == i);
        CHECK(only_bucket(edge + 1) == i + 1);
        CHECK(kvs_latency_edge_ns(i) < kvs_latency_edge_ns(i + 1));
    }
    CHECK(only_bucket(0) == 0 && only_bucket(-1) == 0 && only_bucket(INT64_MIN) == 0);
    CHECK(only_bucket(INT64_MAX) == KVS_LATENCY_BUCKETS - 1);
}

static void test_random(void)
{
    uint64_t state = 24;
    struct kvs_latency latency = {.sum_ns = 0};
    uint64_t total = 0, sum = 0;
    for (int i = 0; i < 10000; i++) {
        int64_t ns = (int64_t)(next_random(&state) >> (20 + next_random(&state) % 44));
        expect_between_edges(ns);
        kvs_latency_note(&latency, ns);
        sum += (uint64_t)ns;
    }
    for (uint32_t i = 0; i < KVS_LATENCY_BUCKETS; i++) {
        total += latency.counts[i];
    }
    CHECK(total == 10000 && latency.sum_ns == sum);
}

int main(void)
{
    test_edges();
    test_random();
    return 0;
}
