/*
 * io_null.h: a device that costs nothing, one more implementation of io.h, for benches: what the
 * store itself costs is what is left.
 *
 * Every operation is done when the next reap looks, and moves nothing: a write is thrown away, a
 * read finds in its buffer what lies there. Registered memory (the pool) is filled once with a
 * pattern of KVS_NULL_PERIOD bytes, so cells of that pattern, put at multiples of the period, are
 * "read" whole and pass their checks at the speed of memory. Whoever gives memory of his own fills
 * it himself. A real device moves bytes without the processor, too.
 */
#ifndef KVS_IO_NULL_H
#define KVS_IO_NULL_H

#include "io.h"

enum { KVS_NULL_PERIOD = 64 };

int kvs_io_null_open(unsigned depth, struct kvs_io_engine **out);
/* Fills memory with the pattern: byte i is i modulo the period. */
void kvs_io_null_fill(void *memory, uint64_t bytes);

#endif
