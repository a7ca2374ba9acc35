/* Derives block keys; keys.h has the normative description. */
#include "keys.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "sha256.h"

#define DOMAIN_BYTES 16u

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "integers are hashed as they lie");
_Static_assert(KVS_KEY_BYTES == KVS_SHA256_BYTES, "a key is one digest");

static const char ROOT_DOMAIN[] = "kvstore.chain.v1";
static const char BLOCK_DOMAIN[] = "kvstore.block.v1";
static const char FOREIGN_DOMAIN[] = "kvstore.alien.v1";
_Static_assert(sizeof(ROOT_DOMAIN) == DOMAIN_BYTES + 1, "domain words have one length");
_Static_assert(sizeof(BLOCK_DOMAIN) == DOMAIN_BYTES + 1, "domain words have one length");
_Static_assert(sizeof(FOREIGN_DOMAIN) == DOMAIN_BYTES + 1, "domain words have one length");

static void begin(struct kvs_sha256 *sha, const char *domain)
{
    kvs_sha256_init(sha);
    kvs_sha256_update(sha, domain, DOMAIN_BYTES);
}

static void add_u32(struct kvs_sha256 *sha, uint32_t value)
{
    kvs_sha256_update(sha, &value, sizeof(value));
}

static void add_sized(struct kvs_sha256 *sha, const uint8_t *text, uint32_t bytes)
{
    add_u32(sha, bytes);
    kvs_sha256_update(sha, text, bytes);
}

static void add_extra(struct kvs_sha256 *sha, const struct kvs_extra *extra)
{
    add_sized(sha, extra->tag, extra->tag_bytes);
    kvs_sha256_update(sha, &extra->token_offset, sizeof(extra->token_offset));
    add_sized(sha, extra->value, extra->value_bytes);
}

static int compare_bytes(const uint8_t *a, uint32_t a_bytes, const uint8_t *b, uint32_t b_bytes)
{
    const uint32_t common = a_bytes < b_bytes ? a_bytes : b_bytes;
    const int order = common > 0 ? memcmp(a, b, common) : 0;
    return order != 0 ? order : (a_bytes > b_bytes) - (a_bytes < b_bytes);
}

static int compare_extras(const void *left, const void *right)
{
    const struct kvs_extra *a = *(const struct kvs_extra *const *)left;
    const struct kvs_extra *b = *(const struct kvs_extra *const *)right;
    if (a->token_offset != b->token_offset)
        return a->token_offset < b->token_offset ? -1 : 1;
    const int order = compare_bytes(a->tag, a->tag_bytes, b->tag, b->tag_bytes);
    return order != 0 ? order : compare_bytes(a->value, a->value_bytes, b->value, b->value_bytes);
}

static bool extras_are_valid(const struct kvs_extra *extras, uint32_t extra_count,
                             uint64_t token_count)
{
    for (uint32_t i = 0; i < extra_count; i++) {
        if (extras[i].tag_bytes == 0 || extras[i].token_offset >= token_count)
            return false;
    }
    return true;
}

/* A malloc'd array of pointers into `extras` in hashing order; NULL when there is no memory. */
static const struct kvs_extra **sort_extras(const struct kvs_extra *extras, uint32_t extra_count)
{
    const struct kvs_extra **sorted = malloc(extra_count * sizeof(*sorted));
    if (sorted == NULL)
        return NULL;
    for (uint32_t i = 0; i < extra_count; i++)
        sorted[i] = &extras[i];
    qsort(sorted, extra_count, sizeof(*sorted), compare_extras);
    return sorted;
}

static void hash_blocks(const int32_t *tokens, uint64_t block_count, uint32_t block_tokens,
                        struct kvs_key parent, const struct kvs_extra *const *sorted,
                        uint32_t extra_count, struct kvs_key *keys_out)
{
    uint32_t next_extra = 0;
    for (uint64_t block = 0; block < block_count; block++) {
        const uint64_t first_token = block * block_tokens;
        struct kvs_sha256 sha;
        begin(&sha, BLOCK_DOMAIN);
        add_u32(&sha, block_tokens);
        kvs_sha256_update(&sha, parent.bytes, sizeof(parent.bytes));
        kvs_sha256_update(&sha, tokens + first_token, block_tokens * sizeof(*tokens));
        for (; next_extra < extra_count; next_extra++) {
            if (sorted[next_extra]->token_offset >= first_token + block_tokens)
                break;
            add_extra(&sha, sorted[next_extra]);
        }
        kvs_sha256_final(&sha, parent.bytes);
        keys_out[block] = parent;
    }
}

int kvs_keys_chain(const int32_t *tokens, uint64_t token_count, uint32_t block_tokens,
                   const uint8_t *salt, uint32_t salt_bytes, const struct kvs_extra *extras,
                   uint32_t extra_count, struct kvs_key *keys_out)
{
    const struct kvs_extra **sorted = NULL;
    struct kvs_sha256 sha;
    struct kvs_key root;
    if (block_tokens == 0 || block_tokens > KVS_BLOCK_TOKENS_MAX)
        return -EINVAL;
    if (!extras_are_valid(extras, extra_count, token_count))
        return -EINVAL;
    if (extra_count > 0) {
        sorted = sort_extras(extras, extra_count);
        if (sorted == NULL)
            return -ENOMEM;
    }
    begin(&sha, ROOT_DOMAIN);
    add_sized(&sha, salt, salt_bytes);
    kvs_sha256_final(&sha, root.bytes);
    hash_blocks(tokens, token_count / block_tokens, block_tokens, root, sorted, extra_count,
                keys_out);
    free(sorted);
    return 0;
}

int kvs_keys_wrap(const uint8_t *foreign, uint64_t key_count, uint32_t key_bytes,
                  const uint8_t *salt, uint32_t salt_bytes, struct kvs_key *keys_out)
{
    struct kvs_sha256 salted;
    if (key_bytes < KVS_FOREIGN_KEY_BYTES_MIN || key_bytes > KVS_FOREIGN_KEY_BYTES_MAX)
        return -EINVAL;
    begin(&salted, FOREIGN_DOMAIN);
    add_sized(&salted, salt, salt_bytes);
    for (uint64_t i = 0; i < key_count; i++) {
        struct kvs_sha256 sha = salted; /* the salt is hashed once for all keys */
        add_sized(&sha, foreign + i * key_bytes, key_bytes);
        kvs_sha256_final(&sha, keys_out[i].bytes);
    }
    return 0;
}
