/* SHA-256 against FIPS vectors, and block keys against values of tests/support/make_goldens.py.
 *
 * What keys promise about collisions is tested through the binding by tests/test_keys.py.
 */
#undef NDEBUG
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../csrc/keys.h"
#include "../../csrc/sha256.h"

#define TOKENS 130u
#define BLOCK 64u

typedef void init_fn(struct kvs_sha256 *sha);
static init_fn *const INITS[] = {kvs_sha256_init, kvs_sha256_init_portable};

static const uint8_t SALT[] = "tenant-7";
#define SALT_BYTES ((uint32_t)sizeof(SALT) - 1)

/* The keys of the second block. */
static const uint8_t PLAIN[KVS_KEY_BYTES] = {
    0xf5, 0x3e, 0xa6, 0x32, 0x79, 0x16, 0x5c, 0x08, 0xce, 0xac, 0xeb, 0xa8, 0xa0, 0x78, 0x6a, 0x59,
    0x64, 0x76, 0x42, 0xcc, 0x97, 0xbe, 0xd6, 0x66, 0x74, 0x9d, 0x23, 0x80, 0xdf, 0x6c, 0x26, 0xfd,
};
static const uint8_t SALTED[KVS_KEY_BYTES] = {
    0xd1, 0xb3, 0x78, 0xb0, 0x68, 0xa2, 0xde, 0x9d, 0x52, 0xcf, 0x0c, 0x17, 0xe4, 0x6d, 0x02, 0x28,
    0xbd, 0x14, 0xd2, 0x2e, 0x7f, 0xb3, 0xfa, 0x0e, 0x4b, 0x46, 0xa2, 0xd0, 0x8e, 0xed, 0xf6, 0xa3,
};
static const uint8_t WITH_EXTRAS[KVS_KEY_BYTES] = {
    0xd9, 0x0d, 0xbe, 0x14, 0x3d, 0xd4, 0x5b, 0x05, 0xad, 0xed, 0xf7, 0xc5, 0x58, 0x97, 0x64, 0xb4,
    0x00, 0x93, 0x3e, 0xc8, 0x96, 0x92, 0xb3, 0xd7, 0x5a, 0xbc, 0x91, 0x02, 0x32, 0x8f, 0xe2, 0xe3,
};
static const uint8_t WRAPPED[KVS_KEY_BYTES] = {
    0x7b, 0x37, 0xee, 0x0f, 0x3f, 0xec, 0xb6, 0xc7, 0x8f, 0x7f, 0xf1, 0x1a, 0x83, 0xb6, 0xd8, 0x4f,
    0xc7, 0x25, 0xc5, 0x91, 0xcb, 0xba, 0xa3, 0xae, 0x0e, 0x7d, 0xd9, 0x29, 0x56, 0xe3, 0xab, 0x2e,
};

static const struct kvs_extra IMAGE = {
    .tag = (const uint8_t *)"image",
    .tag_bytes = 5,
    .value = (const uint8_t *)"\x01\x02",
    .value_bytes = 2,
    .token_offset = 64,
};
static const struct kvs_extra LORA = {
    .tag = (const uint8_t *)"lora",
    .tag_bytes = 4,
    .value = (const uint8_t *)"a",
    .value_bytes = 1,
    .token_offset = 0,
};

static void make_tokens(int32_t tokens[TOKENS])
{
    for (int32_t i = 0; i < (int32_t)TOKENS; i++)
        tokens[i] = i * 7919 - 3;
}

static void hash_whole(init_fn *init, const void *text, size_t bytes, uint8_t digest[32])
{
    struct kvs_sha256 sha;
    init(&sha);
    kvs_sha256_update(&sha, text, bytes);
    kvs_sha256_final(&sha, digest);
}

static void assert_digest(const char *text, const char *expected)
{
    for (size_t which = 0; which < 2; which++) {
        uint8_t digest[KVS_SHA256_BYTES];
        char hex[2 * KVS_SHA256_BYTES + 1];
        hash_whole(INITS[which], text, strlen(text), digest);
        for (size_t i = 0; i < KVS_SHA256_BYTES; i++)
            snprintf(hex + 2 * i, 3, "%02x", digest[i]);
        assert(strcmp(hex, expected) == 0);
    }
}

static void test_sha256_has_the_published_digests(void)
{
    assert_digest("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_digest("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                  "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

static void test_sha256_does_not_depend_on_how_the_text_is_cut(void)
{
    uint8_t text[200], whole[KVS_SHA256_BYTES], cut[KVS_SHA256_BYTES];
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (uint8_t)(i * 37);
    for (size_t bytes = 0; bytes <= sizeof(text); bytes++) {
        hash_whole(kvs_sha256_init_portable, text, bytes, whole);
        for (size_t first = 0; first <= bytes; first++) {
            struct kvs_sha256 sha;
            kvs_sha256_init(&sha);
            kvs_sha256_update(&sha, text, first);
            kvs_sha256_update(&sha, text + first, bytes - first);
            kvs_sha256_final(&sha, cut);
            assert(memcmp(whole, cut, sizeof(cut)) == 0);
        }
    }
}

static void test_chains_equal_the_reference(void)
{
    int32_t tokens[TOKENS];
    struct kvs_key keys[2];
    const struct kvs_extra out_of_order[] = {IMAGE, LORA};
    make_tokens(tokens);
    assert(kvs_keys_chain(tokens, TOKENS, BLOCK, NULL, 0, NULL, 0, keys) == 0);
    assert(memcmp(keys[1].bytes, PLAIN, KVS_KEY_BYTES) == 0);
    assert(kvs_keys_chain(tokens, TOKENS, BLOCK, SALT, SALT_BYTES, NULL, 0, keys) == 0);
    assert(memcmp(keys[1].bytes, SALTED, KVS_KEY_BYTES) == 0);
    assert(kvs_keys_chain(tokens, TOKENS, BLOCK, NULL, 0, out_of_order, 2, keys) == 0);
    assert(memcmp(keys[1].bytes, WITH_EXTRAS, KVS_KEY_BYTES) == 0);
}

static void test_wrapped_keys_equal_the_reference(void)
{
    uint8_t foreign[40];
    struct kvs_key keys[2];
    for (size_t i = 0; i < sizeof(foreign); i++)
        foreign[i] = (uint8_t)(i % 20);
    assert(kvs_keys_wrap(foreign, 2, 20, SALT, SALT_BYTES, keys) == 0);
    assert(memcmp(keys[0].bytes, WRAPPED, KVS_KEY_BYTES) == 0);
    assert(memcmp(keys[1].bytes, WRAPPED, KVS_KEY_BYTES) == 0);
}

static void test_only_whole_blocks_are_written(void)
{
    int32_t tokens[TOKENS];
    struct kvs_key keys[3], untouched;
    make_tokens(tokens);
    memset(keys, 0xA5, sizeof(keys));
    untouched = keys[2];
    assert(kvs_keys_chain(tokens, TOKENS, BLOCK, NULL, 0, NULL, 0, keys) == 0);
    assert(memcmp(&keys[2], &untouched, sizeof(untouched)) == 0);
    assert(kvs_keys_chain(NULL, 0, BLOCK, NULL, 0, NULL, 0, NULL) == 0);
}

static void test_misuse_is_refused_and_writes_nothing(void)
{
    int32_t tokens[TOKENS];
    uint8_t foreign[33] = {0};
    struct kvs_extra no_tag = LORA, too_late = LORA;
    make_tokens(tokens);
    no_tag.tag_bytes = 0;
    too_late.token_offset = TOKENS;
    assert(kvs_keys_chain(tokens, TOKENS, 0, NULL, 0, NULL, 0, NULL) == -EINVAL);
    assert(kvs_keys_chain(tokens, TOKENS, 65537, NULL, 0, NULL, 0, NULL) == -EINVAL);
    assert(kvs_keys_chain(tokens, TOKENS, BLOCK, NULL, 0, &no_tag, 1, NULL) == -EINVAL);
    assert(kvs_keys_chain(tokens, TOKENS, BLOCK, NULL, 0, &too_late, 1, NULL) == -EINVAL);
    assert(kvs_keys_wrap(foreign, 1, 15, NULL, 0, NULL) == -EINVAL);
    assert(kvs_keys_wrap(foreign, 1, 33, NULL, 0, NULL) == -EINVAL);
}

int main(void)
{
    test_sha256_has_the_published_digests();
    test_sha256_does_not_depend_on_how_the_text_is_cut();
    test_chains_equal_the_reference();
    test_wrapped_keys_equal_the_reference();
    test_only_whole_blocks_are_written();
    test_misuse_is_refused_and_writes_nothing();
    puts("ok keys");
    return 0;
}
