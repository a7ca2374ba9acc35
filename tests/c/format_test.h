/*
 * format_test.h: what the tests of extent headers and of the index share: CHECK, which stays on in
 * every build, seeded random numbers, and a first page's checksum made to fit again.
 */
#ifndef KVS_FORMAT_TEST_H
#define KVS_FORMAT_TEST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format.h"
#include "xxh3.h"

#define CHECK(condition)                                                    \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                        \
        }                                                                   \
    } while (0)

/* splitmix64 */
static inline uint64_t next_random(uint64_t *state)
{
    *state += 0x9E3779B97F4A7C15u;
    uint64_t mixed = *state;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
    return mixed ^ (mixed >> 31);
}

/* After an edit of the first page. */
static inline void reseal(uint8_t *bytes)
{
    uint64_t sum = 0;
    memcpy(bytes + offsetof(struct kvs_disk_header, page_xxh3), &sum, sizeof(sum));
    sum = kvs_xxh3(bytes, KVS_FORMAT_PAGE_BYTES);
    memcpy(bytes + offsetof(struct kvs_disk_header, page_xxh3), &sum, sizeof(sum));
}

#endif
