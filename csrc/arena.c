/*
 * arena.c: the allocator of arena.h. Where the memory comes from is huge_pages.c.
 *
 * A run is a stretch of units, free or taken; runs tile each piece. Each piece is an arena of its
 * own as far as runs go: none crosses its end, so none is longer than PIECE_UNITS.
 *   tag[u]   length of the run that starts at unit u; FREE is set when it is free. The last unit of
 *            a free run carries the same tag, so that the run behind it finds its start. All other
 *            units are 0, so a wrong or second give is noticed.
 *   bin b    doubly linked list of the free runs of exactly b + 1 units (links: unit + 1, 0 ends)
 *   levels   three levels of bitmaps over the bins: the smallest bin that fits is three steps away
 * Take and give cost the same whatever the size of the arena. 12 to 16 bytes a unit, in zeroed
 * memory of which only what is used is ever touched.
 */
#include "arena.h"

#include "huge_pages.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

enum {
    PIECE_UNITS = 1 << 18,
    LEVELS = 3, /* 64 * 64 * 64 bins */
    NO_BIN = -1
};

#define FREE ((uint32_t)1 << 31)

_Static_assert(KVS_ARENA_PIECE_BYTES / KVS_ARENA_UNIT_BYTES == PIECE_UNITS, "one bin per length");
_Static_assert(PIECE_UNITS == 64 * 64 * 64, "three levels of 64 bits");

struct kvs_arena {
    char *base;
    uint64_t bytes;
    uint64_t free_units;
    enum kvs_page_kind kind;
    uint32_t units;
    uint32_t *tag;
    uint32_t *next;
    uint32_t *previous;
    uint32_t *bins; /* first run of each bin */
    uint64_t level0[PIECE_UNITS / 64];
    uint64_t level1[PIECE_UNITS / 64 / 64];
    uint64_t level2[1];
};

static uint64_t *level(struct kvs_arena *arena, int number)
{
    uint64_t *const levels[LEVELS] = {arena->level0, arena->level1, arena->level2};
    return levels[number];
}

static void mark_bin(struct kvs_arena *arena, uint32_t bin)
{
    for (int i = 0; i < LEVELS; i++, bin /= 64) {
        level(arena, i)[bin / 64] |= (uint64_t)1 << (bin % 64);
    }
}

static void unmark_bin(struct kvs_arena *arena, uint32_t bin)
{
    for (int i = 0; i < LEVELS; i++, bin /= 64) {
        level(arena, i)[bin / 64] &= ~((uint64_t)1 << (bin % 64));
        if (level(arena, i)[bin / 64] != 0) {
            return; /* the levels above still have something below them */
        }
    }
}

/* The first marked bin from `bin` on: up until a word has a bit, then down by the lowest bits. */
static int64_t first_bin_from(struct kvs_arena *arena, uint32_t bin)
{
    uint32_t words = PIECE_UNITS / 64;
    for (int up = 0; up < LEVELS && bin / 64 < words; up++, words /= 64) {
        const uint64_t word = level(arena, up)[bin / 64] & (~(uint64_t)0 << (bin % 64));
        if (word != 0) {
            uint32_t found = bin / 64 * 64 + (uint32_t)__builtin_ctzll(word);
            for (int down = up - 1; down >= 0; down--) {
                found = found * 64 + (uint32_t)__builtin_ctzll(level(arena, down)[found]);
            }
            return found;
        }
        bin = bin / 64 + 1;
    }
    return NO_BIN;
}

static int64_t last_bin(const struct kvs_arena *arena)
{
    if (arena->level2[0] == 0) {
        return NO_BIN;
    }
    uint32_t found = 63u - (uint32_t)__builtin_clzll(arena->level2[0]);
    found = found * 64 + 63u - (uint32_t)__builtin_clzll(arena->level1[found]);
    return found * 64 + 63u - (uint32_t)__builtin_clzll(arena->level0[found]);
}

/* Makes [first, first + length) a free run. */
static void add_free_run(struct kvs_arena *arena, uint32_t first, uint32_t length)
{
    uint32_t *head = &arena->bins[length - 1];
    arena->tag[first] = length | FREE;
    arena->tag[first + length - 1] = length | FREE;
    arena->previous[first] = 0;
    arena->next[first] = *head;
    if (*head != 0) {
        arena->previous[*head - 1] = first + 1;
    } else {
        mark_bin(arena, length - 1);
    }
    *head = first + 1;
}

/* Takes a free run out of its bin and wipes its tags; returns its length. */
static uint32_t remove_free_run(struct kvs_arena *arena, uint32_t first)
{
    const uint32_t length = arena->tag[first] & ~FREE;
    const uint32_t next = arena->next[first];
    const uint32_t previous = arena->previous[first];
    if (next != 0) {
        arena->previous[next - 1] = previous;
    }
    if (previous != 0) {
        arena->next[previous - 1] = next;
    } else {
        arena->bins[length - 1] = next;
        if (next == 0) {
            unmark_bin(arena, length - 1);
        }
    }
    arena->tag[first] = 0;
    arena->tag[first + length - 1] = 0;
    return length;
}

void *kvs_arena_take(struct kvs_arena *arena, uint64_t bytes)
{
    if (bytes == 0 || bytes > KVS_ARENA_PIECE_BYTES) {
        return NULL;
    }
    const uint32_t wanted = (uint32_t)((bytes + KVS_ARENA_UNIT_BYTES - 1) / KVS_ARENA_UNIT_BYTES);
    const int64_t bin = first_bin_from(arena, wanted - 1);
    if (bin == NO_BIN) {
        return NULL;
    }
    const uint32_t first = arena->bins[bin] - 1;
    const uint32_t length = remove_free_run(arena, first);
    if (length > wanted) {
        add_free_run(arena, first + wanted, length - wanted);
    }
    arena->tag[first] = wanted;
    arena->free_units -= wanted;
    return arena->base + (uint64_t)first * KVS_ARENA_UNIT_BYTES;
}

static uint32_t taken_at(const struct kvs_arena *arena, const void *address)
{
    const uint64_t offset = (uint64_t)((const char *)address - arena->base);
    assert(offset < arena->bytes && offset % KVS_ARENA_UNIT_BYTES == 0);
    const uint32_t first = (uint32_t)(offset / KVS_ARENA_UNIT_BYTES);
    assert(arena->tag[first] != 0 && (arena->tag[first] & FREE) == 0); /* not given back yet */
    return first;
}

void kvs_arena_cut(struct kvs_arena *arena, void *address, uint64_t bytes)
{
    const uint32_t first = taken_at(arena, address);
    const uint32_t length = arena->tag[first];
    assert(bytes % KVS_ARENA_UNIT_BYTES == 0);
    const uint64_t units = bytes / KVS_ARENA_UNIT_BYTES;
    assert(units > 0 && units < length);
    arena->tag[first] = (uint32_t)units;
    arena->tag[first + units] = length - (uint32_t)units;
}

void kvs_arena_give(struct kvs_arena *arena, void *address)
{
    uint32_t first = taken_at(arena, address);
    uint32_t length = arena->tag[first];
    arena->tag[first] = 0;
    arena->free_units += length;

    const uint32_t behind = first + length;
    if (behind < arena->units && behind % PIECE_UNITS != 0 && (arena->tag[behind] & FREE) != 0) {
        length += remove_free_run(arena, behind);
    }
    if (first % PIECE_UNITS != 0 && (arena->tag[first - 1] & FREE) != 0) {
        const uint32_t before = first - (arena->tag[first - 1] & ~FREE);
        length += remove_free_run(arena, before);
        first = before;
    }
    add_free_run(arena, first, length);
}

static int open_bookkeeping(struct kvs_arena *arena)
{
    const uint32_t bins = arena->units < PIECE_UNITS ? arena->units : PIECE_UNITS;
    arena->tag = calloc(arena->units, sizeof *arena->tag);
    arena->next = calloc(arena->units, sizeof *arena->next);
    arena->previous = calloc(arena->units, sizeof *arena->previous);
    arena->bins = calloc(bins, sizeof *arena->bins);
    if (!arena->tag || !arena->next || !arena->previous || !arena->bins) {
        return -ENOMEM;
    }
    for (uint32_t first = 0; first < arena->units; first += PIECE_UNITS) {
        const uint32_t left = arena->units - first;
        add_free_run(arena, first, left < PIECE_UNITS ? left : PIECE_UNITS);
    }
    arena->free_units = arena->units;
    return 0;
}

int kvs_arena_open(uint64_t bytes, struct kvs_arena **out)
{
    const uint64_t rounded = kvs_huge_round(bytes);
    if (bytes == 0) {
        return -EINVAL;
    }
    if (rounded == 0 || rounded / KVS_ARENA_UNIT_BYTES >= FREE) { /* 8 TiB */
        return -ENOMEM;
    }
    struct kvs_arena *arena = calloc(1, sizeof *arena);
    if (arena == NULL) {
        return -ENOMEM;
    }
    void *base = NULL;
    arena->bytes = rounded;
    arena->units = (uint32_t)(rounded / KVS_ARENA_UNIT_BYTES);
    int rc = kvs_huge_alloc(rounded, &base, &arena->kind);
    if (rc != 0) {
        goto fail;
    }
    arena->base = base;
    rc = open_bookkeeping(arena);
    if (rc != 0) {
        goto fail;
    }
    kvs_huge_make_private(base, rounded);
    *out = arena;
    return 0;

fail:
    kvs_arena_close(arena);
    return rc;
}

void kvs_arena_close(struct kvs_arena *arena)
{
    if (arena == NULL) {
        return;
    }
    kvs_huge_free(arena->base, arena->bytes);
    free(arena->tag);
    free(arena->next);
    free(arena->previous);
    free(arena->bins);
    free(arena);
}

void *kvs_arena_base(const struct kvs_arena *arena)
{
    return arena->base;
}

uint64_t kvs_arena_bytes(const struct kvs_arena *arena)
{
    return arena->bytes;
}

uint64_t kvs_arena_free_bytes(const struct kvs_arena *arena)
{
    return arena->free_units * KVS_ARENA_UNIT_BYTES;
}

uint64_t kvs_arena_largest_free(const struct kvs_arena *arena)
{
    return (uint64_t)(last_bin(arena) + 1) * KVS_ARENA_UNIT_BYTES;
}

enum kvs_page_kind kvs_arena_page_kind(const struct kvs_arena *arena)
{
    return arena->kind;
}

double kvs_arena_huge_coverage(const struct kvs_arena *arena)
{
    if (arena->kind == KVS_PAGES_HUGETLB) {
        return 1.0; /* by construction; smaps counts these elsewhere */
    }
    return kvs_huge_coverage(arena->base, arena->bytes);
}
