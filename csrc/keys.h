/* Block keys: 32 bytes that name a block by everything that shaped its KV cells.
 *
 * This derivation is normative; names on disk depend on it. `||` joins bytes, u32le and u64le are
 * little-endian integers, texts in quotes are their 16 ASCII bytes without a terminator.
 *
 *   root    = SHA256("kvstore.chain.v1" || u32le salt_bytes || salt)
 *   key[i]  = SHA256("kvstore.block.v1" || u32le block_tokens || key[i-1], or root for i = 0
 *                    || the block's tokens, int32 little-endian each
 *                    || for each extra of the block: u32le tag_bytes || tag || u64le token_offset
 *                                                    || u32le value_bytes || value)
 *   wrapped = SHA256("kvstore.alien.v1" || u32le salt_bytes || salt || u32le key_bytes || key)
 *
 * An extra is whatever besides token ids decides a block's cells: a LoRA, the hash of an image
 * behind placeholder ids. It belongs to the block that holds its token_offset, an absolute position
 * in the prompt. A block's extras enter in the order of (token_offset, tag, value), texts compared
 * as unsigned bytes, a prefix before what it is a prefix of; an extra given twice enters twice.
 *
 * Invariants: only whole blocks have keys; two different inputs never hash the same bytes (fixed
 * lengths or a length before every variable part, a domain word before each kind); the layout is
 * not in the key, the namespace keeps layouts apart. Nothing is kept between calls.
 */
#ifndef KVS_KEYS_H
#define KVS_KEYS_H

#include <stdint.h>

#define KVS_KEY_BYTES 32u
#define KVS_BLOCK_TOKENS_MAX 65536u
#define KVS_FOREIGN_KEY_BYTES_MIN 16u
#define KVS_FOREIGN_KEY_BYTES_MAX 32u

struct kvs_key {
    uint8_t bytes[KVS_KEY_BYTES];
};
_Static_assert(sizeof(struct kvs_key) == KVS_KEY_BYTES, "keys lie back to back on disk");

struct kvs_extra {
    const uint8_t *tag; /* never empty */
    uint32_t tag_bytes;
    uint32_t value_bytes;
    const uint8_t *value; /* may be NULL when value_bytes is 0 */
    uint64_t token_offset;
};

/* Writes the keys of the floor(token_count / block_tokens) whole blocks. Extras may come in any
 * order; those of the trailing partial block change no key. `salt` may be NULL when empty.
 * -EINVAL: block_tokens is 0 or above KVS_BLOCK_TOKENS_MAX, an empty tag, an offset at or after
 * token_count. -ENOMEM: no room for 8 bytes per extra. On an error keys_out is untouched.
 */
int kvs_keys_chain(const int32_t *tokens, uint64_t token_count, uint32_t block_tokens,
                   const uint8_t *salt, uint32_t salt_bytes, const struct kvs_extra *extras,
                   uint32_t extra_count, struct kvs_key *keys_out);

/* Wraps keys that an engine made itself: `key_count` keys of `key_bytes` each, back to back.
 * -EINVAL: key_bytes is outside 16..32; keys_out is then untouched.
 */
int kvs_keys_wrap(const uint8_t *foreign, uint64_t key_count, uint32_t key_bytes,
                  const uint8_t *salt, uint32_t salt_bytes, struct kvs_key *keys_out);

#endif
