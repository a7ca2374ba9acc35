/* XXH3-64: reference values, and the vector loops against the plain one.
 *
 * The values were printed by tests/support/make_goldens.py from the `xxhash` package; many more
 * lengths are checked through the binding by tests/test_checksum.py.
 */
#undef NDEBUG
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../csrc/xxh3.h"

#define LARGEST 1179649u

static const struct {
    size_t bytes;
    uint64_t sum;
} REFERENCE[] = {
    {0, 0x2d06800538d394c2},       {1, 0xc44bdff4074eecdb},    {3, 0xe14090f554a5ea90},
    {4, 0x2e8d078a566e9749},       {8, 0xcd1c7f88482fcaef},    {9, 0xbfe43def699fa9e3},
    {16, 0x81e9eb8634460bb9},      {17, 0x9998430fd0a655be},   {128, 0x75eca5c5d5594884},
    {129, 0xa05da42e7a4e4667},     {240, 0x5eb2467c8c9e3969},  {241, 0x2d431e984c441f15},
    {1024, 0xe99def1145f12936},    {1025, 0x83cba9b371e4e7f4}, {73728, 0xc664dd74ade41cee},
    {LARGEST, 0xf1c533f32e90a4ac},
};

static uint8_t *make_pattern(void)
{
    uint8_t *pattern = malloc(LARGEST);
    assert(pattern != NULL);
    for (uint64_t i = 0; i < LARGEST; i++)
        pattern[i] = (uint8_t)(i * 2654435761u >> 24);
    return pattern;
}

static void test_reference_values(const uint8_t *pattern)
{
    for (size_t i = 0; i < sizeof(REFERENCE) / sizeof(REFERENCE[0]); i++) {
        assert(kvs_xxh3(pattern, REFERENCE[i].bytes) == REFERENCE[i].sum);
        assert(kvs_xxh3_portable(pattern, REFERENCE[i].bytes) == REFERENCE[i].sum);
    }
}

static void test_nothing_may_be_null(void)
{
    assert(kvs_xxh3(NULL, 0) == REFERENCE[0].sum);
}

/* Each text has its own allocation, so that a sanitizer sees every read outside of it. */
static void test_vector_loops_equal_the_plain_one(const uint8_t *pattern)
{
    for (size_t bytes = 1; bytes <= 2200; bytes++) {
        const size_t shift = bytes % 64;
        uint8_t *room = malloc(shift + bytes);
        assert(room != NULL);
        memcpy(room + shift, pattern + bytes, bytes);
        const uint64_t expected = kvs_xxh3_portable(pattern + bytes, bytes);
        assert(kvs_xxh3(room + shift, bytes) == expected);
        free(room);
    }
}

int main(void)
{
    uint8_t *pattern = make_pattern();
    test_reference_values(pattern);
    test_nothing_may_be_null();
    test_vector_loops_equal_the_plain_one(pattern);
    free(pattern);
    puts("ok xxh3");
    return 0;
}
