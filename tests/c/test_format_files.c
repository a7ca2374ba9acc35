/*
 * Golden extents made by an independent encoder, and garbage made from them: whatever the bytes,
 * decoding ends with a verdict and stays inside them (run it with the sanitizers).
 *
 *   test_format_files [DIRECTORY]    of the golden files; default: tests/data
 */
#include <time.h>

#include "format_test.h"

struct file {
    uint8_t *bytes;
    size_t length;
};

static struct file read_file(const char *directory, const char *name)
{
    enum { LENGTH_MAX = 65536 };
    char path[1024];
    snprintf(path, sizeof(path), "%s/%s", directory, name);
    FILE *stream = fopen(path, "rb");
    if (!stream) {
        fprintf(stderr, "no %s: run from the repository's root, or name the directory\n", path);
        exit(1);
    }
    struct file file = {.bytes = malloc(LENGTH_MAX)};
    CHECK(file.bytes);
    file.length = fread(file.bytes, 1, LENGTH_MAX, stream);
    fclose(stream);
    return file;
}

static void expect_cells_match(const struct file *file, const struct kvs_extent_header *header,
                               const uint32_t *cell_bytes, const uint64_t *checksums,
                               const uint64_t *offsets)
{
    for (uint32_t layer = 0; layer < header->layer_count; layer++) {
        for (uint32_t block = 0; cell_bytes[layer] && block < header->block_count; block++) {
            const uint8_t *cell = file->bytes + offsets[layer] + block * cell_bytes[layer];
            CHECK(kvs_xxh3(cell, cell_bytes[layer]) ==
                  checksums[layer * header->block_count + block]);
        }
    }
}

/* Decodes a golden file, checks every cell, and (no sections of the future) encodes the header
 * again to the same bytes. */
static struct kvs_extent_header expect_golden(const struct file *file, int has_extras, int has_ids,
                                              int can_encode)
{
    static uint32_t cell_bytes[KVS_FORMAT_LAYERS_MAX];
    static uint64_t checksums[64 * KVS_FORMAT_BLOCKS_MAX];
    uint64_t offsets[64];
    struct kvs_extent_header header;
    uint32_t header_bytes;
    uint64_t file_bytes;
    CHECK(kvs_format_decode_page(file->bytes, file->length, &header) == KVS_VERDICT_GOOD);
    CHECK(header.file_bytes == file->length && header.layer_count <= 64);
    CHECK(kvs_format_decode_rest(file->bytes, &header, cell_bytes, checksums) == KVS_VERDICT_GOOD);
    if (can_encode) {
        CHECK(kvs_format_geometry(header.layer_count, cell_bytes, header.block_count, has_extras,
                                  has_ids ? header.block_tokens : 0, &header_bytes, offsets,
                                  &file_bytes) == 0);
        CHECK(header_bytes == header.header_bytes && file_bytes == header.file_bytes);
        expect_cells_match(file, &header, cell_bytes, checksums, offsets);
        struct kvs_key extras[KVS_FORMAT_BLOCKS_MAX];
        const void *digests = kvs_format_section(file->bytes, KVS_SECTION_EXTRAS);
        CHECK((digests != NULL) == has_extras);
        if (digests) {
            memcpy(extras, digests, header.block_count * sizeof(extras[0]));
        }
        uint8_t *again = malloc(header_bytes);
        CHECK(again);
        const void *kept = kvs_format_section(file->bytes, KVS_SECTION_TOKEN_IDS);
        int32_t *ids = malloc(header.block_count * header.block_tokens * sizeof(*ids));
        CHECK(ids && (kept != NULL) == has_ids);
        if (kept) {
            memcpy(ids, kept, header.block_count * header.block_tokens * sizeof(*ids));
        }
        kvs_format_encode(&header, cell_bytes, checksums, has_extras ? extras : NULL,
                          kept ? ids : NULL, again);
        free(ids);
        CHECK(memcmp(again, file->bytes, header_bytes) == 0);
        free(again);
    }
    return header;
}

static void test_goldens_decode_and_encode_to_the_same_bytes(const char *directory)
{
    struct file mla = read_file(directory, "mla.kv");
    struct file gqa = read_file(directory, "gqa.kv");
    struct file later = read_file(directory, "later.kv");
    struct file ids = read_file(directory, "token_ids.kv");
    struct kvs_extent_header header = expect_golden(&mla, 0, 0, 1);
    CHECK(header.start == 4 && header.parent_known && header.block_count == 4);
    CHECK(strcmp(header.class_name, "agent") == 0 && header.ttl_s == 259200);
    struct kvs_extent_header with_unknown_section = expect_golden(&later, 0, 0, 0);
    CHECK(memcmp(with_unknown_section.keys, header.keys, sizeof(header.keys)) == 0);
    struct kvs_extent_header with_ids = expect_golden(&ids, 1, 1, 1);
    header = expect_golden(&gqa, 1, 0, 1);
    CHECK(header.start == 0 && header.layer_count == 40 && header.header_bytes == 8192);
    CHECK(memcmp(with_ids.keys, header.keys, sizeof(header.keys)) == 0);
    free(mla.bytes);
    free(gqa.bytes);
    free(later.bytes);
    free(ids.bytes);
}

/* ------------------------------------------------------------------------------- garbage */

/* Decodes from a buffer of exactly `length` bytes, so that a read past it is seen. */
static void decode_whatever(const uint8_t *bytes, size_t length)
{
    static uint32_t cell_bytes[KVS_FORMAT_LAYERS_MAX];
    static uint64_t checksums[KVS_FORMAT_LAYERS_MAX * KVS_FORMAT_BLOCKS_MAX];
    struct kvs_extent_header header;
    uint8_t *exact = malloc(length + 1);
    CHECK(exact);
    memcpy(exact + 1, bytes, length); /* not aligned either */
    enum kvs_verdict verdict = kvs_format_decode_page(exact + 1, length, &header);
    CHECK(strcmp(kvs_verdict_name(verdict), "?") != 0);
    if (verdict == KVS_VERDICT_GOOD && header.header_bytes <= length) {
        CHECK(header.layer_count <= KVS_FORMAT_LAYERS_MAX);
        CHECK(header.block_count <= KVS_FORMAT_BLOCKS_MAX);
        kvs_format_decode_rest(exact + 1, &header, cell_bytes, checksums);
        const uint8_t *ids = kvs_format_section(exact + 1, KVS_SECTION_TOKEN_IDS);
        size_t ids_bytes = (size_t)header.block_count * header.block_tokens * sizeof(int32_t);
        CHECK(!ids || ids + ids_bytes <= exact + 1 + header.header_bytes);
    }
    free(exact);
}

static void test_garbage_gets_a_verdict(uint64_t *state)
{
    uint8_t garbage[16384];
    for (int round = 0; round < 300; round++) {
        for (size_t i = 0; i < sizeof(garbage); i++) {
            garbage[i] = (uint8_t)next_random(state);
        }
        if (round % 3) { /* past magic and version, then past the checksum as well */
            memcpy(garbage, KVS_FORMAT_MAGIC, 8);
            memcpy(garbage + 8, &(uint16_t){KVS_FORMAT_VERSION}, sizeof(uint16_t));
        }
        if (round % 3 == 2) {
            reseal(garbage);
        }
        decode_whatever(garbage, next_random(state) % (sizeof(garbage) + 1));
        decode_whatever(garbage, sizeof(garbage));
    }
}

/* Damage whose checksum was made to fit: only the checks of the fields themselves are left. */
static void test_sealed_damage_gets_a_verdict(const char *directory, uint64_t *state)
{
    static const uint32_t ODD[] = {0, 1, 7, 511, 512, 4095, 4096, 8192, 0x7FFFFFFF, 0xFFFFFFFF};
    struct file file = read_file(directory, "gqa.kv");
    uint8_t *copy = malloc(file.length);
    CHECK(copy);
    for (int round = 0; round < 20000; round++) {
        memcpy(copy, file.bytes, file.length);
        for (uint64_t edits = 1 + next_random(state) % 3; edits > 0; edits--) {
            uint32_t odd = ODD[next_random(state) % (sizeof(ODD) / sizeof(ODD[0]))];
            size_t bytes = 1u << next_random(state) % 3;
            size_t at = 8 + next_random(state) % 240; /* header and table */
            memcpy(copy + at / bytes * bytes, &odd, bytes);
        }
        reseal(copy);
        decode_whatever(copy, 8192);
    }
    free(copy);
    free(file.bytes);
}

int main(int argc, char **argv)
{
    const char *directory = argc > 1 ? argv[1] : "tests/data";
    uint64_t state = (uint64_t)time(NULL);
    printf("seed %llu\n", (unsigned long long)state);
    test_goldens_decode_and_encode_to_the_same_bytes(directory);
    test_garbage_gets_a_verdict(&state);
    test_sealed_damage_gets_a_verdict(directory, &state);
    return 0;
}
