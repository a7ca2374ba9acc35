/*
 * owner.h: the owner's lock of a root, for tools that open no store: who has it, and taking it so
 * that nobody else becomes the owner meanwhile.
 */
#ifndef KVS_OWNER_H
#define KVS_OWNER_H

#include <stdint.h>

struct kvs_owner_lock;

/* 1 and who it is in `holder`, 0 when the root has no owner, or a negative errno. Makes and changes
 * nothing, and never drops a lock of this process. */
int kvs_owner_of(const char *root_path, char *holder, uint32_t holder_bytes);
/* 0, -EBUSY and who has it in `holder`, or another negative errno. */
int kvs_owner_lock_take(const char *root_path, char *holder, uint32_t holder_bytes,
                        struct kvs_owner_lock **out);
void kvs_owner_lock_give(struct kvs_owner_lock *lock);

#endif
