/* What must hold of a header, whatever the bytes; see checks.h. */
#include "checks.h"

#include <string.h>

#include "format.h"
#include "xxh3.h"

enum { PAGE = KVS_FORMAT_PAGE_BYTES, SEAL_MAX = 16 * PAGE };

static size_t whole_pages(size_t bytes)
{
    return bytes < PAGE ? PAGE : (bytes + PAGE - 1) / PAGE * PAGE;
}

static void check_page(const struct kvs_extent_header *header)
{
    CHECK(header->layer_count >= 1 && header->layer_count <= KVS_FORMAT_LAYERS_MAX);
    CHECK(header->block_count >= 1 && header->block_count <= KVS_FORMAT_BLOCKS_MAX);
    CHECK(header->block_tokens >= 1 && header->block_tokens <= KVS_BLOCK_TOKENS_MAX);
    CHECK(header->header_bytes >= PAGE && header->header_bytes <= KVS_FORMAT_HEADER_MAX);
    CHECK(header->header_bytes % PAGE == 0 && header->file_bytes % PAGE == 0);
    CHECK(header->file_bytes >= header->header_bytes);
    CHECK(header->parent_known <= 1 && header->ttl_s >= 0);
    CHECK(header->start == KVS_FORMAT_START_UNKNOWN ||
          header->start + header->block_count > header->start);
}

/* Every cell lies in its region, the regions follow each other and end with the file. */
static void check_regions(const struct kvs_extent_header *header, const uint32_t *cell_bytes)
{
    uint64_t *offsets = malloc(header->layer_count * sizeof(*offsets));
    uint32_t our_header;
    uint64_t our_file, end = header->header_bytes;
    CHECK(offsets);
    CHECK(kvs_format_geometry(header->layer_count, cell_bytes, header->block_count, 0, 0,
                              &our_header, offsets, &our_file) == 0);
    for (uint32_t layer = 0; layer < header->layer_count; layer++) {
        uint64_t at = offsets[layer] + header->header_bytes - our_header;
        uint64_t cells = (uint64_t)cell_bytes[layer] * header->block_count;
        CHECK(at == end && at % PAGE == 0 && at + cells <= header->file_bytes);
        end = at + (cells + PAGE - 1) / PAGE * PAGE;
    }
    CHECK(end == header->file_bytes);
    free(offsets);
}

/* What was read, written by us, is read as the same. */
static void check_round_trip(const struct kvs_extent_header *header, const uint32_t *cell_bytes,
                             const uint64_t *checksums)
{
    const size_t cells = (size_t)header->layer_count * header->block_count;
    struct kvs_extent_header ours = *header, again;
    CHECK(kvs_format_geometry(header->layer_count, cell_bytes, header->block_count, 0, 0,
                              &ours.header_bytes, NULL, &ours.file_bytes) == 0);
    uint8_t *bytes = malloc(ours.header_bytes);
    uint32_t *cell_bytes_again = malloc(header->layer_count * sizeof(*cell_bytes));
    uint64_t *checksums_again = malloc(cells * sizeof(*checksums));
    CHECK(bytes && cell_bytes_again && checksums_again);
    kvs_format_encode(&ours, cell_bytes, checksums, NULL, NULL, bytes);
    CHECK(kvs_format_decode_page(bytes, PAGE, &again) == KVS_VERDICT_GOOD);
    CHECK(memcmp(&ours, &again, sizeof(ours)) == 0);
    CHECK(kvs_format_decode_rest(bytes, &again, cell_bytes_again, checksums_again) ==
          KVS_VERDICT_GOOD);
    CHECK(memcmp(cell_bytes, cell_bytes_again, header->layer_count * sizeof(*cell_bytes)) == 0);
    CHECK(memcmp(checksums, checksums_again, cells * sizeof(*checksums)) == 0);
    free(checksums_again);
    free(cell_bytes_again);
    free(bytes);
}

static int is_good(const uint8_t *image)
{
    struct kvs_extent_header header;
    return kvs_format_decode_page(image, PAGE, &header) == KVS_VERDICT_GOOD &&
           kvs_format_decode_rest(image, &header, NULL, NULL) == KVS_VERDICT_GOOD;
}

/* No bit of a good header can turn around unnoticed; which one is drawn from the bytes. */
static void check_flips(uint8_t *image, const struct kvs_extent_header *header)
{
    const uint32_t bytes = header->header_bytes;
    for (uint32_t i = 0; i < 4; i++) {
        uint64_t bit = (kvs_xxh3(image, bytes) ^ i * 0x9E3779B97F4A7C15u) % (8 * (uint64_t)bytes);
        image[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK(!is_good(image));
        CHECK(kvs_format_decode_rest(image, header, NULL, NULL) != KVS_VERDICT_GOOD);
        image[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

static int check_image(uint8_t *image, const struct kvs_extent_header *header)
{
    const size_t cells = (size_t)header->layer_count * header->block_count;
    uint32_t *cell_bytes = malloc(header->layer_count * sizeof(*cell_bytes));
    uint64_t *checksums = malloc(cells * sizeof(*checksums));
    struct kvs_extent_header other = *header;
    CHECK(cell_bytes && checksums);
    enum kvs_verdict verdict = kvs_format_decode_rest(image, header, cell_bytes, checksums);
    CHECK(kvs_format_decode_rest(image, header, NULL, NULL) == verdict);
    CHECK(strcmp(kvs_verdict_name(verdict), "?") != 0);
    other.block_count++; /* the arrays of one who decoded another page would be too small */
    CHECK(kvs_format_decode_rest(image, &other, NULL, NULL) == KVS_VERDICT_MALFORMED);
    if (verdict == KVS_VERDICT_GOOD) {
        const uint8_t *ids = kvs_format_section(image, KVS_SECTION_TOKEN_IDS);
        uint64_t ids_bytes = 4ull * header->block_count * header->block_tokens;
        CHECK(!ids || (uint64_t)(ids - image) + ids_bytes <= header->header_bytes);
        check_regions(header, cell_bytes);
        check_round_trip(header, cell_bytes, checksums);
        check_flips(image, header);
    }
    free(checksums);
    free(cell_bytes);
    return verdict == KVS_VERDICT_GOOD;
}

/* `bytes` from the heap and not one more, so that a sanitizer sees a read past them. */
static int check_bytes(const uint8_t *data, size_t size, size_t bytes)
{
    struct kvs_extent_header header;
    int good = 0;
    uint8_t *image = calloc(bytes + 1, 1);
    CHECK(image);
    memcpy(image + 1, data, size); /* nor is it aligned */
    enum kvs_verdict verdict = kvs_format_decode_page(image + 1, bytes, &header);
    CHECK(strcmp(kvs_verdict_name(verdict), "?") != 0);
    CHECK((bytes < PAGE) == (verdict == KVS_VERDICT_SHORT));
    if (verdict == KVS_VERDICT_GOOD) {
        check_page(&header);
        uint8_t *whole = calloc(1, header.header_bytes);
        CHECK(whole);
        memcpy(whole, data, size < header.header_bytes ? size : header.header_bytes);
        good = check_image(whole, &header);
        free(whole);
    }
    free(image);
    return good;
}

int check_header_input(const uint8_t *data, size_t size)
{
    check_bytes(data, size, size);
    return check_bytes(data, size, whole_pages(size));
}

size_t seal_header(uint8_t *data, size_t size, size_t max)
{
    static uint8_t image[SEAL_MAX];
    struct kvs_disk_header header;
    if (max < KVS_FORMAT_FIRST_SECTION || size > SEAL_MAX) {
        return size;
    }
    if (size < KVS_FORMAT_FIRST_SECTION) {
        memset(data + size, 0, KVS_FORMAT_FIRST_SECTION - size);
        size = KVS_FORMAT_FIRST_SECTION;
    }
    memset(image, 0, sizeof(image));
    memcpy(image, data, size);
    memcpy(&header, image, sizeof(header));
    for (uint32_t i = 0; i < header.section_count && i < KVS_FORMAT_SECTIONS_MAX; i++) {
        struct kvs_disk_section section;
        uint8_t *entry = image + sizeof(header) + i * sizeof(section);
        memcpy(&section, entry, sizeof(section));
        if ((uint64_t)section.offset + section.bytes <= SEAL_MAX) {
            section.xxh3 = kvs_xxh3(image + section.offset, section.bytes);
            memcpy(entry, &section, sizeof(section));
        }
    }
    memset(image + offsetof(struct kvs_disk_header, page_xxh3), 0, sizeof(uint64_t));
    header.page_xxh3 = kvs_xxh3(image, PAGE);
    memcpy(image, &header, sizeof(header));
    memcpy(data, image, KVS_FORMAT_FIRST_SECTION);
    return size;
}
