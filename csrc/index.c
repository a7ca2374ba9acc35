/*
 * index.c: linear hashing over small buckets, see index.h.
 *
 * There are bucket_count buckets; a tag belongs to the one that its low bits name, or, while that
 * one is not there yet, to the one half as far (its buddy). So the index grows by one bucket that
 * takes its share of its buddy's entries, and shrinks by one that gives them back.
 *
 * A bucket is a chain of nodes of two cache lines, all full but the last, with the entries in the
 * order in which they came. All nodes lie in one array without gaps: when one is given up, the last
 * takes its place. Splitting and joining keep the order of each tag's entries, which are always in
 * one bucket.
 */
#include "index.h"

#include <errno.h>
#include <stdlib.h>

#include "levels.h"

enum {
    ENTRIES_MAX = 40, /* a bucket, on average: above it the index grows */
    ENTRIES_MIN = 25, /* below it shrinks */
    NODE_ENTRIES = 15
};

struct entry {
    uint32_t extent;
    uint32_t mark; /* 24 bits of the tag above the position */
};

struct node {
    uint32_t bucket;
    uint32_t next; /* node of the bucket; not set in its last one */
    struct entry entries[NODE_ENTRIES];
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
    return (uint32_t)(tag >> 40) << 8 | position;
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

/* Entry `at`, for loops over all of them: *node is that of the one before. */
static struct entry *entry_next(const struct kvs_index *index, const struct bucket *bucket,
                                struct node **node, uint32_t at)
{
    if (at % NODE_ENTRIES == 0) {
        *node = node_at(index, at == 0 ? bucket->first : (*node)->next);
    }
    return &(*node)->entries[at % NODE_ENTRIES];
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
    node_at(index, *link)->entries[bucket->count++ % NODE_ENTRIES] = entry;
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
        struct entry entry = *entry_next(index, bucket, &from, i);
        uint64_t tag = index->tag_of(index->arg, entry.extent, (uint8_t)entry.mark);
        if (bucket_of(index, tag) == new) {
            push(index, new, entry);
        } else {
            *entry_next(index, bucket, &to, kept++) = entry;
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
        push(index, buddy_of(last), *entry_next(index, bucket, &from, i));
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

/* Those behind it move up. */
static void take_out(struct kvs_index *index, uint32_t number, uint32_t at, struct node *node)
{
    struct bucket *bucket = bucket_at(index, number);
    struct entry *to = &node->entries[at % NODE_ENTRIES];
    while (++at < bucket->count) {
        struct entry *from = entry_next(index, bucket, &node, at);
        *to = *from;
        to = from;
    }
    cut(index, number, bucket->count - 1);
    index->entry_count--;
    if (index->bucket_count > 1 &&
        index->entry_count < (uint64_t)index->bucket_count * ENTRIES_MIN) {
        shrink(index);
    }
}

int kvs_index_remove(struct kvs_index *index, uint64_t tag, uint32_t extent, uint8_t position)
{
    uint32_t number = bucket_of(index, tag), mark = mark_of(tag, position);
    struct bucket *bucket = bucket_at(index, number);
    struct node *node = NULL;
    for (uint32_t i = 0; i < bucket->count; i++) {
        const struct entry *entry = entry_next(index, bucket, &node, i);
        if (entry->extent == extent && entry->mark == mark) {
            take_out(index, number, i, node);
            return 0;
        }
    }
    return -ENOENT;
}

int kvs_index_find(const struct kvs_index *index, uint64_t tag, struct kvs_index_cursor *cursor)
{
    const struct bucket *bucket = bucket_at(index, bucket_of(index, tag));
    struct node *node = NULL;
    uint32_t mark = mark_of(tag, 0);
    for (uint32_t i = 0; i < bucket->count; i++) {
        const struct entry *entry = entry_next(index, bucket, &node, i);
        uint8_t position = (uint8_t)entry->mark;
        if (i >= cursor->probed && (entry->mark ^ position) == mark &&
            index->tag_of(index->arg, entry->extent, position) == tag) {
            *cursor = (struct kvs_index_cursor){entry->extent, position, i + 1};
            return 1;
        }
    }
    cursor->probed = bucket->count;
    return 0;
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
