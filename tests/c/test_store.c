/*
 * test_store.c: the core end to end without Python: put, commit, match, load through the pool and
 * into caller memory, reopen, on each engine.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arena.h"
#include "kvs.h"

enum { LAYERS = 5, BLOCKS = 41, TOKENS = 64 };

#define WAIT_NS (20ll * 1000000000)

static const uint32_t part_counts[LAYERS] = {1, 1, 2, 0, 1};
static const uint32_t part_bytes[] = {73728, 73728, 41984, 8448, 4096};

static void fill(uint8_t *cell, uint32_t bytes, uint32_t layer, uint64_t block)
{
    uint64_t state = layer * 1000003u + block * 7919u + 1;
    for (uint32_t i = 0; i < bytes; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        cell[i] = (uint8_t)(state >> 56);
    }
}

static int64_t finish(struct kvs_ticket *ticket)
{
    int64_t result = -1;
    assert(kvs_ticket_wait(ticket, WAIT_NS) == 0);
    assert(kvs_ticket_done(ticket, &result));
    kvs_ticket_close(ticket);
    return result;
}

static struct kvs_store *store_open(const char *path, enum kvs_engine_choice engine)
{
    struct kvs_root_options root = {.path = path, .capacity_bytes = 1 << 28};
    struct kvs_class class = {"chat", 7 * 86400};
    struct kvs_options options = {.roots = &root,
                                  .root_count = 1,
                                  .classes = &class,
                                  .class_count = 1,
                                  .engine = engine,
                                  .pool_bytes = 64 << 20,
                                  .min_age_s = -1};
    struct kvs_store *store = NULL;
    char message[256];
    int error = kvs_open(&options, &store, message, sizeof(message));
    if (error) {
        printf("skip: %s\n", message);
        return NULL;
    }
    return store;
}

static struct kvs_cache *cache_open(struct kvs_store *store)
{
    struct kvs_layout layout = {.layer_count = LAYERS,
                                .block_tokens = TOKENS,
                                .extent_blocks = 16,
                                .part_counts = part_counts,
                                .part_bytes = part_bytes,
                                .description = "{}"};
    memset(layout.fingerprint, 7, sizeof(layout.fingerprint));
    struct kvs_cache *cache = NULL;
    assert(kvs_cache_open(store, &layout, &cache) == 0);
    return cache;
}

static uint32_t cell_of(uint32_t layer)
{
    uint32_t part = 0, bytes = 0;
    for (uint32_t i = 0; i <= layer; i++) {
        bytes = 0;
        for (uint32_t j = 0; j < part_counts[i]; j++) {
            bytes += part_bytes[part++];
        }
    }
    return bytes;
}

static void put_all(struct kvs_cache *cache, const struct kvs_key *keys)
{
    struct kvs_writer *writer;
    assert(kvs_writer_open(cache, keys, BLOCKS, 0, -1, 0, NULL, NULL, &writer) == 0);
    uint32_t part = 0;
    for (uint32_t layer = 0; layer < LAYERS; part += part_counts[layer++]) {
        uint32_t bytes = cell_of(layer);
        uint8_t *cells = malloc((size_t)BLOCKS * bytes + 1);
        for (uint64_t block = 0; block < BLOCKS; block++) {
            fill(cells + block * bytes, bytes, layer, block);
        }
        struct kvs_source sources[2] = {{cells, bytes}, {cells, bytes}};
        if (part_counts[layer] == 2) {
            sources[1].base = cells + part_bytes[part];
        }
        struct kvs_ticket *ticket;
        assert(kvs_writer_put(writer, layer, 0, BLOCKS, sources, &ticket) == 0);
        assert(finish(ticket) == 0);
        free(cells);
    }
    struct kvs_ticket *commit;
    assert(kvs_writer_commit(writer, &commit) == 0);
    assert(finish(commit) == BLOCKS);
    kvs_writer_close(writer);
}

static void check_cells(const uint8_t *cells, uint32_t layer, uint64_t first, uint64_t count)
{
    uint32_t bytes = cell_of(layer);
    uint8_t *right = malloc(bytes + 1);
    for (uint64_t i = 0; i < count; i++) {
        fill(right, bytes, layer, first + i);
        assert(memcmp(cells + i * bytes, right, bytes) == 0);
    }
    free(right);
}

static void load_through_pool(struct kvs_cache *cache, const struct kvs_key *keys, uint64_t first,
                              uint64_t end, int from_disk)
{
    struct kvs_lease *lease;
    struct kvs_load *load;
    struct kvs_load_stats stats;
    uint64_t needed;
    assert(kvs_lease_open(cache, keys, first, end, "test", -1, WAIT_NS, &lease) == 0);
    assert(kvs_load_open(lease, NULL, 0, WAIT_NS, &needed, &load) == 0);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        assert(finish(kvs_load_layer_ticket(load, layer)) == (int64_t)(end - first));
        struct kvs_span span;
        uint64_t seen = first;
        for (uint32_t i = 0; kvs_load_span(load, layer, i, &span) == 0; i++) {
            assert(span.first_block == seen);
            seen += span.block_count;
            if (cell_of(layer)) {
                check_cells(span.cells, layer, span.first_block, span.block_count);
            }
        }
        assert(seen == end);
        kvs_load_release(load, layer);
    }
    kvs_load_stats(load, &stats);
    assert((stats.disk_bytes > 0) == (from_disk != 0));
    assert(finish(kvs_load_drained(load)) == 0);
    kvs_load_close(load);
    kvs_lease_release(lease);
}

static void load_into_memory(struct kvs_cache *cache, const struct kvs_key *keys, size_t shift)
{
    struct kvs_target targets[sizeof(part_bytes) / sizeof(part_bytes[0])];
    uint8_t *memory[5];
    for (uint32_t part = 0; part < 5; part++) {
        memory[part] =
            aligned_alloc(4096, (size_t)(BLOCKS + 1) * part_bytes[part] / 4096 * 4096 + 8192);
        targets[part] = (struct kvs_target){memory[part] + shift, part_bytes[part]};
    }
    struct kvs_into into = {targets, TOKENS, NULL, 0};
    struct kvs_lease *lease;
    struct kvs_load *load;
    struct kvs_load_stats stats;
    uint64_t needed;
    assert(kvs_lease_open(cache, keys, 0, BLOCKS, "test", -1, WAIT_NS, &lease) == 0);
    assert(kvs_load_open(lease, &into, 0, WAIT_NS, &needed, &load) == 0);
    assert(finish(kvs_load_layer_ticket(load, LAYERS - 1)) == BLOCKS);
    assert(finish(kvs_load_drained(load)) == 0);
    check_cells(memory[0] + shift, 0, 0, BLOCKS);
    check_cells(memory[1] + shift, 1, 0, BLOCKS);
    check_cells(memory[4] + shift, 4, 0, BLOCKS);
    uint8_t *right = malloc(cell_of(2));
    for (uint64_t block = 0; block < BLOCKS; block++) {
        fill(right, cell_of(2), 2, block);
        assert(memcmp(memory[2] + shift + block * part_bytes[2], right, part_bytes[2]) == 0);
        assert(memcmp(memory[3] + shift + block * part_bytes[3], right + part_bytes[2],
                      part_bytes[3]) == 0);
    }
    free(right);
    kvs_load_stats(load, &stats);
    assert(shift || stats.direct_bytes > 0);
    kvs_load_close(load);
    kvs_lease_release(lease);
    for (uint32_t part = 0; part < 5; part++) {
        free(memory[part]);
    }
}

static void run(const char *path, enum kvs_engine_choice engine, const char *name)
{
    int32_t tokens[BLOCKS * TOKENS + 3];
    struct kvs_key keys[BLOCKS];
    struct kvs_match match;
    char command[300];
    for (uint32_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]); i++) {
        tokens[i] = (int32_t)(i * 31);
    }
    assert(kvs_keys_chain(tokens, sizeof(tokens) / sizeof(tokens[0]), TOKENS, NULL, 0, NULL, 0,
                          keys) == 0);
    struct kvs_store *store = store_open(path, engine);
    if (!store) {
        return;
    }
    struct kvs_cache *cache = cache_open(store);
    put_all(cache, keys);
    assert(kvs_match(cache, keys, BLOCKS, &match) == 0 && match.blocks == BLOCKS);
    load_through_pool(cache, keys, 0, BLOCKS, 0);
    assert(kvs_drop_ram(store) == 0);
    load_through_pool(cache, keys, 0, BLOCKS, 1);
    load_through_pool(cache, keys, 3, BLOCKS - 2, 0);
    assert(kvs_drop_ram(store) == 0);
    load_into_memory(cache, keys, 0);
    assert(kvs_drop_ram(store) == 0);
    load_into_memory(cache, keys, 64);
    kvs_cache_close(cache);
    kvs_close(store);

    store = store_open(path, engine);
    cache = cache_open(store);
    struct kvs_ticket *find;
    assert(kvs_find(cache, keys, BLOCKS, &find) == 0);
    assert(finish(find) == BLOCKS);
    load_through_pool(cache, keys, 5, 23, 1);
    kvs_cache_close(cache);
    kvs_close(store);
    snprintf(command, sizeof(command), "rm -rf '%s'", path);
    assert(system(command) == 0);
    printf("ok put, load, reopen on %s\n", name);
}

int main(void)
{
    char path[] = "kvs-test-store-XXXXXX";
    assert(mkdtemp(path));
    run(path, KVS_ENGINE_THREADS, "threads");
    run(path, KVS_ENGINE_URING, "io_uring");
    run(path, KVS_ENGINE_URING_PLAIN, "io_uring, not registered");
    run(path, KVS_ENGINE_AIO, "Linux AIO");
    return 0;
}
