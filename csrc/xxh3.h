/* XXH3-64 (seed 0, default secret): the checksum of every cell and header on disk.
 *
 * Our own implementation of the public XXH3 specification; equal bit for bit to `xxhash.xxh3_64`.
 * It guards against damage, not against an attacker: keys are SHA-256 (keys.h).
 * It does not stream: cells and headers are always whole in memory when they are checked.
 *
 * Invariants: the result depends on the bytes only, never on their alignment or on the CPU; no
 * byte outside [data, data + bytes) is read; nothing is allocated and no state is kept.
 */
#ifndef KVS_XXH3_H
#define KVS_XXH3_H

#include <stddef.h>
#include <stdint.h>

/* `data` may be NULL when `bytes` is 0. Uses the widest vector instructions the CPU has. */
uint64_t kvs_xxh3(const void *data, size_t bytes);

/* The same value in plain C: the fallback of other CPUs, and what tests compare the above with. */
uint64_t kvs_xxh3_portable(const void *data, size_t bytes);

#endif
