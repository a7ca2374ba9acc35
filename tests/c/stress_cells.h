/*
 * stress_cells.h: the layout of stress_store.c, cells whose bytes follow from their key, and memory
 * with canaries around everything that a load may write.
 */
#ifndef STRESS_CELLS_H
#define STRESS_CELLS_H

#include <assert.h>
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
