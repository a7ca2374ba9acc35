/*
 * test_arena.c: the arena against a model that keeps one byte per unit, and its memory against what
 * the kernel says about it. Prints "ok NAME" per case; the seed can be given as first argument.
 */
#include "arena.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { UNIT = KVS_ARENA_UNIT_BYTES, MAX_LIVE = 4096 };

static const uint64_t MIB = (uint64_t)1 << 20;
static const uint64_t PIECE_UNITS = KVS_ARENA_PIECE_BYTES / KVS_ARENA_UNIT_BYTES;

static uint64_t random_state;

static uint64_t random_below(uint64_t limit)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % limit;
}

struct model {
    struct kvs_arena *arena;
    uint64_t units;
    uint8_t *taken; /* one per unit */
    struct {
        void *address;
        uint64_t first;
        uint64_t units;
    } live[MAX_LIVE];
    unsigned live_count;
};

static struct model *model_open(uint64_t bytes)
{
    struct model *model = calloc(1, sizeof *model);
    assert(model != NULL);
    const int rc = kvs_arena_open(bytes, &model->arena);
    if (rc == -ENOMEM) {
        free(model);
        return NULL;
    }
    assert(rc == 0);
    model->units = kvs_arena_bytes(model->arena) / UNIT;
    model->taken = calloc(model->units, 1);
    assert(model->taken != NULL);
    return model;
}

static void model_close(struct model *model)
{
    kvs_arena_close(model->arena);
    free(model->taken);
    free(model);
}

/* Length of the maximal free run at `first`, which ends at a piece at the latest. */
static uint64_t free_run(const struct model *model, uint64_t first)
{
    uint64_t end = first;
    while (end < model->units && !model->taken[end]) {
        end++;
        if (end % PIECE_UNITS == 0) {
            break;
        }
    }
    return end - first;
}

/* The shortest free run of at least `wanted` units, and the longest of all; 0: none. */
static void survey(const struct model *model, uint64_t wanted, uint64_t *best, uint64_t *longest,
                   uint64_t *total)
{
    *best = *longest = *total = 0;
    for (uint64_t unit = 0; unit < model->units;) {
        const uint64_t run = free_run(model, unit);
        if (run == 0) {
            unit++;
            continue;
        }
        if (run >= wanted && (*best == 0 || run < *best)) {
            *best = run;
        }
        *longest = run > *longest ? run : *longest;
        *total += run;
        unit += run;
    }
}

static void model_take(struct model *model, uint64_t bytes)
{
    const uint64_t wanted = (bytes + UNIT - 1) / UNIT;
    uint64_t best;
    uint64_t longest;
    uint64_t total;
    survey(model, wanted, &best, &longest, &total);
    assert(kvs_arena_free_bytes(model->arena) == total * UNIT);
    assert(kvs_arena_largest_free(model->arena) == longest * UNIT);

    char *address = kvs_arena_take(model->arena, bytes);
    assert((address == NULL) == (best == 0)); /* refused only when nothing is long enough */
    if (address == NULL) {
        return;
    }
    const uint64_t offset = (uint64_t)(address - (char *)kvs_arena_base(model->arena));
    const uint64_t first = offset / UNIT;
    assert(offset % UNIT == 0 && first + wanted <= model->units);
    assert(first == 0 || first % PIECE_UNITS == 0 || model->taken[first - 1]);
    assert(free_run(model, first) == best); /* best fit, so nothing overlaps either */
    assert(first / PIECE_UNITS == (first + wanted - 1) / PIECE_UNITS);
    memset(model->taken + first, 1, wanted);
    model->live[model->live_count].address = address;
    model->live[model->live_count].first = first;
    model->live[model->live_count].units = wanted;
    model->live_count++;
}

static void model_give(struct model *model, unsigned which)
{
    kvs_arena_give(model->arena, model->live[which].address);
    memset(model->taken + model->live[which].first, 0, model->live[which].units);
    model->live[which] = model->live[--model->live_count];
}

/* One of two units and more becomes two. */
static void model_cut(struct model *model, unsigned which)
{
    const uint64_t units = model->live[which].units;
    if (units < 2 || model->live_count == MAX_LIVE) {
        return;
    }
    const uint64_t kept = 1 + random_below(units - 1);
    const uint64_t free_bytes = kvs_arena_free_bytes(model->arena);
    kvs_arena_cut(model->arena, model->live[which].address, kept * UNIT);
    assert(kvs_arena_free_bytes(model->arena) == free_bytes);
    model->live[which].units = kept;
    model->live[model->live_count].address = (char *)model->live[which].address + kept * UNIT;
    model->live[model->live_count].first = model->live[which].first + kept;
    model->live[model->live_count].units = units - kept;
    model->live_count++;
}

static void random_steps(struct model *model, unsigned steps, uint64_t max_units)
{
    for (unsigned step = 0; step < steps; step++) {
        /* Drifts between nearly empty and full. */
        const uint64_t take_share = step / 500 % 2 == 0 ? 70 : 35;
        if (model->live_count < MAX_LIVE && random_below(100) < take_share) {
            const uint64_t limit = random_below(4) == 0 ? max_units : max_units / 16 + 1;
            model_take(model, random_below(limit * UNIT) + 1);
        } else if (model->live_count > 0 && random_below(8) == 0) {
            model_cut(model, (unsigned)random_below(model->live_count));
        } else if (model->live_count > 0) {
            model_give(model, (unsigned)random_below(model->live_count));
        }
    }
    while (model->live_count > 0) {
        model_give(model, (unsigned)random_below(model->live_count));
    }
    /* However it was cut up, everything has merged again. */
    const uint64_t whole = model->units < PIECE_UNITS ? model->units : PIECE_UNITS;
    assert(kvs_arena_free_bytes(model->arena) == model->units * UNIT);
    assert(kvs_arena_largest_free(model->arena) == whole * UNIT);
}

static void test_agrees_with_model(void)
{
    struct model *model = model_open(8 * MIB);
    assert(model != NULL);
    random_steps(model, 20000, 300);
    random_steps(model, 5000, 3);
    model_close(model);
    puts("ok agrees_with_model");
}

static void test_no_run_crosses_a_piece(void)
{
    const struct mallinfo2 before = mallinfo2();
    struct model *model = model_open(KVS_ARENA_PIECE_BYTES + 4 * MIB);
    if (model == NULL) {
        puts("SKIPPED no_run_crosses_a_piece: no 1028 MiB of memory to be had");
        return;
    }
    const struct mallinfo2 after = mallinfo2();
    const int counted = after.hblkhd > 0; /* not under AddressSanitizer */
    const uint64_t kept = after.hblkhd + after.uordblks - before.hblkhd - before.uordblks -
                          model->units - sizeof *model;
    assert(!counted || kept * 1000 < kvs_arena_bytes(model->arena) * 4); /* below 0.4 % */
    assert(kvs_arena_largest_free(model->arena) == KVS_ARENA_PIECE_BYTES);
    assert(kvs_arena_take(model->arena, KVS_ARENA_PIECE_BYTES + 1) == NULL);
    model_take(model, KVS_ARENA_PIECE_BYTES);
    model_take(model, 4 * MIB);
    assert(kvs_arena_take(model->arena, 1) == NULL);
    assert(kvs_arena_largest_free(model->arena) == 0);
    model_give(model, 1);
    model_give(model, 0);
    random_steps(model, 400, PIECE_UNITS / 3);
    model_close(model);
    puts("ok no_run_crosses_a_piece");
}

static void test_rounding_and_refusals(void)
{
    struct kvs_arena *arena = NULL;
    assert(kvs_arena_open(0, &arena) == -EINVAL);
    assert(kvs_arena_open((uint64_t)4 << 40, &arena) == -ENOMEM);
    assert(kvs_arena_open(UINT64_MAX, &arena) == -ENOMEM);
    assert(kvs_arena_open(1, &arena) == 0);
    assert(kvs_arena_bytes(arena) == 2 * MIB);
    assert(kvs_arena_take(arena, 0) == NULL);
    assert(kvs_arena_take(arena, UINT64_MAX) == NULL);
    char *one = kvs_arena_take(arena, 1);
    char *two = kvs_arena_take(arena, UNIT + 1);
    assert(one == kvs_arena_base(arena) && two == one + UNIT);
    assert(kvs_arena_free_bytes(arena) == 2 * MIB - 3 * UNIT);
    kvs_arena_close(arena);
    puts("ok rounding_and_refusals");
}

static int gives_up(struct kvs_arena *arena, void *address)
{
    fflush(NULL);
    const pid_t child = fork();
    assert(child >= 0);
    if (child == 0) {
        if (freopen("/dev/null", "w", stderr) == NULL) {
            _exit(2);
        }
        kvs_arena_give(arena, address);
        _exit(0);
    }
    int status = 0;
    assert(waitpid(child, &status, 0) == child);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

static void test_wrong_give_is_noticed(void)
{
    struct kvs_arena *arena = NULL;
    assert(kvs_arena_open(2 * MIB, &arena) == 0);
    char *left = kvs_arena_take(arena, 2 * UNIT);
    char *right = kvs_arena_take(arena, 2 * UNIT);
    assert(!gives_up(arena, left));
    assert(gives_up(arena, left + UNIT));
    assert(gives_up(arena, left + 1));
    assert(gives_up(arena, right + 2 * UNIT));
    kvs_arena_give(arena, right);
    assert(gives_up(arena, right));
    kvs_arena_close(arena);
    puts("ok wrong_give_is_noticed");
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void test_pages_are_there_from_the_start(void)
{
    const uint64_t bytes = 64 * MIB;
    struct kvs_arena *arena = NULL;
    const double start = seconds();
    assert(kvs_arena_open(bytes, &arena) == 0);
    const double opened = seconds();
    unsigned char *resident = calloc(bytes / UNIT, 1);
    assert(resident != NULL && mincore(kvs_arena_base(arena), bytes, resident) == 0);
    for (uint64_t i = 0; i < bytes / UNIT; i++) {
        assert(resident[i] & 1);
    }
    free(resident);
    const double coverage = kvs_arena_huge_coverage(arena);
    const enum kvs_page_kind kind = kvs_arena_page_kind(arena);
    printf("   64 MiB in %.1f ms, page kind %d, huge coverage %.3f\n", (opened - start) * 1e3,
           (int)kind, coverage);
    assert(coverage >= 0.0 && coverage <= 1.0);
    assert((kind == KVS_PAGES_SMALL) == (coverage <= 0.0));
    kvs_arena_close(arena);
    puts("ok pages_are_there_from_the_start");
}

static void test_children_do_not_get_the_arena(void)
{
    struct kvs_arena *arena = NULL;
    assert(kvs_arena_open(2 * MIB, &arena) == 0);
    const pid_t child = fork();
    assert(child >= 0);
    if (child == 0) {
        unsigned char resident[512];
        const int gone = mincore(kvs_arena_base(arena), 2 * MIB, resident) != 0 && errno == ENOMEM;
        _exit(gone ? 0 : 1);
    }
    int status = 0;
    assert(waitpid(child, &status, 0) == child);
    assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    kvs_arena_close(arena);
    puts("ok children_do_not_get_the_arena");
}

static void test_huge_alloc_is_zeroed_and_aligned(void)
{
    for (unsigned round = 0; round < 3; round++) {
        const uint64_t bytes = 3 * MIB + 1;
        void *memory = NULL;
        enum kvs_page_kind kind;
        assert(kvs_huge_alloc(bytes, &memory, &kind) == 0);
        assert((uintptr_t)memory % (2 * MIB) == 0);
        for (uint64_t i = 0; i < bytes; i++) {
            assert(((char *)memory)[i] == 0);
        }
        memset(memory, 0xee, bytes);
        kvs_huge_free(memory, bytes);
    }
    void *memory = NULL;
    enum kvs_page_kind kind;
    assert(kvs_huge_alloc(0, &memory, &kind) == -EINVAL);
    assert(kvs_huge_alloc((uint64_t)1 << 50, &memory, &kind) == -ENOMEM);
    puts("ok huge_alloc_is_zeroed_and_aligned");
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    random_state = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t)time(NULL) * 2654435761u;
    random_state |= 1;
    printf("seed %" PRIu64 "\n", random_state);
    test_rounding_and_refusals();
    test_agrees_with_model();
    test_wrong_give_is_noticed();
    test_pages_are_there_from_the_start();
    test_children_do_not_get_the_arena();
    test_huge_alloc_is_zeroed_and_aligned();
    test_no_run_crosses_a_piece();
    return 0;
}
