/*
 * extents.h: the part of store.h about all extents together: table, order of use, end.
 */
#ifndef KVS_EXTENTS_H
#define KVS_EXTENTS_H

#include "types.h"

/* ---- extents.c: the table and its index entries ---- */
static inline struct kvs_extent *kvs_extent_at(const struct kvs_store *store, uint32_t number)
{
    return *(struct kvs_extent **)kvs_levels_at(&store->extents, sizeof(void *), number);
}
/* What is kept in memory of all blocks and extents, open files and the RAM tier apart. */
uint64_t kvs_index_memory_locked(const struct kvs_store *store);
uint64_t kvs_tag(const struct kvs_namespace *ns, const struct kvs_key *key);
uint64_t kvs_extent_tag_of(void *store, uint32_t extent, uint8_t position); /* for the index */
int kvs_extent_add_locked(struct kvs_store *store, struct kvs_namespace *ns, uint32_t root,
                          uint32_t block_count, struct kvs_extent **out);
int kvs_extent_publish_locked(struct kvs_store *store, struct kvs_extent *extent);
/* Out of index, recency and expiry; the record goes with the last pin. */
void kvs_extent_forget_locked(struct kvs_store *store, struct kvs_extent *extent,
                              enum kvs_reason reason);
void kvs_extent_pin_locked(struct kvs_extent *extent);
void kvs_extent_unpin_locked(struct kvs_store *store, struct kvs_extent *extent);
/* Served block `key`: extent and position, or NULL. Expired ones (at now_s) are found too, those on
 * a root that is down are not. */
struct kvs_extent *kvs_extent_lookup_locked(struct kvs_store *store, struct kvs_namespace *ns,
                                            const struct kvs_key *key, int64_t now_s,
                                            uint8_t *position);
/* The first extent that holds the key, served or not. */
struct kvs_extent *kvs_extent_holder_locked(struct kvs_store *store, const struct kvs_namespace *ns,
                                            const struct kvs_key *key);
/* The extent whose file has this very name, or NULL. */
struct kvs_extent *kvs_extent_named_locked(struct kvs_store *store, uint32_t root,
                                           const struct kvs_namespace *ns,
                                           const struct kvs_key *name);
int64_t kvs_longest_ttl_s(const struct kvs_store *store);
/* How many of keys[0..count) follow in `extent` from `position` on. */
uint32_t kvs_extent_follow_locked(struct kvs_extent *extent, uint8_t position,
                                  const struct kvs_key *keys, uint64_t count);
void kvs_extents_free(struct kvs_store *store);

/* ---- recency.c: who was used last ---- */
void kvs_recency_open(struct kvs_root *root);
void kvs_recency_add_locked(struct kvs_root *root, struct kvs_extent *extent); /* most recent */
/* From the least recently used on: the first that is not pinned, or NULL. */
struct kvs_extent *kvs_recency_victim_locked(struct kvs_root *root);
/* File workers, after a scan: the order that the times on disk tell. */
int kvs_recency_sort(struct kvs_root *root);
/* Recency and, with retention >= 0 or -1 for its own class, a later expiry. */
void kvs_extent_touch_locked(struct kvs_store *store, struct kvs_extent *extent, int retention);
/* The same for a chain, tail first, root last. */
void kvs_chain_touch_locked(struct kvs_store *store, struct kvs_namespace *ns,
                            const struct kvs_key *keys, uint64_t count, int retention);

/* ---- expiry.c: when they end ---- */
void kvs_expiry_open(struct kvs_root *root);
void kvs_expiry_add_locked(struct kvs_root *root, struct kvs_extent *extent);
void kvs_expiry_remove_locked(struct kvs_extent *extent);
/* The extent that has expired first, or NULL: none has, or very many end about now and the next
 * calls will tell. */
struct kvs_extent *kvs_expiry_first_locked(struct kvs_root *root, int64_t now_s);
/* The store's wall clock was put right by so much. */
void kvs_expiry_follow_locked(struct kvs_root *root, int64_t by_s);
void kvs_expire_locked(struct kvs_root *root);

#endif
