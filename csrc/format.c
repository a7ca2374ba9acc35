/*
 * format.c: sizes and encoding of extent headers, see format.h and docs/FORMAT.md.
 *
 * Structs are copied to disk as they lie in memory: their fields are aligned and the host is
 * little-endian. Reading, where nothing may be trusted, is in format_decode.c.
 */
#include "format.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "format_rules.h"
#include "xxh3.h"

const struct kvs_section_rule kvs_format_rules[KVS_FORMAT_KNOWN_SECTIONS] = {
    [KVS_SECTION_FINGERPRINT] = {.bytes = 32, .flags = KVS_SECTION_REQUIRED, .in_first_page = 1},
    [KVS_SECTION_CHAIN] = {.bytes = sizeof(struct kvs_disk_chain),
                           .flags = KVS_SECTION_REQUIRED,
                           .in_first_page = 1},
    [KVS_SECTION_KEYS] = {.bytes_per_block = sizeof(struct kvs_key),
                          .flags = KVS_SECTION_REQUIRED,
                          .in_first_page = 1},
    [KVS_SECTION_TOKENS] = {.bytes_per_block = sizeof(uint32_t), .in_first_page = 1},
    [KVS_SECTION_CLASS] = {.bytes = sizeof(struct kvs_disk_class), .in_first_page = 1},
    [KVS_SECTION_CELLS] = {.bytes_per_layer = sizeof(uint32_t), .flags = KVS_SECTION_REQUIRED},
    [KVS_SECTION_CHECKSUMS] = {.bytes_per_cell = sizeof(uint64_t), .flags = KVS_SECTION_REQUIRED},
    [KVS_SECTION_EXTRAS] = {.bytes_per_block = sizeof(struct kvs_key)},
    [KVS_SECTION_TOKEN_IDS] = {.bytes_per_token = sizeof(int32_t)},
};
_Static_assert(KVS_FORMAT_FIRST_SECTION + 32 + sizeof(struct kvs_disk_chain) +
                       KVS_FORMAT_BLOCKS_MAX * (sizeof(struct kvs_key) + sizeof(uint32_t)) +
                       sizeof(struct kvs_disk_class) + KVS_FORMAT_SECTION_ALIGN <=
                   KVS_FORMAT_PAGE_BYTES,
               "what a scan needs fits the first page");

uint32_t kvs_format_section_bytes(uint32_t type, uint32_t layer_count, uint32_t block_count,
                                  uint32_t block_tokens)
{
    const struct kvs_section_rule *rule = &kvs_format_rules[type];
    return rule->bytes + rule->bytes_per_block * block_count + rule->bytes_per_layer * layer_count +
           rule->bytes_per_cell * layer_count * block_count +
           rule->bytes_per_token * block_count * block_tokens;
}

uint64_t kvs_format_page_xxh3(const void *first_page)
{
    uint8_t page[KVS_FORMAT_PAGE_BYTES];
    memcpy(page, first_page, sizeof(page));
    memset(page + offsetof(struct kvs_disk_header, page_xxh3), 0, sizeof(uint64_t));
    return kvs_xxh3(page, sizeof(page));
}

/* The sections that we write, in the order of their types. Returns header_bytes. */
static uint32_t plan_sections(uint32_t layer_count, uint32_t block_count, int with_extras,
                              uint32_t ids_per_block, struct kvs_disk_section *plan,
                              uint16_t *count)
{
    uint64_t end = KVS_FORMAT_FIRST_SECTION;
    *count = 0;
    for (uint16_t type = 1; type < KVS_FORMAT_KNOWN_SECTIONS; type++) {
        if ((type == KVS_SECTION_EXTRAS && !with_extras) ||
            (type == KVS_SECTION_TOKEN_IDS && !ids_per_block)) {
            continue;
        }
        uint64_t offset = kvs_format_round_up(end, KVS_FORMAT_SECTION_ALIGN);
        uint32_t bytes = kvs_format_section_bytes(type, layer_count, block_count, ids_per_block);
        plan[(*count)++] = (struct kvs_disk_section){.type = type,
                                                     .flags = kvs_format_rules[type].flags,
                                                     .offset = (uint32_t)offset,
                                                     .bytes = bytes};
        end = offset + bytes;
    }
    return (uint32_t)kvs_format_round_up(end, KVS_FORMAT_PAGE_BYTES);
}

int kvs_format_geometry(uint32_t layer_count, const uint32_t *cell_bytes, uint32_t block_count,
                        int with_extras, uint32_t ids_per_block, uint32_t *header_bytes,
                        uint64_t *region_offsets, uint64_t *file_bytes)
{
    struct kvs_disk_section plan[KVS_FORMAT_SECTIONS_MAX];
    uint16_t section_count;
    if (!kvs_format_counts_are_legal(layer_count, block_count) ||
        ids_per_block > KVS_BLOCK_TOKENS_MAX) {
        return -EINVAL;
    }
    *header_bytes =
        plan_sections(layer_count, block_count, with_extras, ids_per_block, plan, &section_count);
    if (*header_bytes > KVS_FORMAT_HEADER_MAX) {
        return -EINVAL;
    }
    uint64_t end = *header_bytes;
    for (uint32_t layer = 0; layer < layer_count; layer++) {
        if (region_offsets) {
            region_offsets[layer] = end;
        }
        end +=
            kvs_format_round_up((uint64_t)cell_bytes[layer] * block_count, KVS_FORMAT_PAGE_BYTES);
    }
    *file_bytes = end;
    return 0;
}

static void write_chain(const struct kvs_extent_header *header, void *to)
{
    struct kvs_disk_chain chain = {.start = header->start, .parent_known = header->parent_known};
    memcpy(chain.parent, header->parent.bytes, sizeof(chain.parent));
    memcpy(to, &chain, sizeof(chain));
}

static void write_class(const struct kvs_extent_header *header, void *to)
{
    struct kvs_disk_class class = {.created_s = header->created_s, .ttl_s = header->ttl_s};
    memcpy(class.name, header->class_name, sizeof(class.name));
    memcpy(to, &class, sizeof(class));
}

static void write_tokens(const struct kvs_extent_header *header, uint8_t *to)
{
    for (uint32_t block = 0; block < header->block_count; block++) {
        memcpy(to + block * sizeof(uint32_t), &header->block_tokens, sizeof(uint32_t));
    }
}

static void write_section(const struct kvs_extent_header *header, const uint32_t *cell_bytes,
                          const uint64_t *checksums, const struct kvs_key *extras,
                          const int32_t *token_ids, const struct kvs_disk_section *section,
                          uint8_t *to)
{
    switch ((enum kvs_section_type)section->type) {
    case KVS_SECTION_FINGERPRINT:
        memcpy(to, header->fingerprint, section->bytes);
        break;
    case KVS_SECTION_CHAIN:
        write_chain(header, to);
        break;
    case KVS_SECTION_KEYS:
        memcpy(to, header->keys, section->bytes);
        break;
    case KVS_SECTION_TOKENS:
        write_tokens(header, to);
        break;
    case KVS_SECTION_CLASS:
        write_class(header, to);
        break;
    case KVS_SECTION_CELLS:
        memcpy(to, cell_bytes, section->bytes);
        break;
    case KVS_SECTION_CHECKSUMS:
        memcpy(to, checksums, section->bytes);
        break;
    case KVS_SECTION_EXTRAS:
        memcpy(to, extras, section->bytes);
        break;
    case KVS_SECTION_TOKEN_IDS:
        memcpy(to, token_ids, section->bytes);
        break;
    }
}

void kvs_format_encode(const struct kvs_extent_header *header, const uint32_t *cell_bytes,
                       const uint64_t *checksums, const struct kvs_key *extras,
                       const int32_t *token_ids, void *buffer)
{
    uint8_t *bytes = buffer;
    struct kvs_disk_section table[KVS_FORMAT_SECTIONS_MAX];
    struct kvs_disk_header disk = {.version = KVS_FORMAT_VERSION,
                                   .file_bytes = header->file_bytes,
                                   .layer_count = header->layer_count,
                                   .block_count = header->block_count,
                                   .block_tokens = header->block_tokens};
    memcpy(disk.magic, KVS_FORMAT_MAGIC, sizeof(disk.magic));
    assert(kvs_format_counts_are_legal(header->layer_count, header->block_count));
    disk.header_bytes =
        plan_sections(header->layer_count, header->block_count, extras != NULL,
                      token_ids ? header->block_tokens : 0, table, &disk.section_count);
    assert(disk.header_bytes == header->header_bytes);

    memset(bytes, 0, disk.header_bytes);
    for (uint16_t i = 0; i < disk.section_count; i++) {
        uint8_t *to = bytes + table[i].offset;
        write_section(header, cell_bytes, checksums, extras, token_ids, &table[i], to);
        table[i].xxh3 = kvs_xxh3(to, table[i].bytes);
    }
    memcpy(bytes + sizeof(disk), table, disk.section_count * sizeof(table[0]));
    memcpy(bytes, &disk, sizeof(disk));
    disk.page_xxh3 = kvs_format_page_xxh3(bytes);
    memcpy(bytes, &disk, sizeof(disk));
}

const char *kvs_verdict_name(enum kvs_verdict verdict)
{
    static const char *const NAMES[] = {
        [KVS_VERDICT_GOOD] = "good",          [KVS_VERDICT_SHORT] = "short",
        [KVS_VERDICT_MAGIC] = "magic",        [KVS_VERDICT_VERSION] = "version",
        [KVS_VERDICT_UNKNOWN] = "unknown",    [KVS_VERDICT_CHECKSUM] = "checksum",
        [KVS_VERDICT_MALFORMED] = "malformed"};
    size_t number = (size_t)verdict;
    return number < sizeof(NAMES) / sizeof(NAMES[0]) ? NAMES[number] : "?";
}
