/*
 * stress_trouble.c: putters and loaders over two roots whose devices and file systems stall, fail
 * and crawl in turn, for the sanitizers: breakers open and close under load, workers are replaced,
 * operations come back long after everybody gave them up.
 *
 * What holds at every moment: a delivered cell has the bytes put under its key, nothing outside a
 * target's cells is written, every ticket is done. At the end both roots are up, everything can be
 * stored and loaded, and close waits for nobody. Bounded by counts, not by time.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "stress_cells.h"
#include "testing/fs_fault.h"
#include "testing/io_fault.h"

enum { ROOTS = 2, CHAINS = 8, THREADS = 4 };

struct stress {
    struct kvs_store *store;
    struct kvs_cache *cache;
    struct kvs_virtual_clock *clock;
    struct kvs_io_engine *engines[ROOTS];
    struct kvs_fs *real, *fs;
    struct kvs_key chains[CHAINS][BLOCKS];
    atomic_int over;
};

struct worker {
    struct stress *stress;
    uint64_t random, blocks, down;
    pthread_t thread;
};

static uint32_t pick(struct worker *worker, uint32_t below)
{
    worker->random = worker->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(worker->random >> 33) % below;
}

/* ---- putters and loaders ---- */

static int64_t put(struct stress *stress, const struct kvs_key *keys, uint8_t *memory)
{
    struct kvs_writer *writer;
    struct kvs_ticket *ticket;
    assert(kvs_writer_open(stress->cache, keys, BLOCKS, 0, -1, 0, NULL, NULL, &writer) == 0);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        if (cell_bytes[layer] == 0) {
            continue;
        }
        for (uint64_t block = 0; block < BLOCKS; block++) {
            cell_fill(memory + block * cell_bytes[layer], &keys[block], layer);
        }
        struct kvs_source sources[2] = {
            {memory, cell_bytes[layer]},
            {memory + part_bytes[first_part[layer]], cell_bytes[layer]}};
        assert(kvs_writer_put(writer, layer, 0, BLOCKS, sources, &ticket) == 0);
        finish(ticket);
    }
    assert(kvs_writer_commit(writer, &ticket) == 0);
    kvs_writer_close(writer);
    return finish(ticket);
}

static void *putter(void *argument)
{
    struct worker *worker = argument;
    struct stress *stress = worker->stress;
    uint8_t *memory = malloc((size_t)BLOCKS * CELL_MAX);
    while (!atomic_load(&stress->over)) {
        worker->blocks += (uint64_t)put(stress, stress->chains[pick(worker, CHAINS)], memory);
    }
    free(memory);
    return NULL;
}

/* The number of leading blocks that the last layer gave; all of them compared. */
static uint64_t load(struct worker *worker, struct memory *memory, const struct kvs_key *keys)
{
    struct stress *stress = worker->stress;
    struct kvs_target targets[PARTS];
    struct kvs_lease *lease;
    struct kvs_load *loading;
    struct kvs_layer layer = {0};
    uint64_t needed, good[LAYERS];
    memory->shift = pick(worker, 2) ? 0 : 64;
    for (uint32_t part = 0; part < PARTS; part++) {
        memset(memory->base[part], CANARY, part_room(part));
        targets[part] =
            (struct kvs_target){memory->base[part] + 4096 + memory->shift, part_bytes[part]};
    }
    struct kvs_into into = {.targets = targets, .page_tokens = TOKENS};
    assert(kvs_lease_open(stress->cache, keys, 0, BLOCKS, "one", -1, WAIT_NS, &lease) == 0);
    assert(kvs_load_open(lease, &into, 0, 1000 * WAIT_NS, &needed, &loading) == 0);
    for (uint32_t i = 0; i < LAYERS; i++) {
        finish(kvs_load_layer_ticket(loading, i));
        assert(kvs_load_layer(loading, i, &layer) == 0);
        assert(layer.reason != KVS_REASON_DAMAGED && layer.reason != KVS_REASON_DEADLINE);
        worker->down += layer.reason == KVS_REASON_ROOT_DOWN;
        good[i] = layer.blocks;
    }
    struct kvs_ticket *drained = kvs_load_drained(loading);
    kvs_load_close(loading);
    kvs_lease_release(lease);
    finish(drained);
    for (uint32_t i = 0; i < LAYERS; i++) {
        check_memory(memory, keys, i, 0, good[i], BLOCKS);
    }
    return layer.blocks;
}

static void *loader(void *argument)
{
    struct worker *worker = argument;
    struct stress *stress = worker->stress;
    struct memory memory = {0};
    memory_open(&memory);
    while (!atomic_load(&stress->over)) {
        const struct kvs_key *keys = stress->chains[pick(worker, CHAINS)];
        uint64_t blocks = load(worker, &memory, keys);
        worker->blocks += blocks;
        assert(kvs_drop_ram(stress->store) == 0);
        if (blocks == 0) {
            usleep(200); /* paces the load, decides nothing */
        }
    }
    for (uint32_t part = 0; part < PARTS; part++) {
        free(memory.base[part]);
    }
    return NULL;
}

/* ---- trouble ---- */

static void trouble(struct worker *worker)
{
    static const enum kvs_fs_call calls[] = {KVS_FS_OPEN_READ, KVS_FS_OPEN_TEMP, KVS_FS_LINK,
                                             KVS_FS_READ_AT, KVS_FS_UNLINK};
    struct stress *stress = worker->stress;
    struct kvs_io_engine *engine = stress->engines[pick(worker, ROOTS)];
    struct kvs_fs_fault call = {.call = calls[pick(worker, 5)], .count = 1 + pick(worker, 4)};
    struct kvs_fault fault = {.io_kind = (int)pick(worker, 3) - 1, .skip = pick(worker, 8)};
    switch (pick(worker, 5)) {
    case 0:
        fault.kind = KVS_FAULT_STALL;
        kvs_io_fault_add(engine, &fault);
        break;
    case 1:
        fault.kind = KVS_FAULT_ERRNO;
        fault.value = pick(worker, 2) ? EIO : ENOMEM;
        kvs_io_fault_add(engine, &fault);
        break;
    case 2:
        fault.kind = KVS_FAULT_DELAY;
        fault.value = 4000000000u;
        kvs_io_fault_add(engine, &fault);
        break;
    case 3:
        call.stalls = 1;
        kvs_fs_fault_add(stress->fs, &call);
        break;
    default:
        call.error = pick(worker, 2) ? EIO : EMFILE;
        kvs_fs_fault_add(stress->fs, &call);
    }
}

static void pass(struct stress *stress, int64_t seconds)
{
    kvs_virtual_clock_advance(stress->clock, seconds * 1000000000);
    for (int i = 0; i < 2; i++) {
        assert(kvs_tick(stress->store) == 0);
        usleep(500); /* lets others run, decides nothing */
    }
}

static void heal(struct stress *stress)
{
    for (uint32_t i = 0; i < ROOTS; i++) {
        kvs_io_fault_clear(stress->engines[i]);
        kvs_io_fault_release_stalled(stress->engines[i]);
    }
    kvs_fs_fault_clear(stress->fs);
    kvs_fs_fault_release_stalled(stress->fs);
}

/* 1 when every root is in use and scanned. */
static int all_up(struct stress *stress, uint64_t *trips)
{
    struct kvs_root_info info;
    int up = 1;
    *trips = 0;
    for (uint32_t i = 0; i < ROOTS; i++) {
        assert(kvs_root_info(stress->store, i, &info) == 0);
        up &= info.breaker_state == 0 && !info.warming;
        *trips += info.breaker_trips;
    }
    return up;
}

static void until_up(struct stress *stress, uint64_t *trips)
{
    heal(stress);
    for (int i = 0; !all_up(stress, trips); i++) {
        assert(i < 100000);
        pass(stress, 5);
        heal(stress);
    }
}

/* ---- the run ---- */

static void stress_open(struct stress *stress, char paths[ROOTS][64])
{
    struct kvs_root_options roots[ROOTS];
    struct kvs_class class = {"chat", 1000000000};
    struct kvs_fault_device device = {.latency_ns = 1000, .depth = 16, .auto_advance = 1};
    struct kvs_layout layout = {.layer_count = LAYERS,
                                .block_tokens = TOKENS,
                                .extent_blocks = 16,
                                .part_counts = part_counts,
                                .part_bytes = part_bytes,
                                .description = "{}"};
    char message[256];
    assert(kvs_virtual_clock_open(1700000000, &stress->clock) == 0);
    assert(kvs_fs_posix_open(&stress->real) == 0);
    assert(kvs_fs_fault_open(stress->real, &stress->fs) == 0);
    for (uint32_t i = 0; i < ROOTS; i++) {
        assert(kvs_io_fault_open(stress->clock, &device, &stress->engines[i]) == 0);
        roots[i] = (struct kvs_root_options){paths[i], 1 << 20, stress->engines[i]};
    }
    struct kvs_options options = {.roots = roots,
                                  .root_count = ROOTS,
                                  .classes = &class,
                                  .class_count = 1,
                                  .io_depth = 16,
                                  .pool_bytes = 8 << 20,
                                  .helpers = 2,
                                  .manual_ticks = 1,
                                  .fs = stress->fs,
                                  .clock = kvs_virtual_clock_face(stress->clock)};
    memset(layout.fingerprint, 9, sizeof(layout.fingerprint));
    int error = kvs_open(&options, &stress->store, message, sizeof(message));
    if (error) {
        printf("%s\n", message);
    }
    assert(error == 0);
    assert(kvs_cache_open(stress->store, &layout, &stress->cache) == 0);
    for (int32_t chain = 0; chain < CHAINS; chain++) {
        int32_t tokens[BLOCKS * TOKENS];
        for (int32_t i = 0; i < BLOCKS * TOKENS; i++) {
            tokens[i] = chain * 1000 + i;
        }
        assert(kvs_keys_chain(tokens, BLOCKS * TOKENS, TOKENS, NULL, 0, NULL, 0,
                              stress->chains[chain]) == 0);
    }
}

static void run(struct stress *stress, uint32_t rounds, uint64_t seed)
{
    struct worker workers[THREADS + 1];
    uint64_t blocks[2] = {0}, down = 0, trips;
    for (uint32_t i = 0; i <= THREADS; i++) {
        workers[i] = (struct worker){.stress = stress, .random = seed + i};
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        assert(pthread_create(&workers[i].thread, NULL, i % 2 ? loader : putter, &workers[i]) == 0);
    }
    for (uint32_t round = 0; round < rounds; round++) {
        trouble(&workers[THREADS]);
        for (uint32_t i = pick(&workers[THREADS], 4); i > 0; i--) {
            pass(stress, 6);
        }
        if (pick(&workers[THREADS], 3) == 0) {
            until_up(stress, &trips);
        }
    }
    atomic_store(&stress->over, 1);
    until_up(stress, &trips);
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        blocks[i % 2] += workers[i].blocks;
        down += workers[i].down;
    }
    until_up(stress, &trips);
    printf("%llu blocks published, %llu loaded, roots went down %llu times, %llu layers missed\n",
           (unsigned long long)blocks[0], (unsigned long long)blocks[1], (unsigned long long)trips,
           (unsigned long long)down);
    assert(blocks[0] > 0 && trips > 0);
}

int main(int argc, char **argv)
{
    uint32_t rounds = argc > 1 ? (uint32_t)atoi(argv[1]) : 60;
    unsigned long long seed = argc > 2 ? strtoull(argv[2], NULL, 10) : (unsigned long long)getpid();
    struct stress stress = {0};
    struct worker last = {.stress = &stress};
    struct memory memory = {0};
    char parent[] = "kvs-stress-trouble-XXXXXX", command[64], paths[ROOTS][64];
    printf("rounds %u, seed %llu\n", rounds, seed);
    assert(mkdtemp(parent));
    for (int i = 0; i < ROOTS; i++) {
        snprintf(paths[i], sizeof(paths[i]), "%s/%d", parent, i);
    }
    stress_open(&stress, paths);
    run(&stress, rounds, seed);
    memory_open(&memory);
    uint8_t *cells = malloc((size_t)BLOCKS * CELL_MAX);
    assert(put(&stress, stress.chains[0], cells) == BLOCKS);
    assert(load(&last, &memory, stress.chains[0]) == BLOCKS);
    free(cells);
    for (uint32_t part = 0; part < PARTS; part++) {
        free(memory.base[part]);
    }
    kvs_cache_close(stress.cache);
    assert(kvs_close(stress.store) == 0);
    kvs_virtual_clock_close(stress.clock);
    kvs_fs_fault_close(stress.fs);
    kvs_fs_posix_close(stress.real);
    snprintf(command, sizeof(command), "rm -rf '%s'", parent);
    assert(system(command) == 0);
    return 0;
}
