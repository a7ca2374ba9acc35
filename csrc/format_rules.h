/*
 * format_rules.h: what the encoder and the decoder of extent headers share; not for anyone else.
 *
 * A rule says what a version 1 section of a known type looks like: how long it is, and whether an
 * extent may do without it. Sections of the first page hold all that a scan needs.
 */
#ifndef KVS_FORMAT_RULES_H
#define KVS_FORMAT_RULES_H

#include "format.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "disk structs are little-endian");

enum {
    KVS_FORMAT_SECTION_ALIGN = 8,
    KVS_FORMAT_KNOWN_SECTIONS = KVS_SECTION_TOKEN_IDS + 1 /* types count from 1 */
};

struct kvs_section_rule {
    uint32_t bytes;
    uint32_t bytes_per_block;
    uint32_t bytes_per_layer;
    uint32_t bytes_per_cell;
    uint32_t bytes_per_token;
    uint16_t flags;
    uint16_t in_first_page;
};

extern const struct kvs_section_rule kvs_format_rules[KVS_FORMAT_KNOWN_SECTIONS];

static inline uint64_t kvs_format_round_up(uint64_t value, uint64_t step)
{
    return (value + step - 1) / step * step;
}

static inline int kvs_format_counts_are_legal(uint32_t layer_count, uint32_t block_count)
{
    return layer_count >= 1 && layer_count <= KVS_FORMAT_LAYERS_MAX && block_count >= 1 &&
           block_count <= KVS_FORMAT_BLOCKS_MAX;
}

/* Of legal counts, for block_tokens tokens a block. */
uint32_t kvs_format_section_bytes(uint32_t type, uint32_t layer_count, uint32_t block_count,
                                  uint32_t block_tokens);
/* What the field page_xxh3 of this first page should hold. */
uint64_t kvs_format_page_xxh3(const void *first_page);

#endif
