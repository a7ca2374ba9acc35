/*
 * index.h: where a block lies: from the 64-bit tag of its key to (extent number, position in it).
 *
 * Pure memory: no lock, no system call but allocation, and no key. A tag stands for a key (its
 * first bytes, mixed with the namespace by the caller) and is not kept here either: an entry holds
 * 24 bits of it, and the rest is asked of the caller, who keeps 8 bytes a block in his extent
 * table. Two keys may share a tag, so an answer is a hint until the key in the extent's header
 * agrees.
 *
 * Invariants:
 *   1. A tag may have several entries; they are found in the order in which they were inserted.
 *   2. While an entry is in the index, tag_of answers the tag that it was inserted with.
 *   3. The index grows and shrinks by one bucket at a time, so no call takes longer because there
 *      are many entries: an insert asks for the tags of one bucket at most (40 to 80 entries, when
 *      tags are evenly spread), a remove for none. Nothing is ever there twice.
 *   4. Beyond the first thousand entries it takes 10.1 to 11.7 bytes an entry, under 20 with the
 *      caller's tag. It never holds memory that it does not use.
 *   5. A failed insert leaves everything as it was.
 *
 * Cost: find 3-5 cache lines and one tag_of per answer; insert 1-2 tag_of on average.
 * Threads: finds may run side by side; insert and remove need the index alone.
 */
#ifndef KVS_INDEX_H
#define KVS_INDEX_H

#include <stdint.h>

/* The tag that (extent, position) was inserted with. Tags must be evenly spread over 64 bits. */
typedef uint64_t (*kvs_index_tag_fn)(void *arg, uint32_t extent, uint8_t position);

struct kvs_index;

/* 0 or -ENOMEM. */
int kvs_index_open(kvs_index_tag_fn tag_of, void *arg, struct kvs_index **out);
void kvs_index_close(struct kvs_index *index); /* NULL: does nothing */

/* 0 or -ENOMEM. The same entry inserted twice is there twice. */
int kvs_index_insert(struct kvs_index *index, uint64_t tag, uint32_t extent, uint8_t position);
/* Removes one such entry, the eldest. 0 or -ENOENT. Never fails for want of memory. */
int kvs_index_remove(struct kvs_index *index, uint64_t tag, uint32_t extent, uint8_t position);

/* Zero it, then call find until it answers 0. An insert or a remove ends its use. */
struct kvs_index_cursor {
    uint32_t extent; /* the answer */
    uint8_t position;
    uint32_t probed; /* entries looked at so far */
};

/* Finds of `near` and then of `far` are to come: their memory is fetched meanwhile. Not needed. */
void kvs_index_prefetch(const struct kvs_index *index, uint64_t near, uint64_t far);

/* 1: the cursor holds the next entry of the tag; 0: there is no other. */
int kvs_index_find(const struct kvs_index *index, uint64_t tag, struct kvs_index_cursor *cursor);

uint64_t kvs_index_count(const struct kvs_index *index);
uint64_t kvs_index_bytes(const struct kvs_index *index); /* of memory, without the caller's tags */

#endif
