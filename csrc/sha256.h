/* SHA-256 (FIPS 180-4), streaming: the hash behind block keys (keys.h).
 *
 * It does not do HMAC or anything else with secrets. Uses the CPU's SHA instructions where it has
 * them, chosen once per init.
 *
 * Invariants: the digest depends on the bytes only, not on how they were cut into updates; after
 * final the state must be initialised again; nothing is allocated.
 */
#ifndef KVS_SHA256_H
#define KVS_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define KVS_SHA256_BYTES 32u
#define KVS_SHA256_CHUNK 64u /* bytes per compression */

struct kvs_sha256 {
    uint32_t state[8];
    uint8_t pending[KVS_SHA256_CHUNK]; /* the total_bytes % 64 bytes not yet compressed */
    uint64_t total_bytes;
    void (*compress)(uint32_t state[8], const uint8_t *chunks, size_t chunk_count);
};

void kvs_sha256_init(struct kvs_sha256 *sha);

/* The same digest in plain C: the fallback of other CPUs, and what tests compare init's with. */
void kvs_sha256_init_portable(struct kvs_sha256 *sha);

/* `data` may be NULL when `bytes` is 0. */
void kvs_sha256_update(struct kvs_sha256 *sha, const void *data, size_t bytes);

void kvs_sha256_final(struct kvs_sha256 *sha, uint8_t digest[KVS_SHA256_BYTES]);

#endif
