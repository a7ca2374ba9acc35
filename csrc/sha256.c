/* SHA-256 with x86 SHA instructions or in plain C; see sha256.h. */
#include "sha256.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define LENGTH_OFFSET (KVS_SHA256_CHUNK - 8u) /* the message length in bits ends the last chunk */

static const uint32_t INITIAL_STATE[8] = {
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
};

static const uint32_t ROUND_CONSTANTS[64] __attribute__((aligned(16))) = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t load_big_endian(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void store_big_endian(uint8_t *at, uint32_t word)
{
    at[0] = (uint8_t)(word >> 24);
    at[1] = (uint8_t)(word >> 16);
    at[2] = (uint8_t)(word >> 8);
    at[3] = (uint8_t)word;
}

static uint32_t rotate_right(uint32_t word, unsigned bits)
{
    return (word >> bits) | (word << (32 - bits));
}

static void expand_message(uint32_t message[64], const uint8_t *chunk)
{
    for (size_t i = 0; i < 16; i++)
        message[i] = load_big_endian(chunk + 4 * i);
    for (size_t i = 16; i < 64; i++) {
        const uint32_t near = message[i - 15], far = message[i - 2];
        const uint32_t sigma0 = rotate_right(near, 7) ^ rotate_right(near, 18) ^ (near >> 3);
        const uint32_t sigma1 = rotate_right(far, 17) ^ rotate_right(far, 19) ^ (far >> 10);
        message[i] = message[i - 16] + sigma0 + message[i - 7] + sigma1;
    }
}

static void compress_one_portable(uint32_t state[8], const uint8_t *chunk)
{
    uint32_t message[64];
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    expand_message(message, chunk);
    for (size_t i = 0; i < 64; i++) {
        const uint32_t sum1 = rotate_right(e, 6) ^ rotate_right(e, 11) ^ rotate_right(e, 25);
        const uint32_t choice = (e & f) ^ (~e & g);
        const uint32_t first = h + sum1 + choice + ROUND_CONSTANTS[i] + message[i];
        const uint32_t sum0 = rotate_right(a, 2) ^ rotate_right(a, 13) ^ rotate_right(a, 22);
        const uint32_t second = sum0 + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + first;
        d = c, c = b, b = a, a = first + second;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

static void compress_portable(uint32_t state[8], const uint8_t *chunks, size_t chunk_count)
{
    for (size_t i = 0; i < chunk_count; i++)
        compress_one_portable(state, chunks + i * KVS_SHA256_CHUNK);
}

#if defined(__x86_64__)

#define SHA_NI __attribute__((target("sha,sse4.1,ssse3")))

/* Message words 4g..4g+3 from the sixteen words before them, for group g >= 4. */
static inline SHA_NI __m128i next_words(const __m128i words[4], size_t group)
{
    const __m128i oldest = words[group % 4], newest = words[(group + 3) % 4];
    const __m128i seven_back = _mm_alignr_epi8(newest, words[(group + 2) % 4], 4);
    const __m128i partial = _mm_sha256msg1_epu32(oldest, words[(group + 1) % 4]);
    return _mm_sha256msg2_epu32(_mm_add_epi32(partial, seven_back), newest);
}

/* The instructions want the eight state words as two registers: {f,e,b,a} and {h,g,d,c}. */
static SHA_NI void compress_sha_ni(uint32_t state[8], const uint8_t *chunks, size_t chunk_count)
{
    const __m128i byte_swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    const __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xB1);
    const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(state + 4)), 0x1B);
    __m128i abef = _mm_alignr_epi8(cdab, efgh, 8);
    __m128i cdgh = _mm_blend_epi16(efgh, cdab, 0xF0);

    for (; chunk_count > 0; chunk_count--, chunks += KVS_SHA256_CHUNK) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        __m128i words[4];
#pragma GCC unroll 16
        for (size_t group = 0; group < 16; group++) {
            const __m128i *constants = (const __m128i *)(ROUND_CONSTANTS + 4 * group);
            __m128i *current = &words[group % 4];
            if (group < 4)
                *current =
                    _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)chunks + group), byte_swap);
            else
                *current = next_words(words, group);
            const __m128i keyed = _mm_add_epi32(*current, _mm_load_si128(constants));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, keyed);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(keyed, 0x0E));
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }

    const __m128i feba = _mm_shuffle_epi32(abef, 0x1B);
    const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xB1);
    _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(feba, dchg, 0xF0));
    _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

static int has_sha_ni(void)
{
    return __builtin_cpu_supports("sha") && __builtin_cpu_supports("sse4.1");
}

#endif

void kvs_sha256_init_portable(struct kvs_sha256 *sha)
{
    memcpy(sha->state, INITIAL_STATE, sizeof(sha->state));
    sha->total_bytes = 0;
    sha->compress = compress_portable;
}

void kvs_sha256_init(struct kvs_sha256 *sha)
{
    kvs_sha256_init_portable(sha);
#if defined(__x86_64__)
    if (has_sha_ni())
        sha->compress = compress_sha_ni;
#endif
}

void kvs_sha256_update(struct kvs_sha256 *sha, const void *data, size_t bytes)
{
    const uint8_t *next = data;
    const size_t pending = sha->total_bytes % KVS_SHA256_CHUNK;
    if (bytes == 0)
        return;
    sha->total_bytes += bytes;
    if (pending > 0) {
        const size_t room = KVS_SHA256_CHUNK - pending;
        const size_t taken = bytes < room ? bytes : room;
        memcpy(sha->pending + pending, next, taken);
        if (taken < room)
            return;
        sha->compress(sha->state, sha->pending, 1);
        next += taken;
        bytes -= taken;
    }
    if (bytes >= KVS_SHA256_CHUNK)
        sha->compress(sha->state, next, bytes / KVS_SHA256_CHUNK);
    memcpy(sha->pending, next + bytes - bytes % KVS_SHA256_CHUNK, bytes % KVS_SHA256_CHUNK);
}

void kvs_sha256_final(struct kvs_sha256 *sha, uint8_t digest[KVS_SHA256_BYTES])
{
    const uint64_t bits = sha->total_bytes * 8;
    size_t used = sha->total_bytes % KVS_SHA256_CHUNK;
    sha->pending[used++] = 0x80;
    if (used > LENGTH_OFFSET) {
        memset(sha->pending + used, 0, KVS_SHA256_CHUNK - used);
        sha->compress(sha->state, sha->pending, 1);
        used = 0;
    }
    memset(sha->pending + used, 0, LENGTH_OFFSET - used);
    store_big_endian(sha->pending + LENGTH_OFFSET, (uint32_t)(bits >> 32));
    store_big_endian(sha->pending + LENGTH_OFFSET + 4, (uint32_t)bits);
    sha->compress(sha->state, sha->pending, 1);
    for (size_t i = 0; i < 8; i++)
        store_big_endian(digest + 4 * i, sha->state[i]);
}
