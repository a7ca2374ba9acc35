/*
 * room.h: how much of the pool a load may use. See room.c. Everything under the store's lock.
 */
#ifndef KVS_ROOM_H
#define KVS_ROOM_H

#include "store.h"

/* Waiting loads run as soon as their promise can be kept. */
void kvs_load_admit_locked(struct kvs_store *store);
/* Pool bytes that others than `load` may count on: running loads, and the next to be admitted. */
uint64_t kvs_load_promised_locked(const struct kvs_store *store, const struct kvs_load *load);
/* May the load take so many bytes now, for cells of `layer`? */
int kvs_room_for_locked(const struct kvs_load *load, uint32_t layer, uint64_t bytes);
/* It took them, it gave them back. */
void kvs_room_take_locked(struct kvs_load *load, uint32_t layer, uint64_t bytes);
void kvs_room_give_locked(struct kvs_load *load, uint32_t layer, uint64_t bytes);

#endif
