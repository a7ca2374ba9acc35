/*
 * format_decode.c: reads extent headers, see format.h and docs/FORMAT.md.
 *
 * What is read is trusted only as far as it has been checked: first magic and version, then the
 * first page's checksum, then every field against every other one. Because page_xxh3 covers the
 * first page, each section its own checksum, and bytes outside sections must be zero, no bit of a
 * header can flip unnoticed.
 */
#include "format.h"

#include <string.h>

#include "format_rules.h"
#include "xxh3.h"

enum { PAGE = KVS_FORMAT_PAGE_BYTES };

/* A first page whose table has been checked: sections lie in order inside the header, known ones
 * have the right length and those that must be there are. */
struct table {
    struct kvs_disk_header header;
    struct kvs_disk_section sections[KVS_FORMAT_SECTIONS_MAX];
    const struct kvs_disk_section *known[KVS_FORMAT_KNOWN_SECTIONS]; /* by type; NULL: absent */
};

static enum kvs_verdict check_header(const struct kvs_disk_header *header)
{
    int good = header->section_count <= KVS_FORMAT_SECTIONS_MAX && header->zero == 0 &&
               kvs_format_counts_are_legal(header->layer_count, header->block_count) &&
               header->block_tokens >= 1 && header->block_tokens <= KVS_BLOCK_TOKENS_MAX &&
               header->header_bytes >= PAGE && header->header_bytes % PAGE == 0 &&
               header->header_bytes <= KVS_FORMAT_HEADER_MAX &&
               header->file_bytes >= header->header_bytes && header->file_bytes % PAGE == 0;
    return good ? KVS_VERDICT_GOOD : KVS_VERDICT_MALFORMED;
}

static enum kvs_verdict check_no_unknown_required(const struct table *table)
{
    for (uint16_t i = 0; i < table->header.section_count; i++) {
        const struct kvs_disk_section *section = &table->sections[i];
        int known = section->type >= 1 && section->type < KVS_FORMAT_KNOWN_SECTIONS;
        if (!known && (section->flags & KVS_SECTION_REQUIRED)) {
            return KVS_VERDICT_UNKNOWN;
        }
    }
    return KVS_VERDICT_GOOD;
}

static int section_fits_its_rule(const struct table *table, const struct kvs_disk_section *section)
{
    uint32_t bytes =
        kvs_format_section_bytes(section->type, table->header.layer_count,
                                 table->header.block_count, table->header.block_tokens);
    return section->bytes == bytes && !table->known[section->type] &&
           (!kvs_format_rules[section->type].in_first_page || section->offset + bytes <= PAGE);
}

/* Fills table->known on the way. */
static enum kvs_verdict check_sections(struct table *table)
{
    uint64_t end = KVS_FORMAT_FIRST_SECTION;
    for (uint16_t i = 0; i < table->header.section_count; i++) {
        const struct kvs_disk_section *section = &table->sections[i];
        if (section->offset < end || section->offset % KVS_FORMAT_SECTION_ALIGN != 0 ||
            section->zero != 0 || (section->flags & ~KVS_SECTION_REQUIRED) != 0 ||
            section->type == 0) {
            return KVS_VERDICT_MALFORMED;
        }
        end = (uint64_t)section->offset + section->bytes;
        if (end > table->header.header_bytes) {
            return KVS_VERDICT_MALFORMED;
        }
        if (section->type < KVS_FORMAT_KNOWN_SECTIONS) {
            if (!section_fits_its_rule(table, section)) {
                return KVS_VERDICT_MALFORMED;
            }
            table->known[section->type] = section;
        }
    }
    for (uint16_t type = 1; type < KVS_FORMAT_KNOWN_SECTIONS; type++) {
        if ((kvs_format_rules[type].flags & KVS_SECTION_REQUIRED) && !table->known[type]) {
            return KVS_VERDICT_MALFORMED;
        }
    }
    return KVS_VERDICT_GOOD;
}

static enum kvs_verdict read_table(const uint8_t *page, struct table *table)
{
    memset(table, 0, sizeof(*table));
    memcpy(&table->header, page, sizeof(table->header));
    memcpy(table->sections, page + sizeof(table->header), sizeof(table->sections));
    if (memcmp(table->header.magic, KVS_FORMAT_MAGIC, sizeof(table->header.magic)) != 0) {
        return KVS_VERDICT_MAGIC;
    }
    if (table->header.version != KVS_FORMAT_VERSION) {
        return KVS_VERDICT_VERSION;
    }
    if (table->header.page_xxh3 != kvs_format_page_xxh3(page)) {
        return KVS_VERDICT_CHECKSUM;
    }
    enum kvs_verdict verdict = check_header(&table->header);
    if (verdict == KVS_VERDICT_GOOD) {
        verdict = check_no_unknown_required(table);
    }
    return verdict == KVS_VERDICT_GOOD ? check_sections(table) : verdict;
}

static int checksums_hold(const struct table *table, const uint8_t *bytes, uint32_t up_to)
{
    for (uint16_t i = 0; i < table->header.section_count; i++) {
        const struct kvs_disk_section *section = &table->sections[i];
        if (section->offset + section->bytes <= up_to &&
            kvs_xxh3(bytes + section->offset, section->bytes) != section->xxh3) {
            return 0;
        }
    }
    return 1;
}

static const uint8_t *known_bytes(const struct table *table, const uint8_t *bytes,
                                  enum kvs_section_type type)
{
    return table->known[type] ? bytes + table->known[type]->offset : NULL;
}

static enum kvs_verdict read_chain(const uint8_t *from, struct kvs_extent_header *out)
{
    struct kvs_disk_chain chain;
    memcpy(&chain, from, sizeof(chain));
    memcpy(out->parent.bytes, chain.parent, sizeof(chain.parent));
    out->start = chain.start;
    out->parent_known = chain.parent_known;
    int start_is_sane = chain.start == KVS_FORMAT_START_UNKNOWN ||
                        chain.start < KVS_FORMAT_START_UNKNOWN - KVS_FORMAT_BLOCKS_MAX;
    return start_is_sane && chain.parent_known <= 1 && chain.zero == 0 ? KVS_VERDICT_GOOD
                                                                       : KVS_VERDICT_MALFORMED;
}

static enum kvs_verdict read_class(const uint8_t *from, struct kvs_extent_header *out)
{
    struct kvs_disk_class class;
    memcpy(&class, from, sizeof(class));
    memcpy(out->class_name, class.name, sizeof(class.name));
    out->created_s = class.created_s;
    out->ttl_s = class.ttl_s;
    return class.ttl_s >= 0 ? KVS_VERDICT_GOOD : KVS_VERDICT_MALFORMED;
}

/* Only whole blocks have keys, so version 1 knows no other count than block_tokens. */
static enum kvs_verdict check_tokens(const uint8_t *from, const struct kvs_disk_header *header)
{
    for (uint32_t block = 0; block < header->block_count; block++) {
        if (memcmp(from + block * sizeof(uint32_t), &header->block_tokens, sizeof(uint32_t))) {
            return KVS_VERDICT_MALFORMED;
        }
    }
    return KVS_VERDICT_GOOD;
}

enum kvs_verdict kvs_format_decode_page(const void *page, size_t bytes,
                                        struct kvs_extent_header *out)
{
    struct table table;
    if (bytes < PAGE) {
        return KVS_VERDICT_SHORT;
    }
    enum kvs_verdict verdict = read_table(page, &table);
    if (verdict != KVS_VERDICT_GOOD) {
        return verdict;
    }
    if (!checksums_hold(&table, page, PAGE)) {
        return KVS_VERDICT_CHECKSUM;
    }
    memset(out, 0, sizeof(*out));
    out->layer_count = table.header.layer_count;
    out->block_count = table.header.block_count;
    out->block_tokens = table.header.block_tokens;
    out->header_bytes = table.header.header_bytes;
    out->file_bytes = table.header.file_bytes;
    memcpy(out->fingerprint, known_bytes(&table, page, KVS_SECTION_FINGERPRINT), 32);
    memcpy(out->keys, known_bytes(&table, page, KVS_SECTION_KEYS),
           out->block_count * sizeof(struct kvs_key));
    verdict = read_chain(known_bytes(&table, page, KVS_SECTION_CHAIN), out);
    const uint8_t *tokens = known_bytes(&table, page, KVS_SECTION_TOKENS);
    if (verdict == KVS_VERDICT_GOOD && tokens) {
        verdict = check_tokens(tokens, &table.header);
    }
    const uint8_t *class = known_bytes(&table, page, KVS_SECTION_CLASS);
    return verdict == KVS_VERDICT_GOOD && class ? read_class(class, out) : verdict;
}

static int all_zero(const uint8_t *bytes, uint32_t from, uint32_t end)
{
    uint8_t seen = 0;
    for (uint32_t at = from; at < end; at++) {
        seen |= bytes[at];
    }
    return seen == 0;
}

/* Padding: behind the table, between sections, behind the last one. */
static int padding_is_zero(const struct table *table, const uint8_t *bytes)
{
    uint32_t end = (uint32_t)(sizeof(table->header) +
                              table->header.section_count * sizeof(struct kvs_disk_section));
    for (uint16_t i = 0; i < table->header.section_count; i++) {
        if (!all_zero(bytes, end, table->sections[i].offset)) {
            return 0;
        }
        end = table->sections[i].offset + table->sections[i].bytes;
    }
    return all_zero(bytes, end, table->header.header_bytes);
}

static uint64_t regions_bytes(const uint8_t *cells, uint32_t layer_count, uint32_t block_count)
{
    uint64_t bytes = 0;
    for (uint32_t layer = 0; layer < layer_count; layer++) {
        uint32_t cell_bytes;
        memcpy(&cell_bytes, cells + layer * sizeof(cell_bytes), sizeof(cell_bytes));
        bytes += kvs_format_round_up((uint64_t)cell_bytes * block_count, PAGE);
    }
    return bytes;
}

enum kvs_verdict kvs_format_decode_rest(const void *buffer, const struct kvs_extent_header *header,
                                        uint32_t *cell_bytes, uint64_t *checksums)
{
    struct table table;
    enum kvs_verdict verdict = read_table(buffer, &table);
    if (verdict != KVS_VERDICT_GOOD) {
        return verdict;
    }
    const struct kvs_disk_header *disk = &table.header;
    if (disk->header_bytes != header->header_bytes || disk->layer_count != header->layer_count ||
        disk->block_count != header->block_count || disk->file_bytes != header->file_bytes) {
        return KVS_VERDICT_MALFORMED; /* not the page that was decoded before */
    }
    if (!checksums_hold(&table, buffer, disk->header_bytes) || !padding_is_zero(&table, buffer)) {
        return KVS_VERDICT_CHECKSUM;
    }
    const uint8_t *cells = known_bytes(&table, buffer, KVS_SECTION_CELLS);
    if (disk->header_bytes + regions_bytes(cells, disk->layer_count, disk->block_count) !=
        disk->file_bytes) {
        return KVS_VERDICT_MALFORMED;
    }
    if (cell_bytes) {
        memcpy(cell_bytes, cells, table.known[KVS_SECTION_CELLS]->bytes);
    }
    if (checksums) {
        memcpy(checksums, known_bytes(&table, buffer, KVS_SECTION_CHECKSUMS),
               table.known[KVS_SECTION_CHECKSUMS]->bytes);
    }
    return KVS_VERDICT_GOOD;
}

const void *kvs_format_section(const void *buffer, enum kvs_section_type type)
{
    struct table table;
    return read_table(buffer, &table) == KVS_VERDICT_GOOD ? known_bytes(&table, buffer, type)
                                                          : NULL;
}
