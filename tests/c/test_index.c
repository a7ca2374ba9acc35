/*
 * The index against a plain list of entries: random operations, duplicates, memory, refusal.
 *
 * Tags of the model come from few values, so that duplicates and shared fingerprints are common.
 */
#include "index.h"

#include <errno.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "format_test.h"

enum { POSITIONS = 64, MODEL_EXTENTS = 64, MODEL_ENTRIES = MODEL_EXTENTS * POSITIONS };

static uint64_t tags_asked;

/* The caller's tag array: one tag per (extent, position). */
static uint64_t tag_of(void *arg, uint32_t extent, uint8_t position)
{
    const uint64_t *tags = arg;
    tags_asked++;
    return tags[(size_t)extent * POSITIONS + position];
}

struct entry {
    uint64_t tag;
    uint32_t extent;
    uint8_t position;
};

struct model {
    uint64_t tags[MODEL_ENTRIES];
    struct entry entries[MODEL_ENTRIES]; /* in insertion order */
    size_t count;
    struct kvs_index *index;
};

/* Spread over all buckets, over some, or crowded into a few whose chains get long; all with few
 * marks, so that an entry has to be told from others by its whole tag. */
static uint64_t pick_tag(uint64_t *state, unsigned crowding)
{
    uint64_t value = next_random(state);
    uint64_t low = crowding == 0   ? value & 0xFFFFFFFFu
                   : crowding == 1 ? (value & 0xFF) << 4
                                   : (value & 1 ? 0xFFFFFFFFu - (value & 7) : value & 7);
    return (value >> 40 & 3) << 40 | (value >> 50 & 3) << 32 | low;
}

static void expect_same_answers(const struct model *model, uint64_t tag)
{
    struct kvs_index_cursor cursor = {0};
    for (size_t i = 0; i < model->count; i++) {
        if (model->entries[i].tag == tag) {
            CHECK(kvs_index_find(model->index, tag, &cursor) == 1);
            CHECK(cursor.extent == model->entries[i].extent);
            CHECK(cursor.position == model->entries[i].position);
        }
    }
    CHECK(kvs_index_find(model->index, tag, &cursor) == 0);
    CHECK(kvs_index_find(model->index, tag, &cursor) == 0);
}

static int model_holds(const struct model *model, uint32_t extent, uint8_t position)
{
    for (size_t i = 0; i < model->count; i++) {
        if (model->entries[i].extent == extent && model->entries[i].position == position) {
            return 1;
        }
    }
    return 0;
}

static void model_insert(struct model *model, uint64_t tag, uint32_t extent, uint8_t position)
{
    if (model_holds(model, extent, position)) {
        return;
    }
    model->tags[extent * POSITIONS + position] = tag;
    model->entries[model->count++] = (struct entry){tag, extent, position};
    CHECK(kvs_index_insert(model->index, tag, extent, position) == 0);
}

static void model_remove(struct model *model, size_t number)
{
    struct entry entry = model->entries[number];
    CHECK(kvs_index_remove(model->index, entry.tag, entry.extent, entry.position) == 0);
    CHECK(kvs_index_remove(model->index, entry.tag, entry.extent, entry.position) == -ENOENT);
    model->count--;
    memmove(&model->entries[number], &model->entries[number + 1],
            (model->count - number) * sizeof(model->entries[0]));
}

static void expect_bounded_memory(const struct kvs_index *index)
{
    uint64_t count = kvs_index_count(index);
    /* Each bucket's last node may hold a single entry. */
    uint64_t buckets = count / 25 + 2;
    CHECK(kvs_index_bytes(index) <= 1024 + count * 128 / 15 + buckets * (128 + 8));
}

static void test_random_operations_agree_with_the_model(uint64_t seed, unsigned crowding)
{
    struct model *model = calloc(1, sizeof(*model));
    CHECK(model && kvs_index_open(tag_of, model->tags, &model->index) == 0);
    uint64_t state = seed;
    for (int step = 0; step < 20000; step++) {
        /* Swings between growing and shrinking. */
        unsigned insert_share = step / 2500 % 2 ? 35 : 65;
        if (next_random(&state) % 100 < insert_share || model->count == 0) {
            uint64_t place = next_random(&state);
            model_insert(model, pick_tag(&state, crowding), (uint32_t)(place % MODEL_EXTENTS),
                         (uint8_t)(place >> 32) % POSITIONS);
        } else {
            model_remove(model, next_random(&state) % model->count);
        }
        CHECK(kvs_index_count(model->index) == model->count);
        expect_bounded_memory(model->index);
        expect_same_answers(model, pick_tag(&state, crowding));
        if (model->count) {
            expect_same_answers(model, model->entries[next_random(&state) % model->count].tag);
        }
    }
    while (model->count) {
        model_remove(model, next_random(&state) % model->count);
    }
    expect_bounded_memory(model->index);
    kvs_index_close(model->index);
    free(model);
}

static void test_an_empty_index_finds_nothing(void)
{
    uint64_t tags[POSITIONS] = {0};
    struct kvs_index *index;
    struct kvs_index_cursor cursor = {0};
    CHECK(kvs_index_open(tag_of, tags, &index) == 0);
    CHECK(kvs_index_find(index, 7, &cursor) == 0);
    CHECK(kvs_index_remove(index, 7, 0, 0) == -ENOENT);
    CHECK(kvs_index_count(index) == 0);
    kvs_index_close(index);
    kvs_index_close(NULL);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Whatever the index holds: the work of one call, counted in tags asked for. */
static void test_no_call_takes_longer_because_there_are_many_entries(uint64_t seed)
{
    enum { COUNT = 300000, MOST = 2 * 40 + 60 }; /* a bucket before it is split, and its chance */
    uint64_t *tags = calloc(COUNT, sizeof(*tags));
    struct kvs_index *index;
    uint64_t state = seed, inserts_asked = 0;
    CHECK(tags && kvs_index_open(tag_of, tags, &index) == 0);
    for (uint32_t i = 0; i < COUNT; i++) {
        tags[i] = next_random(&state);
        tags_asked = 0;
        CHECK(kvs_index_insert(index, tags[i], i / POSITIONS, (uint8_t)(i % POSITIONS)) == 0);
        CHECK(tags_asked <= MOST);
        inserts_asked += tags_asked;
    }
    CHECK(inserts_asked < 2 * COUNT);
    tags_asked = 0;
    for (uint32_t i = 0; i < COUNT; i++) {
        struct kvs_index_cursor cursor = {0};
        CHECK(kvs_index_find(index, tags[i], &cursor) == 1);
    }
    CHECK(tags_asked < COUNT + COUNT / 100); /* 24 bits of the tag are in the entry */
    for (uint32_t i = 0; i < COUNT; i++) {
        tags_asked = 0;
        CHECK(kvs_index_remove(index, tags[i], i / POSITIONS, (uint8_t)(i % POSITIONS)) == 0);
        CHECK(tags_asked == 0);
    }
    kvs_index_close(index);
    free(tags);
}

static void test_a_million_blocks_fit_in_20_bytes_each(uint64_t seed)
{
    enum { COUNT = 1000000 };
    uint64_t *tags = calloc(COUNT, sizeof(*tags));
    struct kvs_index *index;
    uint64_t state = seed;
    CHECK(tags && kvs_index_open(tag_of, tags, &index) == 0);
    double start = seconds();
    for (uint32_t i = 0; i < COUNT; i++) {
        tags[i] = next_random(&state);
        CHECK(kvs_index_insert(index, tags[i], i / POSITIONS, (uint8_t)(i % POSITIONS)) == 0);
        uint64_t bytes = kvs_index_bytes(index) + (uint64_t)(i + 1) * sizeof(*tags);
        CHECK(i < 1000 || bytes <= (uint64_t)(i + 1) * 20);
    }
    double inserted = seconds();
    for (uint32_t i = 0; i < COUNT; i++) {
        struct kvs_index_cursor cursor = {0};
        CHECK(kvs_index_find(index, tags[i], &cursor) == 1);
        CHECK(cursor.extent == i / POSITIONS && cursor.position == i % POSITIONS);
    }
    double found = seconds();
    for (uint32_t i = 0; i < COUNT; i++) {
        CHECK(kvs_index_remove(index, tags[i], i / POSITIONS, (uint8_t)(i % POSITIONS)) == 0);
    }
    printf("1M entries: insert %.3f s, find %.3f s, remove %.3f s\n", inserted - start,
           found - inserted, seconds() - found);
    CHECK(kvs_index_count(index) == 0);
    kvs_index_close(index);
    free(tags);
}

#ifndef __SANITIZE_ADDRESS__
/* An address-space limit does not get on with the sanitizer's shadow memory. */
static uint64_t address_space_bytes(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void test_a_refused_growth_leaves_the_index_as_it_was(uint64_t seed)
{
    enum { COUNT = 4000000 };
    uint64_t *tags = calloc(COUNT, sizeof(*tags));
    struct kvs_index *index;
    struct rlimit before, tight;
    uint64_t state = seed;
    uint32_t count = 0;
    CHECK(tags && kvs_index_open(tag_of, tags, &index) == 0);
    CHECK(getrlimit(RLIMIT_AS, &before) == 0);
    tight = before;
    tight.rlim_cur = address_space_bytes() + (8u << 20);
    CHECK(setrlimit(RLIMIT_AS, &tight) == 0);
    int error = 0;
    while (count < COUNT && !error) {
        tags[count] = next_random(&state);
        error =
            kvs_index_insert(index, tags[count], count / POSITIONS, (uint8_t)(count % POSITIONS));
        count += !error;
    }
    CHECK(setrlimit(RLIMIT_AS, &before) == 0);
    CHECK(error == -ENOMEM && kvs_index_count(index) == count);
    for (uint32_t i = 0; i < count; i++) {
        struct kvs_index_cursor cursor = {0};
        CHECK(kvs_index_find(index, tags[i], &cursor) == 1 && cursor.extent == i / POSITIONS);
    }
    CHECK(kvs_index_insert(index, tags[count], count / POSITIONS, (uint8_t)(count % POSITIONS)) ==
          0);
    kvs_index_close(index);
    free(tags);
}
#endif

int main(void)
{
    uint64_t seed = (uint64_t)time(NULL);
    printf("seed %llu\n", (unsigned long long)seed);
    test_an_empty_index_finds_nothing();
    for (unsigned crowding = 0; crowding < 3; crowding++) {
        test_random_operations_agree_with_the_model(seed, crowding);
    }
    test_no_call_takes_longer_because_there_are_many_entries(seed);
    test_a_million_blocks_fit_in_20_bytes_each(seed);
#ifndef __SANITIZE_ADDRESS__
    test_a_refused_growth_leaves_the_index_as_it_was(seed);
#endif
    return 0;
}
