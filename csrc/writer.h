/*
 * writer.h: what the files of a writer offer to each other and to the core: its life (writer.c),
 * which extents it makes (offer.c, admit.c), their staging, birth and publishing.
 */
#ifndef KVS_WRITER_H
#define KVS_WRITER_H

#include "types.h"

/* ---- offer.c ---- */
/* The next run of keys[*at..count) that is not resident and crosses no multiple of `grid`: its
 * length, and *at behind it; 0: there is no other. Resident blocks on the way are renewed and added
 * to *resident. */
uint32_t kvs_missing_next_locked(struct kvs_store *store, struct kvs_namespace *ns,
                                 const struct kvs_key *keys, uint64_t count, uint64_t grid,
                                 int class_number, uint64_t *at, uint64_t *resident);
/* Extents for what is missing and admitted of [from, writer->count). fixed: the last one does not
 * grow any more. 0 or -ENOMEM. */
int kvs_offer_locked(struct kvs_writer *writer, uint64_t from, int fixed);

/* ---- admit.c ---- */
int kvs_admission_open(struct kvs_store *store, const struct kvs_options *options);
/* How many of the missing blocks keys[0..count) are to be written, the leading ones. Counts the
 * others as refused, takes note of all. *refusal: why an earlier block of the chain was refused, or
 * NOT; it becomes why one of these was. */
uint32_t kvs_admit_locked(struct kvs_store *store, const struct kvs_namespace *ns,
                          const struct kvs_key *keys, uint32_t count, enum kvs_refusal *refusal);
/* Nothing of these admitted bytes was written. */
void kvs_admit_refund_locked(struct kvs_root *root, uint64_t bytes);
uint64_t kvs_write_budget_left_locked(const struct kvs_root *root);

/* ---- writer.c, stage.c, send.c, birth.c, publish.c ---- */
void kvs_writer_hold_locked(struct kvs_writer *writer);
void kvs_writer_drop_locked(struct kvs_writer *writer);
void kvs_writer_progress_locked(struct kvs_writer *writer);
void kvs_writer_end_locked(struct kvs_writer *writer);
/* Adds an extent of [first, first + count) that may grow to count_max; 0 or -ENOMEM. */
int kvs_made_new_locked(struct kvs_writer *writer, uint64_t first, uint32_t count,
                        uint32_t count_max, int fixed);
void kvs_made_free(struct kvs_writer_extent *made);
/* The first root in rendezvous order that is in use. */
uint32_t kvs_place_of_locked(struct kvs_store *store, const struct kvs_key *key);
void kvs_made_place_locked(struct kvs_writer *writer, struct kvs_writer_extent *made);
void kvs_made_create_locked(struct kvs_writer *writer, struct kvs_writer_extent *made);
void kvs_made_drop_locked(struct kvs_writer *writer, struct kvs_writer_extent *made);
/* Bytes of a layer's region, in memory and in the file. */
uint64_t kvs_staged_bytes(const struct kvs_writer *writer, uint32_t layer, uint64_t blocks);
/* Sends what is whole; layers that go together when all of them are. */
void kvs_made_send_locked(struct kvs_writer *writer, struct kvs_writer_extent *made);
/* Of all writers: where room is short, no whole layer waits for those it would go with. */
void kvs_made_send_apart_locked(struct kvs_store *store);
void kvs_made_written(struct kvs_transfer *transfer); /* I/O thread */
void kvs_stage_clear_locked(struct kvs_writer *writer, struct kvs_writer_extent *made);
void *kvs_copier_thread(void *store);
void kvs_publish_job(struct kvs_root *root, void *writer);

#endif
