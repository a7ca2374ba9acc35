/*
 * levels.h: an array that grows without moving what it holds, so that growing costs the same
 * whatever its length is. A leaf: knows no store, takes no lock.
 *
 * Level 0 has element 0, level k the elements [2^(k-1), 2^k). New memory is not cleared and, where
 * a level is large, not touched: it takes room when its elements are first written.
 */
#ifndef KVS_LEVELS_H
#define KVS_LEVELS_H

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

enum { KVS_LEVELS = 33, KVS_CACHE_LINE = 64 };

struct kvs_levels {
    char *level[KVS_LEVELS];
};

static inline uint32_t kvs_level_of(uint32_t at)
{
    return at == 0 ? 0 : 32 - (uint32_t)__builtin_clz(at);
}

static inline uint32_t kvs_level_first(uint32_t level)
{
    return level == 0 ? 0 : 1u << (level - 1);
}

/* Element `at`, whose level is there. */
static inline void *kvs_levels_at(const struct kvs_levels *levels, size_t element_bytes,
                                  uint32_t at)
{
    uint32_t level = kvs_level_of(at);
    return levels->level[level] + (size_t)(at - kvs_level_first(level)) * element_bytes;
}

/* Makes room for element `at`. 0 or -ENOMEM. */
static inline int kvs_levels_reach(struct kvs_levels *levels, size_t element_bytes, uint32_t at)
{
    uint32_t level = kvs_level_of(at);
    size_t count = level == 0 ? 1 : kvs_level_first(level);
    void *memory = NULL;
    if (!levels->level[level] && posix_memalign(&memory, KVS_CACHE_LINE, count * element_bytes)) {
        return -ENOMEM;
    }
    levels->level[level] = levels->level[level] ? levels->level[level] : memory;
    return 0;
}

/* Gives back the levels that hold no element below `count`. */
static inline void kvs_levels_shrink(struct kvs_levels *levels, uint32_t count)
{
    for (uint32_t level = count == 0 ? 0 : kvs_level_of(count - 1) + 1; level < KVS_LEVELS;
         level++) {
        free(levels->level[level]);
        levels->level[level] = NULL;
    }
}

#endif
