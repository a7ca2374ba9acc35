/*
 * buckets.h: the directories that extents lie in. File workers only.
 */
#ifndef KVS_BUCKETS_H
#define KVS_BUCKETS_H

#include "store.h"

/* `path` (KVS_PATH_BYTES) becomes that of the key's bucket, which is there afterwards. */
int kvs_bucket_make(struct kvs_root *root, struct kvs_namespace *ns, const struct kvs_key *key,
                    char *path);
/* The directory is not there (any more). */
void kvs_bucket_forget(struct kvs_root *root, struct kvs_namespace *ns, const struct kvs_key *key);
/* Removes a few empty ones, going on where the last call ended; how many. The owner only. */
uint32_t kvs_buckets_remove(struct kvs_root *root);

#endif
