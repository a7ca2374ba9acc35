/*
 * index.c: linear hashing over small buckets, see index.h.
 *
 * There are bucket_count buckets; a tag belongs to the one that its low bits name, or, while that
 * one is not there yet, to the one half as far (its buddy). So the index grows by one bucket that
 * takes its share of its buddy's entries, and shrinks by one that gives them back.
 *
 * A bucket is a chain of nodes, all full but the last, with the entries in the order in which they
 * came. A node is two cache lines, and a search reads the second one only where it has found
 * something. All nodes lie in one array without gaps: when one is given up, the last takes its
 * place. Splitting and joining keep the order of each tag's entries, which are always in one
 * bucket.
 */
#include "index.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "levels.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum {
    ENTRIES_MAX = 40, /* a bucket, on average: above it the index grows */
    ENTRIES_MIN = 25, /* below it shrinks */
    NODE_ENTRIES = 15,
    POSITION_BITS = 8
};

struct entry {
    uint32_t extent;
    uint32_t mark; /* 24 bits of the tag above the position */
};

struct node {
    uint32_t next; /* node of the bucket; not set in its last one */
    uint32_t marks[NODE_ENTRIES];
    uint32_t bucket;
    uint32_t extents[NODE_ENTRIES];
};
_Static_assert(sizeof(struct node) == 2 * KVS_CACHE_LINE, "no line is shared");

struct bucket {
    uint32_t first; /* node; not set while count is 0 */
    uint32_t count;
};

struct kvs_index {
    kvs_index_tag_fn tag_of;
    void *arg;
    struct kvs_levels buckets, nodes;
    uint32_t bucket_count, node_count;
    uint64_t entry_count;
};

/* The bits that choose the bucket are the low ones: these are others. */
static uint32_t mark_of(uint64_t tag, uint8_t position)
{
    return (uint32_t)(tag >> 40) << POSITION_BITS | position;
}

static struct bucket *bucket_at(const struct kvs_index *index, uint32_t number)
{
    return kvs_levels_at(&index->buckets, sizeof(struct bucket), number);
}

static struct node *node_at(const struct kvs_index *index, uint32_t number)
{
    return kvs_levels_at(&index->nodes, sizeof(struct node), number);
}

static uint32_t bucket_of(const struct kvs_index *index, uint64_t tag)
{
    uint32_t mask = UINT32_MAX >> __builtin_clz(index->bucket_count);
    uint32_t number = (uint32_t)tag & mask;
    return number < index->bucket_count ? number : number & mask >> 1;
}

/* The bucket that number's entries are in while it is not there itself. */
static uint32_t buddy_of(uint32_t number)
{
    return number & ~(1u << (31 - __builtin_clz(number)));
}

static uint32_t nodes_for(uint32_t entry_count)
{
    return entry_count / NODE_ENTRIES + (entry_count % NODE_ENTRIES > 0);
}

/* ---- a bucket ---- */

/* Where the number of its node `at` is or will be written, counted from 0. */
static uint32_t *link_to(const struct kvs_index *index, struct bucket *bucket, uint32_t at)
{
    uint32_t *link = &bucket->first;
    for (; at > 0; at--) {
        link = &node_at(index, *link)->next;
    }
    return link;
}

/* The node of entry `at`, for loops over all of them: `node` is that of the one before. */
static struct node *node_of(const struct kvs_index *index, const struct bucket *bucket,
                            struct node *node, uint32_t at)
{
    if (at % NODE_ENTRIES > 0) {
        return node;
    }
    return node_at(index, at == 0 ? bucket->first : node->next);
}

static struct entry entry_of(const struct node *node, uint32_t at)
{
    return (struct entry){node->extents[at % NODE_ENTRIES], node->marks[at % NODE_ENTRIES]};
}

static void entry_set(struct node *node, uint32_t at, struct entry entry)
{
    node->extents[at % NODE_ENTRIES] = entry.extent;
    node->marks[at % NODE_ENTRIES] = entry.mark;
}

/* Bit i: the tag of entry i may be the one that `mark` (at position 0) is of. Also of entries that
 * are not there. */
static uint32_t candidates(const struct node *node, uint32_t mark)
{
    uint32_t found = 0;
#ifdef __SSE2__
    const __m128i wanted = _mm_set1_epi32((int)(mark >> POSITION_BITS));
    _Static_assert(offsetof(struct node, marks) == 4, "four vectors, the first begins with `next`");
    for (uint32_t i = 0; i < 4; i++) {
        __m128i marks = _mm_load_si128((const __m128i *)(const void *)node + i);
        __m128i same = _mm_cmpeq_epi32(_mm_srli_epi32(marks, POSITION_BITS), wanted);
        found |= (uint32_t)_mm_movemask_ps(_mm_castsi128_ps(same)) << 4 * i;
    }
    return found >> 1;
#else
    for (uint32_t i = 0; i < NODE_ENTRIES; i++) {
        found |= (uint32_t)((node->marks[i] ^ mark) >> POSITION_BITS == 0) << i;
    }
    return found;
#endif
}

/* Room for so many nodes more. 0 or -ENOMEM. */
static int nodes_reserve(struct kvs_index *index, uint32_t count)
{
    int error = index->node_count > UINT32_MAX - count ? -ENOMEM : 0;
    for (uint32_t i = 0; i < count && !error; i++) {
        error = kvs_levels_reach(&index->nodes, sizeof(struct node), index->node_count + i);
    }
    return error;
}

/* Behind all others. A node is reserved for it. */
static void push(struct kvs_index *index, uint32_t number, struct entry entry)
{
    struct bucket *bucket = bucket_at(index, number);
    uint32_t *link = link_to(index, bucket, bucket->count / NODE_ENTRIES);
    if (bucket->count % NODE_ENTRIES == 0) {
        *link = index->node_count++;
        node_at(index, *link)->bucket = number;
    }
    entry_set(node_at(index, *link), bucket->count++, entry);
}

/* The last node of all takes the place of one that no bucket has any more. */
static void node_free(struct kvs_index *index, uint32_t free_number)
{
    uint32_t last = --index->node_count;
    if (free_number != last) {
        const struct node *moved = node_at(index, last);
        uint32_t *link = &bucket_at(index, moved->bucket)->first;
        while (*link != last) {
            link = &node_at(index, *link)->next;
        }
        *node_at(index, free_number) = *moved;
        *link = free_number;
    }
    /* A little late, so that a count that goes up and down costs nothing. */
    kvs_levels_shrink(&index->nodes, index->node_count + index->node_count / 8);
}

/* Keeps the first `count` entries. */
static void cut(struct kvs_index *index, uint32_t number, uint32_t count)
{
    struct bucket *bucket = bucket_at(index, number);
    while (nodes_for(bucket->count) > nodes_for(count)) {
        uint32_t last = nodes_for(bucket->count) - 1;
        uint32_t gone = *link_to(index, bucket, last);
        bucket->count = last * NODE_ENTRIES;
        node_free(index, gone);
    }
    bucket->count = count;
}

/* ---- growing and shrinking ---- */

/* Where memory is short for it, the buckets stay longer than they should be. */
static void grow(struct kvs_index *index)
{
    uint32_t new = index->bucket_count, old = new > INT32_MAX ? 0 : buddy_of(new);
    struct bucket *bucket = bucket_at(index, old);
    if (new > INT32_MAX || kvs_levels_reach(&index->buckets, sizeof(*bucket), new) < 0 ||
        nodes_reserve(index, nodes_for(bucket->count)) < 0) {
        return;
    }
    *bucket_at(index, new) = (struct bucket){0};
    index->bucket_count++;
    struct node *from = NULL, *to = NULL;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < bucket->count; i++) {
        from = node_of(index, bucket, from, i);
        struct entry entry = entry_of(from, i);
        uint64_t tag = index->tag_of(index->arg, entry.extent, (uint8_t)entry.mark);
        if (bucket_of(index, tag) == new) {
            push(index, new, entry);
        } else {
            to = node_of(index, bucket, to, kept);
            entry_set(to, kept++, entry);
        }
    }
    cut(index, old, kept);
}

static void shrink(struct kvs_index *index)
{
    uint32_t last = index->bucket_count - 1;
    struct bucket *bucket = bucket_at(index, last);
    if (nodes_reserve(index, nodes_for(bucket->count)) < 0) {
        return;
    }
    struct node *from = NULL;
    for (uint32_t i = 0; i < bucket->count; i++) {
        from = node_of(index, bucket, from, i);
        push(index, buddy_of(last), entry_of(from, i));
    }
    cut(index, last, 0);
    index->bucket_count = last;
    kvs_levels_shrink(&index->buckets, last);
}

/* ---- the face ---- */

int kvs_index_open(kvs_index_tag_fn tag_of, void *arg, struct kvs_index **out)
{
    struct kvs_index *index = calloc(1, sizeof(*index));
    if (!index || kvs_levels_reach(&index->buckets, sizeof(struct bucket), 0) < 0) {
        free(index);
        return -ENOMEM;
    }
    index->tag_of = tag_of;
    index->arg = arg;
    index->bucket_count = 1;
    *bucket_at(index, 0) = (struct bucket){0};
    *out = index;
    return 0;
}

void kvs_index_close(struct kvs_index *index)
{
    if (index) {
        kvs_levels_shrink(&index->buckets, 0);
        kvs_levels_shrink(&index->nodes, 0);
        free(index);
    }
}

int kvs_index_insert(struct kvs_index *index, uint64_t tag, uint32_t extent, uint8_t position)
{
    if (nodes_reserve(index, 1) < 0) {
        return -ENOMEM;
    }
    push(index, bucket_of(index, tag), (struct entry){extent, mark_of(tag, position)});
    index->entry_count++;
    if (index->entry_count > (uint64_t)index->bucket_count * ENTRIES_MAX) {
        grow(index);
    }
    return 0;
}

/* Closes the gap at `at`: those behind it in the node move up, and the next node's first one. */
static void move_up(struct node *node, uint32_t at, uint32_t behind, const struct node *next)
{
    uint32_t *marks = node->marks + at, *extents = node->extents + at;
    memmove(marks, marks + 1, behind * sizeof(*marks));
    memmove(extents, extents + 1, behind * sizeof(*extents));
    if (next) {
        entry_set(node, NODE_ENTRIES - 1, entry_of(next, 0));
    }
}

static void take_out(struct kvs_index *index, uint32_t number, uint32_t at, struct node *node)
{
    struct bucket *bucket = bucket_at(index, number);
    uint32_t end = at - at % NODE_ENTRIES + NODE_ENTRIES; /* of the node */
    while (end < bucket->count) {
        struct node *next = node_of(index, bucket, node, end);
        move_up(node, at % NODE_ENTRIES, end - at - 1, next);
        node = next;
        at = end;
        end += NODE_ENTRIES;
    }
    move_up(node, at % NODE_ENTRIES, bucket->count - at - 1, NULL);
    cut(index, number, bucket->count - 1);
    index->entry_count--;
    if (index->bucket_count > 1 &&
        index->entry_count < (uint64_t)index->bucket_count * ENTRIES_MIN) {
        shrink(index);
    }
}

/* Of the bucket's entries from *at on the first that may be of the tag that mark is of; *node is
 * its node. 0: there is none. */
static int search(const struct kvs_index *index, const struct bucket *bucket, uint32_t mark,
                  struct node **node, uint32_t *at)
{
    uint32_t first = 0;
    struct node *in = NULL;
    for (; first < bucket->count; first += NODE_ENTRIES) {
        in = node_of(index, bucket, in, first);
        if (first + NODE_ENTRIES <= *at) {
            continue;
        }
        uint32_t found = candidates(in, mark);
        if (first < *at) {
            found &= ~0u << (*at - first);
        }
        if (bucket->count - first < NODE_ENTRIES) {
            found &= (1u << (bucket->count - first)) - 1;
        }
        if (found) {
            *at = first + (uint32_t)__builtin_ctz(found);
            *node = in;
            return 1;
        }
    }
    return 0;
}

int kvs_index_remove(struct kvs_index *index, uint64_t tag, uint32_t extent, uint8_t position)
{
    uint32_t number = bucket_of(index, tag), mark = mark_of(tag, position);
    struct node *node;
    for (uint32_t at = 0; search(index, bucket_at(index, number), mark, &node, &at); at++) {
        struct entry entry = entry_of(node, at);
        if (entry.extent == extent && entry.mark == mark) {
            take_out(index, number, at, node);
            return 0;
        }
    }
    return -ENOENT;
}

int kvs_index_find(const struct kvs_index *index, uint64_t tag, struct kvs_index_cursor *cursor)
{
    const struct bucket *bucket = bucket_at(index, bucket_of(index, tag));
    uint32_t mark = mark_of(tag, 0);
    struct node *node;
    for (uint32_t at = cursor->probed; search(index, bucket, mark, &node, &at); at++) {
        struct entry entry = entry_of(node, at);
        uint8_t position = (uint8_t)entry.mark;
        if (index->tag_of(index->arg, entry.extent, position) == tag) {
            *cursor = (struct kvs_index_cursor){entry.extent, position, at + 1};
            return 1;
        }
    }
    cursor->probed = bucket->count;
    return 0;
}

void kvs_index_prefetch(const struct kvs_index *index, uint64_t near, uint64_t far)
{
    const struct bucket *bucket = bucket_at(index, bucket_of(index, near));
    __builtin_prefetch(bucket_at(index, bucket_of(index, far)));
    if (bucket->count > 0) {
        __builtin_prefetch(node_at(index, bucket->first)->marks);
        __builtin_prefetch(node_at(index, bucket->first)->extents);
    }
}

uint64_t kvs_index_count(const struct kvs_index *index)
{
    return index->entry_count;
}

uint64_t kvs_index_bytes(const struct kvs_index *index)
{
    return sizeof(*index) + (uint64_t)index->node_count * sizeof(struct node) +
           (uint64_t)index->bucket_count * sizeof(struct bucket);
}
