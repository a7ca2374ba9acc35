/*
 * raw_io.h: what the device gives without a store: reads or writes of a given pattern with
 * O_DIRECT, straight on an engine, from or into huge-page memory registered with it. The
 * denominator of benches.
 *
 * Verifies nothing, delivers nothing, makes and lengthens no file. It belongs to the thread that
 * runs it.
 */
#ifndef KVS_RAW_IO_H
#define KVS_RAW_IO_H

#include "io.h"
#include "kvs.h"
#include "latency.h"

struct kvs_raw_io;

/* One operation. offset and bytes are multiples of 4096, bytes at most 64 MiB. */
struct kvs_raw_step {
    uint64_t offset;
    uint32_t file; /* index of its path */
    uint32_t bytes;
};

struct kvs_raw_plan {
    const char *const *paths;
    const struct kvs_raw_step *steps; /* walked round and round */
    uint32_t path_count, step_count;
    enum kvs_io_kind kind;
    uint32_t depth_max;    /* most in flight */
    uint64_t memory_bytes; /* walked round and round; 0: each operation in flight has one buffer
                              that it uses again and again */
    enum kvs_engine_choice engine;
};

struct kvs_raw_result {
    uint64_t bytes, steps;
    int64_t ns; /* from the first submission to the last completion */
};

/* Opens the files and the engine. -EINVAL: no step, or one that direct I/O cannot have. */
int kvs_raw_open(const struct kvs_raw_plan *plan, struct kvs_raw_io **out);
/* Keeps `depth` operations in flight, for duration_ns and at most steps_max of them (0: no such
 * bound), then waits for the last. Goes on where the last run ended. 0, or an operation's error. */
int kvs_raw_run(struct kvs_raw_io *raw, uint32_t depth, int64_t duration_ns, uint64_t steps_max,
                struct kvs_raw_result *out);
const char *kvs_raw_engine(const struct kvs_raw_io *raw);
int kvs_raw_registered(const struct kvs_raw_io *raw);
/* Share of its memory on huge pages, 0..1. */
double kvs_raw_huge_coverage(const struct kvs_raw_io *raw);
/* Times of single operations in all runs so far. */
const struct kvs_latency *kvs_raw_latency(const struct kvs_raw_io *raw);
void kvs_raw_close(struct kvs_raw_io *raw);

#endif
