/*
 * raw_read.h: what the device gives without a store: whole files read round and round with
 * O_DIRECT, straight on an engine, into huge-page memory registered with it. The denominator of
 * benches.
 *
 * Verifies nothing, delivers nothing. A reader belongs to the thread that runs it.
 */
#ifndef KVS_RAW_READ_H
#define KVS_RAW_READ_H

#include "kvs.h"

struct kvs_raw_reader;

struct kvs_raw_result {
    uint64_t bytes;
    int64_t ns; /* from the first submission to the last completion */
};

/* Opens the files for reads of io_bytes (a multiple of 4096, at most 64 MiB), at most depth_max in
 * flight. They fill memory_bytes round and round; 0: each read in flight has one buffer that it
 * uses again and again. -EINVAL: a wrong size, or no file holds 4096 bytes. */
int kvs_raw_reader_open(const char *const *paths, uint32_t path_count, uint32_t io_bytes,
                        uint32_t depth_max, uint64_t memory_bytes, enum kvs_engine_choice engine,
                        struct kvs_raw_reader **out);
/* Keeps `depth` reads in flight for duration_ns, then waits for the last. 0, or a read's error. */
int kvs_raw_reader_run(struct kvs_raw_reader *reader, uint32_t depth, int64_t duration_ns,
                       struct kvs_raw_result *out);
const char *kvs_raw_reader_engine(const struct kvs_raw_reader *reader);
int kvs_raw_reader_registered(const struct kvs_raw_reader *reader);
void kvs_raw_reader_close(struct kvs_raw_reader *reader);

#endif
