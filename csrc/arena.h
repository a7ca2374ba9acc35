/*
 * arena.h: one big piece of page-aligned memory that regions are cut from.
 *
 * Huge-page backed (hugetlb when reserved, else madvise + MADV_COLLAPSE): on the disks we measured
 * that is worth 2-2.8x of bandwidth. Allocation unit 4096 bytes, best fit, neighbours merge; no
 * allocation crosses a multiple of KVS_ARENA_PIECE_BYTES, because io_uring registers memory in
 * pieces of at most 1 GiB.
 *
 * Not thread-safe: its owner (the pool) holds a lock. The bookkeeping lives outside the memory, so
 * a caller who scribbles over a view cannot break the allocator.
 */
#ifndef KVS_ARENA_H
#define KVS_ARENA_H

#include <stdint.h>

#define KVS_ARENA_PIECE_BYTES ((uint64_t)1 << 30)
#define KVS_ARENA_UNIT_BYTES 4096u

struct kvs_arena;

enum kvs_page_kind { KVS_PAGES_SMALL, KVS_PAGES_TRANSPARENT_HUGE, KVS_PAGES_HUGETLB };

/* bytes is rounded up to 2 MiB. -ENOMEM when the memory cannot be had. */
int kvs_arena_open(uint64_t bytes, struct kvs_arena **out);
void kvs_arena_close(struct kvs_arena *arena);

/* Address of `bytes` (rounded up to units), or NULL when no free run is long enough. */
void *kvs_arena_take(struct kvs_arena *arena, uint64_t bytes);
/* What take returned becomes two, each to be given back alone: the second begins `bytes` (whole
 * units) behind the first. */
void kvs_arena_cut(struct kvs_arena *arena, void *address, uint64_t bytes);
/* `address` as take or cut made it. */
void kvs_arena_give(struct kvs_arena *arena, void *address);

void *kvs_arena_base(const struct kvs_arena *arena);
uint64_t kvs_arena_bytes(const struct kvs_arena *arena);
uint64_t kvs_arena_free_bytes(const struct kvs_arena *arena);
uint64_t kvs_arena_largest_free(const struct kvs_arena *arena);
enum kvs_page_kind kvs_arena_page_kind(const struct kvs_arena *arena);
/* Share of the arena backed by huge pages, 0..1, measured from /proc/self/smaps. */
double kvs_arena_huge_coverage(const struct kvs_arena *arena);

/* Stand-alone huge-page memory for kvstore.alloc(): same backing, zeroed, 2 MiB aligned. */
int kvs_huge_alloc(uint64_t bytes, void **out, enum kvs_page_kind *kind);
void kvs_huge_free(void *address, uint64_t bytes);

#endif
