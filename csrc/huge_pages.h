/*
 * huge_pages.h: what the arena needs of huge_pages.c beyond kvs_huge_alloc and kvs_huge_free, which
 * arena.h offers to everybody.
 */
#ifndef KVS_HUGE_PAGES_H
#define KVS_HUGE_PAGES_H

#include <stdint.h>

#define KVS_HUGE_PAGE_BYTES ((uint64_t)2 << 20)

/* `bytes` rounded up to whole huge pages, or 0 when that does not fit 64 bits. */
static inline uint64_t kvs_huge_round(uint64_t bytes)
{
    return (bytes + KVS_HUGE_PAGE_BYTES - 1) & ~(KVS_HUGE_PAGE_BYTES - 1);
}

/* Keeps [base, base + bytes) out of forked children and gives it a mapping, with a name in
 * /proc/PID/smaps, of its own. */
void kvs_huge_make_private(void *base, uint64_t bytes);

/* Share of [base, base + bytes), transparent huge pages only, 0..1. Reads /proc/self/smaps. */
double kvs_huge_coverage(const void *base, uint64_t bytes);

#endif
