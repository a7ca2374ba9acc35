/* XXH3-64 for all lengths; see xxh3.h.
 *
 * The specification has one formula per class of length: 0, 1..3, 4..8, 9..16, 17..128, 129..240,
 * and above that eight 64-bit lanes that fold one 64-byte stripe per step. Only the last matters
 * for speed, so only its loop exists per instruction set; all are reached from hash(). AVX2 already
 * runs at the speed of memory, so there is no AVX-512 loop: it measured faster only inside L2.
 */
#include "xxh3.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are read as little-endian");
_Static_assert(sizeof(size_t) == 8, "lengths enter the hash as 64-bit words");

#define PRIME32_1 0x9E3779B1u
#define PRIME32_2 0x85EBCA77u
#define PRIME32_3 0xC2B2AE3Du
#define PRIME64_1 0x9E3779B185EBCA87u
#define PRIME64_2 0xC2B2AE3D27D4EB4Fu
#define PRIME64_3 0x165667B19E3779F9u
#define PRIME64_4 0x85EBCA77C2B2AE63u
#define PRIME64_5 0x27D4EB2F165667C5u
#define PRIME_MX1 0x165667919E3779F9u
#define PRIME_MX2 0x9FB21C651E98DF25u

#define LANES 8u
#define STRIPE 64u            /* bytes folded into the lanes per step; the secret slides by 8 */
#define STRIPES_PER_BLOCK 16u /* then the lanes are scrambled and the secret starts anew */
#define SECRET_BYTES 192u
#define SCRAMBLE_SECRET (SECRET_BYTES - STRIPE)
#define LAST_STRIPE_SECRET (SECRET_BYTES - STRIPE - 7u)
#define PREFETCH_BYTES 1024u  /* doubles the plain loop from memory; may point past the end */

static const uint8_t SECRET[SECRET_BYTES] __attribute__((aligned(64))) = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static const uint64_t INITIAL_LANES[LANES] = {
    PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1,
};

/* Folds all stripes of `bytes` > 240 bytes of data into the lanes. */
typedef void fold_fn(uint64_t lanes[LANES], const uint8_t *data, size_t bytes);

static uint32_t word32(const uint8_t *at)
{
    uint32_t word;
    memcpy(&word, at, sizeof(word));
    return word;
}

static uint64_t word64(const uint8_t *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof(word));
    return word;
}

static uint64_t rotate_left(uint64_t word, unsigned bits)
{
    return (word << bits) | (word >> (64 - bits));
}

static uint64_t multiply_fold(uint64_t a, uint64_t b)
{
    const unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t avalanche(uint64_t hash)
{
    hash ^= hash >> 37;
    hash *= PRIME_MX1;
    return hash ^ (hash >> 32);
}

/* The older XXH64 finish: the specification keeps it for 0..3 bytes. */
static uint64_t avalanche_xxh64(uint64_t hash)
{
    hash ^= hash >> 33;
    hash *= PRIME64_2;
    hash ^= hash >> 29;
    hash *= PRIME64_3;
    return hash ^ (hash >> 32);
}

static uint64_t mix16(const uint8_t *data, const uint8_t *secret)
{
    return multiply_fold(word64(data) ^ word64(secret), word64(data + 8) ^ word64(secret + 8));
}

static uint64_t hash_1_to_3(const uint8_t *data, size_t bytes)
{
    const uint32_t combined = (uint32_t)data[0] << 16 | (uint32_t)data[bytes >> 1] << 24 |
                              (uint32_t)data[bytes - 1] | (uint32_t)bytes << 8;
    return avalanche_xxh64(combined ^ word32(SECRET) ^ word32(SECRET + 4));
}

static uint64_t hash_4_to_8(const uint8_t *data, size_t bytes)
{
    const uint64_t input = ((uint64_t)word32(data) << 32) + word32(data + bytes - 4);
    uint64_t hash = input ^ word64(SECRET + 8) ^ word64(SECRET + 16);
    hash ^= rotate_left(hash, 49) ^ rotate_left(hash, 24);
    hash *= PRIME_MX2;
    hash ^= (hash >> 35) + bytes;
    hash *= PRIME_MX2;
    return hash ^ (hash >> 28);
}

static uint64_t hash_9_to_16(const uint8_t *data, size_t bytes)
{
    const uint64_t low = word64(data) ^ word64(SECRET + 24) ^ word64(SECRET + 32);
    const uint64_t high = word64(data + bytes - 8) ^ word64(SECRET + 40) ^ word64(SECRET + 48);
    return avalanche(bytes + __builtin_bswap64(low) + high + multiply_fold(low, high));
}

/* Pairs of 16-byte pieces from both ends towards the middle; they may overlap there. */
static uint64_t hash_17_to_128(const uint8_t *data, size_t bytes)
{
    const size_t pairs = (bytes + 31) / 32;
    uint64_t hash = bytes * PRIME64_1;
    for (size_t pair = 0; pair < pairs; pair++) {
        hash += mix16(data + 16 * pair, SECRET + 32 * pair);
        hash += mix16(data + bytes - 16 * (pair + 1), SECRET + 32 * pair + 16);
    }
    return avalanche(hash);
}

static uint64_t hash_129_to_240(const uint8_t *data, size_t bytes)
{
    const size_t pieces = bytes / 16;
    uint64_t hash = bytes * PRIME64_1;
    for (size_t piece = 0; piece < 8; piece++)
        hash += mix16(data + 16 * piece, SECRET + 16 * piece);
    hash = avalanche(hash);
    for (size_t piece = 8; piece < pieces; piece++)
        hash += mix16(data + 16 * piece, SECRET + 16 * (piece - 8) + 3);
    hash += mix16(data + bytes - 16, SECRET + 136 - 17);
    return avalanche(hash);
}

/* The last stripe always ends at the last byte; it may overlap the one before. */
static size_t stripes_before_last(size_t bytes)
{
    return (bytes - 1) / STRIPE;
}

static void accumulate_portable(uint64_t lanes[LANES], const uint8_t *data, const uint8_t *secret)
{
    for (size_t lane = 0; lane < LANES; lane++) {
        const uint64_t value = word64(data + 8 * lane);
        const uint64_t keyed = value ^ word64(secret + 8 * lane);
        lanes[lane ^ 1] += value;
        lanes[lane] += (keyed & 0xFFFFFFFFu) * (keyed >> 32);
    }
}

static void scramble_portable(uint64_t lanes[LANES])
{
    for (size_t lane = 0; lane < LANES; lane++) {
        lanes[lane] ^= lanes[lane] >> 47;
        lanes[lane] ^= word64(SECRET + SCRAMBLE_SECRET + 8 * lane);
        lanes[lane] *= PRIME32_1;
    }
}

static void fold_portable(uint64_t lanes[LANES], const uint8_t *data, size_t bytes)
{
    const size_t stripes = stripes_before_last(bytes);
    for (size_t stripe = 0; stripe < stripes; stripe++) {
        const size_t step = stripe % STRIPES_PER_BLOCK;
        __builtin_prefetch(data + stripe * STRIPE + PREFETCH_BYTES);
        accumulate_portable(lanes, data + stripe * STRIPE, SECRET + 8 * step);
        if (step == STRIPES_PER_BLOCK - 1)
            scramble_portable(lanes);
    }
    accumulate_portable(lanes, data + bytes - STRIPE, SECRET + LAST_STRIPE_SECRET);
}

#if defined(__x86_64__)

#define AVX2 __attribute__((target("avx2")))

static inline AVX2 __m256i accumulate_avx2(__m256i lanes, const uint8_t *data,
                                           const uint8_t *secret)
{
    const __m256i value = _mm256_loadu_si256((const __m256i *)data);
    const __m256i keyed = _mm256_xor_si256(value, _mm256_loadu_si256((const __m256i *)secret));
    const __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
    const __m256i swapped = _mm256_shuffle_epi32(value, _MM_SHUFFLE(1, 0, 3, 2));
    return _mm256_add_epi64(lanes, _mm256_add_epi64(product, swapped));
}

static inline AVX2 __m256i scramble_avx2(__m256i lanes, const uint8_t *secret)
{
    const __m256i prime = _mm256_set1_epi64x((long long)PRIME32_1);
    lanes = _mm256_xor_si256(lanes, _mm256_srli_epi64(lanes, 47));
    lanes = _mm256_xor_si256(lanes, _mm256_loadu_si256((const __m256i *)secret));
    const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(lanes, 32), prime);
    return _mm256_add_epi64(_mm256_mul_epu32(lanes, prime), _mm256_slli_epi64(high, 32));
}

static AVX2 void fold_avx2(uint64_t lanes[LANES], const uint8_t *data, size_t bytes)
{
    const size_t stripes = stripes_before_last(bytes);
    const uint8_t *last = data + bytes - STRIPE;
    const uint8_t *secret = SECRET;
    __m256i low = _mm256_loadu_si256((const __m256i *)lanes);
    __m256i high = _mm256_loadu_si256((const __m256i *)(lanes + 4));
    for (size_t stripe = 0; stripe < stripes; stripe++, data += STRIPE) {
        __builtin_prefetch(data + PREFETCH_BYTES);
        low = accumulate_avx2(low, data, secret);
        high = accumulate_avx2(high, data + 32, secret + 32);
        secret += 8;
        if (secret == SECRET + SCRAMBLE_SECRET) {
            low = scramble_avx2(low, secret);
            high = scramble_avx2(high, secret + 32);
            secret = SECRET;
        }
    }
    low = accumulate_avx2(low, last, SECRET + LAST_STRIPE_SECRET);
    high = accumulate_avx2(high, last + 32, SECRET + LAST_STRIPE_SECRET + 32);
    _mm256_storeu_si256((__m256i *)lanes, low);
    _mm256_storeu_si256((__m256i *)(lanes + 4), high);
}

static fold_fn *fastest_fold(void)
{
    return __builtin_cpu_supports("avx2") ? fold_avx2 : fold_portable;
}

#else

static fold_fn *fastest_fold(void)
{
    return fold_portable;
}

#endif

static uint64_t hash_long(const uint8_t *data, size_t bytes, fold_fn *fold)
{
    uint64_t lanes[LANES];
    uint64_t hash = bytes * PRIME64_1;
    memcpy(lanes, INITIAL_LANES, sizeof(lanes));
    fold(lanes, data, bytes);
    for (size_t lane = 0; lane < LANES; lane += 2) {
        const uint8_t *secret = SECRET + 11 + 8 * lane;
        hash += multiply_fold(lanes[lane] ^ word64(secret), lanes[lane + 1] ^ word64(secret + 8));
    }
    return avalanche(hash);
}

static uint64_t hash(const uint8_t *data, size_t bytes, fold_fn *fold)
{
    if (bytes > 240)
        return hash_long(data, bytes, fold);
    if (bytes > 128)
        return hash_129_to_240(data, bytes);
    if (bytes > 16)
        return hash_17_to_128(data, bytes);
    if (bytes > 8)
        return hash_9_to_16(data, bytes);
    if (bytes > 3)
        return hash_4_to_8(data, bytes);
    if (bytes > 0)
        return hash_1_to_3(data, bytes);
    return avalanche_xxh64(word64(SECRET + 56) ^ word64(SECRET + 64));
}

uint64_t kvs_xxh3(const void *data, size_t bytes)
{
    return hash(data, bytes, fastest_fold());
}

uint64_t kvs_xxh3_portable(const void *data, size_t bytes)
{
    return hash(data, bytes, fold_portable);
}
