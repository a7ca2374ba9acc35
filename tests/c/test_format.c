/*
 * Extent headers: round trips, every kind of damage, and sections of the future.
 * Golden files and garbage are in test_format_files.c.
 */
#include <errno.h>
#include <time.h>

#include "format_test.h"

static void fill(void *to, size_t bytes, uint64_t *state)
{
    for (size_t i = 0; i < bytes; i++) {
        ((uint8_t *)to)[i] = (uint8_t)(next_random(state) | 1); /* no zeros: each cut shows */
    }
}

/* An extent's header, its inputs, and its bytes in memory of exactly that length. */
struct sample {
    struct kvs_extent_header header;
    uint32_t cell_bytes[KVS_FORMAT_LAYERS_MAX];
    uint64_t offsets[KVS_FORMAT_LAYERS_MAX];
    uint64_t *checksums;
    struct kvs_key extras[KVS_FORMAT_BLOCKS_MAX];
    int with_extras;
    int32_t *token_ids; /* NULL: none */
    uint8_t *bytes;
};

enum { TOKENS = 64 }; /* a block */

/* `empty_step`: every so many layers one has no cells; 0: none. */
static struct sample *make_sample(uint32_t layers, uint32_t cell_bytes, uint32_t empty_step,
                                  uint32_t blocks, int with_extras, int with_ids, uint64_t *state)
{
    struct sample *sample = calloc(1, sizeof(*sample));
    CHECK(sample);
    struct kvs_extent_header *header = &sample->header;
    for (uint32_t layer = 0; layer < layers; layer++) {
        int empty = empty_step && layer % empty_step == 0;
        sample->cell_bytes[layer] = empty ? 0 : cell_bytes;
    }
    header->layer_count = layers;
    header->block_count = blocks;
    header->block_tokens = TOKENS;
    CHECK(kvs_format_geometry(layers, sample->cell_bytes, blocks, with_extras,
                              with_ids ? TOKENS : 0, &header->header_bytes, sample->offsets,
                              &header->file_bytes) == 0);
    fill(header->fingerprint, sizeof(header->fingerprint), state);
    fill(&header->parent, sizeof(header->parent), state);
    header->parent_known = 1;
    header->start = 48;
    memcpy(header->class_name, "agent", 5);
    header->created_s = 1700000000;
    header->ttl_s = 3 * 86400;
    fill(header->keys, blocks * sizeof(struct kvs_key), state);
    fill(sample->extras, blocks * sizeof(struct kvs_key), state);
    sample->with_extras = with_extras;
    if (with_ids) {
        sample->token_ids = malloc(blocks * TOKENS * sizeof(*sample->token_ids));
        CHECK(sample->token_ids);
        fill(sample->token_ids, blocks * TOKENS * sizeof(*sample->token_ids), state);
    }
    size_t checksum_bytes = (size_t)layers * blocks * sizeof(uint64_t);
    sample->checksums = malloc(checksum_bytes);
    sample->bytes = malloc(header->header_bytes);
    CHECK(sample->checksums && sample->bytes);
    fill(sample->checksums, checksum_bytes, state);
    kvs_format_encode(header, sample->cell_bytes, sample->checksums,
                      with_extras ? sample->extras : NULL, sample->token_ids, sample->bytes);
    return sample;
}

static void free_sample(struct sample *sample)
{
    free(sample->checksums);
    free(sample->token_ids);
    free(sample->bytes);
    free(sample);
}

/* The first verdict that is not good, of both halves. The header says how long `bytes` must be. */
static enum kvs_verdict judge(const uint8_t *bytes, size_t have)
{
    struct kvs_extent_header header;
    enum kvs_verdict verdict = kvs_format_decode_page(bytes, have, &header);
    if (verdict == KVS_VERDICT_GOOD && header.header_bytes <= have) {
        verdict = kvs_format_decode_rest(bytes, &header, NULL, NULL);
    }
    return verdict;
}

/* ---------------------------------------------------------------------------- round trips */

static void expect_round_trip(const struct sample *sample)
{
    const struct kvs_extent_header *in = &sample->header;
    struct kvs_extent_header out;
    size_t cells = (size_t)in->layer_count * in->block_count;
    uint32_t *cell_bytes = malloc(in->layer_count * sizeof(*cell_bytes));
    uint64_t *checksums = malloc(cells * sizeof(*checksums));
    CHECK(cell_bytes && checksums);
    CHECK(kvs_format_decode_page(sample->bytes, KVS_FORMAT_PAGE_BYTES, &out) == KVS_VERDICT_GOOD);
    CHECK(out.layer_count == in->layer_count && out.block_count == in->block_count);
    CHECK(out.block_tokens == in->block_tokens && out.header_bytes == in->header_bytes);
    CHECK(out.file_bytes == in->file_bytes && out.start == in->start);
    CHECK(out.parent_known == in->parent_known && out.created_s == in->created_s);
    CHECK(out.ttl_s == in->ttl_s);
    CHECK(memcmp(&out.parent, &in->parent, sizeof(out.parent)) == 0);
    CHECK(memcmp(out.fingerprint, in->fingerprint, sizeof(out.fingerprint)) == 0);
    CHECK(memcmp(out.class_name, in->class_name, sizeof(out.class_name)) == 0);
    CHECK(memcmp(out.keys, in->keys, sizeof(out.keys)) == 0);
    CHECK(kvs_format_decode_rest(sample->bytes, &out, cell_bytes, checksums) == KVS_VERDICT_GOOD);
    CHECK(memcmp(cell_bytes, sample->cell_bytes, in->layer_count * sizeof(*cell_bytes)) == 0);
    CHECK(memcmp(checksums, sample->checksums, cells * sizeof(*checksums)) == 0);
    CHECK(kvs_format_decode_rest(sample->bytes, &out, NULL, NULL) == KVS_VERDICT_GOOD);
    const void *ids = kvs_format_section(sample->bytes, KVS_SECTION_TOKEN_IDS);
    CHECK((ids == NULL) == (sample->token_ids == NULL));
    CHECK(!ids || memcmp(ids, sample->token_ids, in->block_count * TOKENS * sizeof(int32_t)) == 0);
    free(cell_bytes);
    free(checksums);
}

static void expect_regions_in_order(const struct sample *sample)
{
    uint64_t end = sample->header.header_bytes;
    for (uint32_t layer = 0; layer < sample->header.layer_count; layer++) {
        CHECK(sample->offsets[layer] == end && end % 4096 == 0);
        end += (uint64_t)sample->cell_bytes[layer] * sample->header.block_count;
        end = (end + 4095) / 4096 * 4096;
    }
    CHECK(sample->header.file_bytes == end);
}

static void test_round_trips_of_real_geometries(uint64_t *state)
{
    static const struct {
        uint32_t layers, cell_bytes, empty_step, blocks;
    } GEOMETRIES[] = {
        {61, 73728, 0, 16},                /* MLA, bf16 */
        {61, 41984, 0, 16},                /* MLA, fp8 */
        {61, 50432, 0, 16},                /* MLA, fp8 with an index */
        {80, 262144, 0, 16},               /* GQA, bf16 */
        {32, 1000, 4, 1},                  /* hybrid: every fourth layer has nothing */
        {1, 1, 0, 1},                      /* the smallest */
        {3, 0, 0, 2},                      /* nothing but keys */
        {1024, 67108864, 0, 64},           /* the largest */
        {1024, UINT32_MAX, 3, 64},
    };
    for (size_t i = 0; i < sizeof(GEOMETRIES) / sizeof(GEOMETRIES[0]); i++) {
        for (int with = 0; with < 4; with++) { /* extras, token ids */
            struct sample *sample = make_sample(GEOMETRIES[i].layers, GEOMETRIES[i].cell_bytes,
                                                GEOMETRIES[i].empty_step, GEOMETRIES[i].blocks,
                                                with & 1, with / 2, state);
            expect_round_trip(sample);
            expect_regions_in_order(sample);
            free_sample(sample);
        }
    }
}

static void test_unknown_parent_and_start_survive(uint64_t *state)
{
    struct sample *sample = make_sample(2, 4096, 0, 1, 0, 0, state);
    memset(&sample->header.parent, 0, sizeof(sample->header.parent));
    sample->header.parent_known = 0;
    sample->header.start = KVS_FORMAT_START_UNKNOWN;
    memcpy(sample->header.class_name, "sixteen-letters!", 16);
    kvs_format_encode(&sample->header, sample->cell_bytes, sample->checksums, NULL, NULL,
                      sample->bytes);
    expect_round_trip(sample);
    free_sample(sample);
}

static void test_sizes_past_a_limit_are_refused(void)
{
    uint32_t cells[KVS_FORMAT_LAYERS_MAX + 1] = {0};
    uint32_t header_bytes;
    uint64_t file_bytes;
    CHECK(kvs_format_geometry(0, cells, 1, 0, 0, &header_bytes, NULL, &file_bytes) == -EINVAL);
    CHECK(kvs_format_geometry(1, cells, 0, 0, 0, &header_bytes, NULL, &file_bytes) == -EINVAL);
    CHECK(kvs_format_geometry(1025, cells, 1, 0, 0, &header_bytes, NULL, &file_bytes) == -EINVAL);
    CHECK(kvs_format_geometry(1, cells, 65, 0, 0, &header_bytes, NULL, &file_bytes) == -EINVAL);
    CHECK(kvs_format_geometry(1, cells, 1, 0, KVS_BLOCK_TOKENS_MAX + 1, &header_bytes, NULL,
                              &file_bytes) == -EINVAL);
    /* Ids alone can make a header too long: the limit is what a reader may rely on. */
    CHECK(kvs_format_geometry(1, cells, 64, 0, 4096, &header_bytes, NULL, &file_bytes) == -EINVAL);
    CHECK(kvs_format_geometry(1, cells, 63, 0, 4096, &header_bytes, NULL, &file_bytes) == 0);
    CHECK(kvs_format_geometry(1024, cells, 64, 1, 0, &header_bytes, NULL, &file_bytes) == 0);
    CHECK(header_bytes <= KVS_FORMAT_HEADER_MAX && file_bytes == header_bytes);
}

/* --------------------------------------------------------------------------------- damage */

static void test_every_truncated_length_is_caught(const struct sample *sample)
{
    uint32_t bytes = sample->header.header_bytes;
    uint8_t *torn = malloc(bytes);
    CHECK(torn);
    for (uint32_t length = 0; length < KVS_FORMAT_PAGE_BYTES; length++) {
        uint8_t *exact = malloc(length + 1); /* a sanitizer sees a read past its end */
        CHECK(exact);
        memcpy(exact + 1, sample->bytes, length);
        CHECK(judge(exact + 1, length) == KVS_VERDICT_SHORT);
        free(exact);
    }
    /* A file that has its length but lost its tail: zeros from some byte on. */
    memcpy(torn, sample->bytes, bytes);
    for (uint32_t length = bytes; length-- > 0;) {
        torn[length] = 0;
        CHECK(memcmp(torn, sample->bytes, bytes) == 0 || judge(torn, bytes) != KVS_VERDICT_GOOD);
    }
    free(torn);
}

static void expect_flip_caught(uint8_t *bytes, uint32_t count, uint64_t bit)
{
    bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    CHECK(judge(bytes, count) != KVS_VERDICT_GOOD);
    bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
}

static void test_every_flipped_bit_is_caught(const struct sample *sample)
{
    uint32_t bytes = sample->header.header_bytes;
    for (uint64_t bit = 0; bit < (uint64_t)bytes * 8; bit++) {
        expect_flip_caught(sample->bytes, bytes, bit);
    }
    CHECK(judge(sample->bytes, bytes) == KVS_VERDICT_GOOD);
}

static void test_flipped_bits_of_the_largest_header_are_caught(uint64_t *state)
{
    struct sample *sample = make_sample(1024, 4096, 0, 64, 1, 1, state);
    uint32_t bytes = sample->header.header_bytes;
    for (int i = 0; i < 300; i++) {
        expect_flip_caught(sample->bytes, bytes, next_random(state) % ((uint64_t)bytes * 8));
    }
    free_sample(sample);
}

static void test_damage_gets_its_name(const struct sample *sample)
{
    uint32_t bytes = sample->header.header_bytes;
    uint8_t *copy = malloc(bytes);
    CHECK(copy);
    memcpy(copy, sample->bytes, bytes);
    copy[0] = 'k';
    CHECK(judge(copy, bytes) == KVS_VERDICT_MAGIC);
    memcpy(copy, sample->bytes, bytes);
    copy[offsetof(struct kvs_disk_header, version)] = 2;
    reseal(copy);
    CHECK(judge(copy, bytes) == KVS_VERDICT_VERSION);
    memcpy(copy, sample->bytes, bytes);
    copy[bytes - 1] ^= 1; /* padding */
    CHECK(judge(copy, bytes) == KVS_VERDICT_CHECKSUM);
    CHECK(strcmp(kvs_verdict_name(KVS_VERDICT_MALFORMED), "malformed") == 0);
    CHECK(strcmp(kvs_verdict_name((enum kvs_verdict)77), "?") == 0);
    free(copy);
}

static void test_a_file_length_that_cells_contradict_is_malformed(const struct sample *sample)
{
    struct kvs_extent_header header = sample->header;
    uint8_t *copy = malloc(header.header_bytes);
    CHECK(copy);
    header.file_bytes += 4096;
    kvs_format_encode(&header, sample->cell_bytes, sample->checksums,
                      sample->with_extras ? sample->extras : NULL, sample->token_ids, copy);
    CHECK(kvs_format_decode_page(copy, header.header_bytes, &header) == KVS_VERDICT_GOOD);
    CHECK(kvs_format_decode_rest(copy, &header, NULL, NULL) == KVS_VERDICT_MALFORMED);
    /* Another extent's page than the one decoded before. */
    CHECK(kvs_format_decode_rest(sample->bytes, &header, NULL, NULL) == KVS_VERDICT_MALFORMED);
    free(copy);
}

/* -------------------------------------------------------------------- sections of the future */

static struct kvs_disk_header *disk_header(uint8_t *bytes)
{
    return (struct kvs_disk_header *)(void *)bytes;
}

static struct kvs_disk_section *disk_section(uint8_t *bytes, uint32_t number)
{
    return (struct kvs_disk_section *)(void *)(bytes + sizeof(struct kvs_disk_header)) + number;
}

/* A copy with one more section of `bytes` bytes behind the others, in a header as long as needed.
 * *length: its header_bytes. */
static uint8_t *with_section(const struct sample *sample, uint16_t type, uint16_t flags,
                             uint32_t bytes, uint32_t *length)
{
    uint32_t old = sample->header.header_bytes;
    *length = old + (bytes + 8 + 4095) / 4096 * 4096;
    uint8_t *copy = calloc(1, *length);
    CHECK(copy);
    memcpy(copy, sample->bytes, old);
    struct kvs_disk_header *header = disk_header(copy);
    struct kvs_disk_section *last = disk_section(copy, header->section_count - 1u);
    struct kvs_disk_section *added = disk_section(copy, header->section_count++);
    header->header_bytes = *length;
    header->file_bytes += *length - old;
    *added = (struct kvs_disk_section){.type = type,
                                       .flags = flags,
                                       .offset = (last->offset + last->bytes + 7) / 8 * 8,
                                       .bytes = bytes};
    memset(copy + added->offset, 0xA5, bytes);
    added->xxh3 = kvs_xxh3(copy + added->offset, bytes);
    reseal(copy);
    return copy;
}

static void test_an_unknown_optional_section_is_skipped(const struct sample *sample)
{
    static const uint32_t BYTES[] = {0, 1, 100, 20000};
    for (size_t i = 0; i < sizeof(BYTES) / sizeof(BYTES[0]); i++) {
        uint32_t length;
        uint8_t *copy = with_section(sample, 900, 0, BYTES[i], &length);
        CHECK(judge(copy, length) == KVS_VERDICT_GOOD);
        if (BYTES[i]) {
            uint64_t first =
                (uint64_t)disk_section(copy, disk_header(copy)->section_count - 1u)->offset * 8;
            expect_flip_caught(copy, length, first);
        }
        free(copy);
    }
}

static void test_an_unknown_required_section_makes_the_file_foreign(const struct sample *sample)
{
    uint32_t length;
    uint8_t *copy = with_section(sample, 900, KVS_SECTION_REQUIRED, 100, &length);
    CHECK(judge(copy, length) == KVS_VERDICT_UNKNOWN);
    free(copy);
}

static void expect_malformed(uint8_t *copy, uint32_t length)
{
    reseal(copy);
    CHECK(judge(copy, length) == KVS_VERDICT_MALFORMED);
    free(copy);
}

static void test_tables_that_contradict_themselves_are_malformed(const struct sample *sample)
{
    uint32_t length, blocks = sample->header.block_count;
    uint8_t *copy = with_section(sample, 900, 0, 100, &length);
    struct kvs_disk_section *last = disk_section(copy, disk_header(copy)->section_count - 1u);
    struct kvs_disk_section good = *last;
    struct kvs_disk_section bad[6] = {good, good, good, good, good, good};
    bad[0].offset = 512;            /* over another one */
    bad[1].offset = UINT32_MAX - 7; /* offset + bytes wraps */
    bad[2].bytes = UINT32_MAX;
    bad[3].flags = 2;
    bad[4].zero = 1;
    bad[5].offset += 4; /* not aligned */
    for (size_t i = 0; i < 6; i++) {
        *last = bad[i];
        reseal(copy);
        CHECK(judge(copy, length) == KVS_VERDICT_MALFORMED);
    }
    free(copy);
    copy = with_section(sample, KVS_SECTION_EXTRAS, 0, blocks * 32, &length); /* a second one */
    expect_malformed(copy, length);
    copy = with_section(sample, KVS_SECTION_TOKEN_IDS, 0, blocks * TOKENS * 4, &length);
    expect_malformed(copy, length); /* again a second one */
    copy = with_section(sample, 0, 0, 0, &length);
    expect_malformed(copy, length);
    copy = with_section(sample, 900, 0, 100, &length);
    disk_section(copy, KVS_SECTION_CELLS - 1)->type = 901; /* a required one is missing */
    disk_section(copy, KVS_SECTION_CELLS - 1)->flags = 0;
    expect_malformed(copy, length);
}

int main(void)
{
    uint64_t state = (uint64_t)time(NULL);
    printf("seed %llu\n", (unsigned long long)state);
    test_round_trips_of_real_geometries(&state);
    test_unknown_parent_and_start_survive(&state);
    test_sizes_past_a_limit_are_refused();
    test_flipped_bits_of_the_largest_header_are_caught(&state);
    /* One whose sections end in the first page, and one whose checksums need a second. */
    for (uint32_t layers = 3; layers <= 40; layers += 37) {
        struct sample *sample = make_sample(layers, 2304, 3, 16, 1, 1, &state);
        test_every_truncated_length_is_caught(sample);
        test_every_flipped_bit_is_caught(sample);
        test_damage_gets_its_name(sample);
        test_a_file_length_that_cells_contradict_is_malformed(sample);
        test_an_unknown_optional_section_is_skipped(sample);
        test_an_unknown_required_section_makes_the_file_foreign(sample);
        test_tables_that_contradict_themselves_are_malformed(sample);
        free_sample(sample);
    }
    return 0;
}
