/*
 * format.h: the bytes of an extent file, normative text in docs/FORMAT.md.
 *
 * An extent is a header followed by one region per layer. The header's first 4096-byte page holds
 * all that a scan needs; checksums and other wide sections follow. Little-endian throughout.
 * This file and format.c are pure: bytes in, verdict out, no system call, no allocation.
 *
 * Invariants:
 *   1. header_bytes and every region offset are multiples of 4096; regions follow each other in
 *      layer order; region l is cell_bytes[l] * block_count bytes, padded with zeros to 4096.
 *   2. Decoding never reads outside the given bytes, whatever they hold.
 *   3. An unknown section without KVS_SECTION_REQUIRED is skipped; with it the file is foreign.
 */
#ifndef KVS_FORMAT_H
#define KVS_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#include "keys.h"

#define KVS_FORMAT_MAGIC "KVSEXTNT" /* 8 bytes, no terminator on disk */
#define KVS_FORMAT_VERSION 1u
#define KVS_FORMAT_PAGE_BYTES 4096u
#define KVS_FORMAT_SECTIONS_MAX 16u
#define KVS_FORMAT_BLOCKS_MAX 64u
#define KVS_FORMAT_HEADER_MAX (1u << 20) /* bytes; a larger header is malformed, never allocated */
#define KVS_FORMAT_LAYERS_MAX 1024u
#define KVS_FORMAT_START_UNKNOWN UINT64_MAX
#define KVS_FORMAT_FIRST_SECTION 512u /* sections start here; the table ends before */

struct kvs_disk_header {
    uint8_t magic[8];
    uint16_t version;
    uint16_t section_count;
    uint32_t header_bytes; /* offset of region 0 */
    uint64_t file_bytes;
    uint64_t page_xxh3; /* XXH3-64 of the first page with this field zero */
    uint32_t layer_count;
    uint32_t block_count;
    uint32_t block_tokens;
    uint32_t zero;
};
_Static_assert(sizeof(struct kvs_disk_header) == 48, "header is 48 bytes");
_Static_assert(offsetof(struct kvs_disk_header, page_xxh3) == 24, "page_xxh3 at 24");
_Static_assert(offsetof(struct kvs_disk_header, block_tokens) == 40, "block_tokens at 40");

enum kvs_section_type {
    KVS_SECTION_FINGERPRINT = 1, /* 32 bytes; page 0, required */
    KVS_SECTION_CHAIN = 2, /* struct kvs_disk_chain; page 0, required */
    KVS_SECTION_KEYS = 3, /* 32 bytes a block; page 0, required */
    KVS_SECTION_TOKENS = 4, /* u32 a block: tokens in it; page 0 */
    KVS_SECTION_CLASS = 5, /* struct kvs_disk_class; page 0 */
    KVS_SECTION_CELLS = 6, /* u32 a layer: bytes of one cell, 0: no region; required */
    KVS_SECTION_CHECKSUMS = 7, /* u64 a cell, [layer][block], XXH3-64; required */
    KVS_SECTION_EXTRAS = 8, /* 32 bytes a block: SHA-256 of its extras, zero: none */
    KVS_SECTION_TOKEN_IDS = 9 /* int32 a token of a block; only where asked to be kept */
};

enum { KVS_SECTION_REQUIRED = 1 };

struct kvs_disk_section {
    uint16_t type;
    uint16_t flags;
    uint32_t offset; /* in the file, below header_bytes */
    uint32_t bytes;
    uint32_t zero;
    uint64_t xxh3; /* of the section's bytes */
};
_Static_assert(sizeof(struct kvs_disk_section) == 24, "section entry is 24 bytes");
_Static_assert(sizeof(struct kvs_disk_header) +
                       KVS_FORMAT_SECTIONS_MAX * sizeof(struct kvs_disk_section) <=
                   KVS_FORMAT_FIRST_SECTION,
               "the section table ends before the first section");

struct kvs_disk_chain {
    uint8_t parent[32]; /* key of the block before, zero when not known or none */
    uint64_t start; /* absolute number of block 0, KVS_FORMAT_START_UNKNOWN: not known */
    uint32_t parent_known; /* 0 or 1 */
    uint32_t zero;
};
_Static_assert(sizeof(struct kvs_disk_chain) == 48, "chain is 48 bytes");

struct kvs_disk_class {
    char name[16]; /* retention class at the time of the put, zero padded */
    int64_t created_s;
    int64_t ttl_s;
};
_Static_assert(sizeof(struct kvs_disk_class) == 32, "class is 32 bytes");

/* A header, decoded (or to be encoded). */
struct kvs_extent_header {
    uint32_t layer_count;
    uint32_t block_count;
    uint32_t block_tokens;
    uint32_t header_bytes;
    uint64_t file_bytes;
    uint8_t fingerprint[32];
    struct kvs_key parent;
    uint64_t start;
    uint32_t parent_known;
    char class_name[16];
    int64_t created_s;
    int64_t ttl_s;
    struct kvs_key keys[KVS_FORMAT_BLOCKS_MAX];
};

enum kvs_verdict {
    KVS_VERDICT_GOOD,
    KVS_VERDICT_SHORT, /* fewer bytes than the header needs */
    KVS_VERDICT_MAGIC, /* not an extent */
    KVS_VERDICT_VERSION, /* of a version this build does not know */
    KVS_VERDICT_UNKNOWN, /* has a required section this build does not know */
    KVS_VERDICT_CHECKSUM, /* damaged */
    KVS_VERDICT_MALFORMED /* checksums hold but the fields contradict each other */
};
const char *kvs_verdict_name(enum kvs_verdict verdict);

/* Sizes for block_count blocks. ids_per_block: block_tokens where token ids are kept, else 0.
 * region_offsets may be NULL, else [layer_count]. 0, or -EINVAL past a limit, also that of a
 * header: many ids make one too long. */
int kvs_format_geometry(uint32_t layer_count, const uint32_t *cell_bytes, uint32_t block_count,
                        int with_extras, uint32_t ids_per_block, uint32_t *header_bytes,
                        uint64_t *region_offsets, uint64_t *file_bytes);

/* Writes header->header_bytes bytes. checksums: [layer][block]. extras: [block_count] or NULL,
 * token_ids: [block_count * block_tokens] or NULL (as the geometry was asked with). */
void kvs_format_encode(const struct kvs_extent_header *header, const uint32_t *cell_bytes,
                       const uint64_t *checksums, const struct kvs_key *extras,
                       const int32_t *token_ids, void *buffer);

/* The first page alone: all fields of *out. */
enum kvs_verdict kvs_format_decode_page(const void *page, size_t bytes,
                                        struct kvs_extent_header *out);

/* The whole header (out->header_bytes bytes, whose first page decoded well): cell sizes
 * [layer_count] and checksums [layer_count * block_count]. Either may be NULL. */
enum kvs_verdict kvs_format_decode_rest(const void *buffer, const struct kvs_extent_header *header,
                                        uint32_t *cell_bytes, uint64_t *checksums);

/* Of a whole header that decoded well: where a known section lies, NULL when it is not there. */
const void *kvs_format_section(const void *buffer, enum kvs_section_type type);

#endif
