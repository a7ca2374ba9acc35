/*
 * stress_cells.h: what the stress programs of a store share: a layout, chains, cells whose bytes
 * follow from their key, and memory with canaries around everything that a load may write.
 */
#ifndef STRESS_CELLS_H
#define STRESS_CELLS_H

#include <assert.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "kvs.h"

enum {
    LAYERS = 4,
    TOKENS = 16,
    BLOCKS = 48, /* of the longest chain: three extents */
    PARTS = 4,
    CELL_MAX = 4096,
    CANARY = 0xa5
};

#define WAIT_NS (60ll * 1000000000)

static const uint32_t part_counts[LAYERS] = {1, 1, 0, 2};
static const uint32_t part_bytes[PARTS] = {4096, 2112, 1024, 528};
static const uint32_t cell_bytes[LAYERS] = {4096, 2112, 0, 1552};
static const uint32_t first_part[LAYERS] = {0, 1, 2, 2};

/* The bytes of a cell follow from its key and layer, so that any chain can be checked. */
static inline void cell_fill(uint8_t *cell, const struct kvs_key *key, uint32_t layer)
{
    uint64_t state;
    memcpy(&state, key->bytes, sizeof(state));
    state += layer;
    for (uint32_t i = 0; i < cell_bytes[layer]; i += 8) {
        uint64_t left = cell_bytes[layer] - i;
        state = state * 6364136223846793005u + 1442695040888963407u;
        memcpy(cell + i, &state, left < 8 ? left : 8);
    }
}

static inline int64_t finish(struct kvs_ticket *ticket)
{
    int64_t result = -1;
    assert(ticket && kvs_ticket_wait(ticket, WAIT_NS) == 0);
    assert(kvs_ticket_done(ticket, &result) == 1);
    kvs_ticket_close(ticket);
    return result;
}

/* What is shown of a layer, block after block; 0 when nothing is (any more). */
static inline uint64_t check_spans(struct kvs_load *load, const struct kvs_key *keys,
                                   uint64_t first, uint32_t layer)
{
    struct kvs_span span;
    uint8_t right[CELL_MAX];
    uint64_t seen = first;
    for (uint32_t i = 0; kvs_load_span(load, layer, i, &span) == 0; i++) {
        assert(span.first_block == seen);
        for (uint64_t block = 0; block < span.block_count && cell_bytes[layer]; block++) {
            cell_fill(right, &keys[seen + block], layer);
            assert(memcmp((const uint8_t *)span.cells + block * cell_bytes[layer], right,
                          cell_bytes[layer]) == 0);
        }
        seen += span.block_count;
    }
    return seen - first;
}

/* The layout of these cells. */
static inline void stress_cache_open(struct kvs_store *store, struct kvs_cache **out)
{
    struct kvs_layout layout = {.layer_count = LAYERS,
                                .block_tokens = TOKENS,
                                .extent_blocks = 16,
                                .part_counts = part_counts,
                                .part_bytes = part_bytes,
                                .description = "{}"};
    memset(layout.fingerprint, 9, sizeof(layout.fingerprint));
    assert(kvs_cache_open(store, &layout, out) == 0);
}

/* Chains whose pairs share their first blocks. */
static inline void chain_keys(int32_t chain, int32_t shared_blocks, struct kvs_key *out)
{
    int32_t tokens[BLOCKS * TOKENS];
    for (int32_t i = 0; i < BLOCKS * TOKENS; i++) {
        tokens[i] = (i < shared_blocks * TOKENS ? chain / 2 : 100 + chain) * 1000 + i;
    }
    assert(kvs_keys_chain(tokens, BLOCKS * TOKENS, TOKENS, NULL, 0, NULL, 0, out) == 0);
}

static inline uint32_t descriptors(void)
{
    uint32_t count = 0;
    DIR *directory = opendir("/proc/self/fd");
    assert(directory);
    while (readdir(directory)) {
        count++;
    }
    closedir(directory);
    return count;
}

struct memory {
    uint8_t *base[PARTS];
    size_t shift; /* 0: direct reads are possible */
};

static inline size_t part_room(uint32_t part)
{
    return (size_t)BLOCKS * part_bytes[part] + 3 * 4096;
}

static inline void memory_open(struct memory *memory)
{
    for (uint32_t part = 0; part < PARTS; part++) {
        memory->base[part] = aligned_alloc(4096, (part_room(part) + 4095) / 4096 * 4096);
    }
}

/* The cells of a layer, part by part, and the canaries around all of its memory. */
static inline void check_memory(const struct memory *memory, const struct kvs_key *keys,
                                uint32_t layer, uint64_t first, uint64_t blocks, uint64_t asked)
{
    uint8_t right[CELL_MAX];
    uint32_t at = 0;
    for (uint32_t i = 0; i < part_counts[layer]; i++) {
        uint32_t part = first_part[layer] + i, bytes = part_bytes[part];
        const uint8_t *base = memory->base[part];
        for (uint64_t block = 0; block < blocks; block++) {
            cell_fill(right, &keys[first + block], layer);
            assert(memcmp(base + 4096 + memory->shift + block * bytes, right + at, bytes) == 0);
        }
        for (size_t j = 0; j < 4096 + memory->shift; j++) {
            assert(base[j] == CANARY);
        }
        for (size_t j = 4096 + memory->shift + asked * bytes; j < part_room(part); j++) {
            assert(base[j] == CANARY);
        }
        at += bytes;
    }
}

#endif
