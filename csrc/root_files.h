/*
 * root_files.h: what the names of extents and the small files of a root say, normative text in
 * docs/FORMAT.md. Like format.h pure: bytes in, verdict out, nothing is trusted.
 */
#ifndef KVS_ROOT_FILES_H
#define KVS_ROOT_FILES_H

#include <stddef.h>
#include <stdint.h>

#include "keys.h"

/* <key>.kv, 64 lower-case hex digits; -EINVAL: the name of something else. */
int kvs_key_from_name(const char *name, struct kvs_key *out);

#define KVS_UUID_BYTES 16u

/* root.json: the 32 lower-case hex digits after "uuid". -EINVAL, and *uuid as it was. */
int kvs_uuid_from_text(const char *text, size_t bytes, uint8_t uuid[KVS_UUID_BYTES]);

struct kvs_removed {
    uint64_t tag;
    int64_t when_s;
    uint32_t reason, zero;
};
_Static_assert(sizeof(struct kvs_removed) == 24, "a removal is 24 bytes on disk");

#define KVS_RING_BYTES (1u << 17)
#define KVS_RING_MAGIC "KVSREMOV" /* 8 bytes, no terminator on disk */
#define KVS_RING_MAX ((KVS_RING_BYTES - 24u) / sizeof(struct kvs_removed))

/* removed.ring: this, zero padded to KVS_RING_BYTES. */
struct kvs_ring {
    uint8_t magic[8];
    uint64_t count;
    uint64_t xxh3; /* of entries[0..count) */
    struct kvs_removed entries[KVS_RING_MAX];
};
_Static_assert(sizeof(struct kvs_ring) <= KVS_RING_BYTES, "the ring fits its file");

/* Whether magic, count and checksum hold; no entry has been looked at. */
int kvs_ring_is_whole(const struct kvs_ring *ring);

#endif
