/*
 * stress_store.c: everything at once, for the sanitizers: putters of overlapping chains, loaders
 * through the pool and into caller memory, cancelers, gets, deletes, drop_ram, ticks and flushes,
 * in a root so small that eviction never rests, with leases and classes that run out.
 *
 * What holds at every moment: a delivered cell has the bytes put under its key, nothing outside a
 * target's cells is written, every ticket is done in time. Bounded by counts, not by time. Runs on
 * the threads engine and on the fault engine without faults, whose clock the test drives.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "stress_cells.h"
#include "testing/io_fault.h"

enum {
    CHAINS = 6, /* pairs share a prefix that ends inside an extent */
    SHARED_BLOCKS = 21,
    SHORT_LIVED = 2, /* chains that are put in a class that lives a second */
    THREADS = 7
};

struct stress {
    struct kvs_store *store;
    struct kvs_cache *cache;
    struct kvs_virtual_clock *clock; /* NULL: real time */
    struct kvs_key chains[CHAINS][BLOCKS];
    uint32_t rounds;
};

struct worker {
    struct stress *stress;
    uint64_t random;
    uint64_t blocks; /* put or delivered */
    pthread_t thread;
};

static uint32_t pick(struct worker *worker, uint32_t below)
{
    worker->random = worker->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(worker->random >> 33) % below;
}

/* ---- putters ---- */

static void put_layer(struct kvs_writer *writer, const struct kvs_key *keys, uint64_t first,
                      uint64_t end, uint32_t layer, uint8_t *memory)
{
    struct kvs_source sources[2];
    struct kvs_ticket *ticket;
    if (cell_bytes[layer] == 0 || first == end) {
        return;
    }
    for (uint64_t block = first; block < end; block++) {
        cell_fill(memory + (block - first) * cell_bytes[layer], &keys[block], layer);
    }
    sources[0] = (struct kvs_source){memory, cell_bytes[layer]};
    sources[1] = (struct kvs_source){memory + part_bytes[first_part[layer]], cell_bytes[layer]};
    assert(kvs_writer_put(writer, layer, first, end - first, sources, &ticket) == 0);
    finish(ticket); /* the memory is used again */
}

static void *putter(void *argument)
{
    struct worker *worker = argument;
    struct stress *stress = worker->stress;
    uint8_t *memory = malloc((size_t)BLOCKS * CELL_MAX);
    for (uint32_t round = 0; round < stress->rounds; round++) {
        uint32_t chain = pick(worker, CHAINS);
        const struct kvs_key *keys = stress->chains[chain];
        uint64_t count = 1 + pick(worker, BLOCKS);
        int class = chain < SHORT_LIVED ? 1 : (int)pick(worker, 2) - 1;
        struct kvs_writer *writer;
        struct kvs_ticket *commit;
        uint64_t known = pick(worker, 2) ? count : 1 + pick(worker, (uint32_t)count);
        assert(kvs_writer_open(stress->cache, keys, known, 0, class, 0, NULL, NULL, &writer) == 0);
        uint32_t turn = pick(worker, LAYERS), whole = LAYERS - (pick(worker, 8) == 0);
        for (uint32_t i = 0; i < whole; i++) {
            put_layer(writer, keys, 0, known, (i + turn) % LAYERS, memory);
            if (i == 0 && known < count) { /* while the first files are being made */
                assert(kvs_writer_extend(writer, keys, count, NULL, NULL) == 0);
            }
        }
        for (uint32_t i = 0; i < whole; i++) {
            put_layer(writer, keys, known, count, i, memory);
        }
        if (pick(worker, 6) > 0) {
            assert(kvs_writer_commit(writer, &commit) == 0);
            if (pick(worker, 3) > 0) {
                int64_t published = finish(commit);
                assert(published >= 0 && published <= (int64_t)count);
                worker->blocks += (uint64_t)published;
            } else {
                kvs_ticket_close(commit);
            }
        }
        kvs_writer_close(writer);
    }
    free(memory);
    return NULL;
}

/* ---- loaders ---- */

static int lease_open(struct worker *worker, const struct kvs_key **keys, uint64_t *first,
                      uint64_t *end, struct kvs_lease **out)
{
    struct stress *stress = worker->stress;
    struct kvs_match match;
    char owner[16];
    *keys = stress->chains[pick(worker, CHAINS)];
    assert(kvs_match(stress->cache, *keys, BLOCKS, &match) == 0 && match.blocks <= BLOCKS);
    if (match.blocks == 0) {
        usleep(200); /* paces the load, decides nothing */
        return -ENOENT;
    }
    *end = match.blocks - pick(worker, 2) * (match.blocks > 1);
    *first = pick(worker, 3) ? 0 : pick(worker, (uint32_t)*end);
    snprintf(owner, sizeof(owner), "owner %u", pick(worker, 4));
    int64_t timeout_ns = pick(worker, 4) ? WAIT_NS : 1000000;
    assert(kvs_lease_open(stress->cache, *keys, *first, *end, owner, -1, timeout_ns, out) == 0);
    return 0;
}

static void *pool_loader(void *argument)
{
    struct worker *worker = argument;
    for (uint32_t round = 0; round < 2 * worker->stress->rounds; round++) {
        const struct kvs_key *keys;
        uint64_t first, end, needed;
        struct kvs_lease *lease;
        struct kvs_load *load;
        struct kvs_layer layer;
        if (lease_open(worker, &keys, &first, &end, &lease) < 0) {
            continue;
        }
        assert(kvs_load_open(lease, NULL, pick(worker, 8) ? 0 : KVS_LOAD_PREFETCH, WAIT_NS, &needed,
                             &load) == 0);
        uint32_t until = pick(worker, 4) ? LAYERS : pick(worker, LAYERS);
        for (uint32_t i = 0; i < until; i++) {
            finish(kvs_load_layer_ticket(load, i));
            assert(kvs_load_layer(load, i, &layer) == 0 && layer.blocks <= end - first);
            assert((layer.reason != KVS_REASON_NONE) == (layer.blocks < end - first));
            assert(layer.reason != KVS_REASON_DAMAGED && layer.reason != KVS_REASON_IO_ERROR);
            if (layer.span_count) {
                assert(check_spans(load, keys, first, i) == layer.blocks);
            }
            worker->blocks += layer.blocks;
            if (pick(worker, 2)) {
                kvs_load_release(load, i);
            }
        }
        if (until < LAYERS && pick(worker, 2)) {
            kvs_load_cancel(load);
        }
        kvs_load_close(load);
        kvs_lease_release(lease);
    }
    return NULL;
}

static void load_into(struct worker *worker, struct memory *memory, struct kvs_lease *lease,
                      const struct kvs_key *keys, uint64_t first, uint64_t end)
{
    struct kvs_target targets[PARTS];
    struct kvs_load *load;
    struct kvs_layer layer;
    uint64_t needed;
    memory->shift = pick(worker, 2) ? 0 : 64;
    for (uint32_t part = 0; part < PARTS; part++) {
        memset(memory->base[part], CANARY, part_room(part));
        targets[part] =
            (struct kvs_target){memory->base[part] + 4096 + memory->shift, part_bytes[part]};
    }
    struct kvs_into into = {.targets = targets, .page_tokens = TOKENS};
    assert(kvs_load_open(lease, &into, 0, WAIT_NS, &needed, &load) == 0);
    struct kvs_ticket *drained = kvs_load_drained(load);
    uint64_t good[LAYERS] = {0};
    uint32_t until = pick(worker, 3) ? LAYERS : pick(worker, LAYERS);
    for (uint32_t i = 0; i < until; i++) {
        finish(kvs_load_layer_ticket(load, i));
        assert(kvs_load_layer(load, i, &layer) == 0);
        good[i] = layer.blocks;
        worker->blocks += layer.blocks;
    }
    kvs_load_close(load);
    finish(drained); /* from here on the memory is ours again */
    for (uint32_t i = 0; i < LAYERS; i++) {
        check_memory(memory, keys, i, first, good[i], end - first);
    }
}

static void *caller_loader(void *argument)
{
    struct worker *worker = argument;
    struct memory memory = {0};
    memory_open(&memory);
    for (uint32_t round = 0; round < 2 * worker->stress->rounds; round++) {
        const struct kvs_key *keys;
        uint64_t first, end;
        struct kvs_lease *lease;
        if (lease_open(worker, &keys, &first, &end, &lease) == 0) {
            load_into(worker, &memory, lease, keys, first, end);
            kvs_lease_release(lease);
        }
    }
    for (uint32_t part = 0; part < PARTS; part++) {
        free(memory.base[part]);
    }
    return NULL;
}

/* ---- the rest ---- */

static void get_block(struct worker *worker, const struct kvs_key *key)
{
    struct kvs_lease *lease;
    struct kvs_load *load;
    const void *data;
    uint64_t bytes, needed, at = 0;
    uint8_t right[CELL_MAX];
    assert(kvs_lease_open(worker->stress->cache, key, 0, 1, "get", -1, WAIT_NS, &lease) == 0);
    int error = kvs_load_open(lease, NULL, KVS_LOAD_BLOCK, WAIT_NS, &needed, &load);
    assert(error == 0 || error == -ENOBUFS);
    if (!error) {
        if (finish(kvs_load_layer_ticket(load, LAYERS - 1)) == 1) {
            assert(kvs_load_block(load, &data, &bytes) == 0);
            for (uint32_t layer = 0; layer < LAYERS; at += cell_bytes[layer++]) {
                cell_fill(right, key, layer);
                assert(memcmp((const uint8_t *)data + at, right, cell_bytes[layer]) == 0);
            }
            assert(at == bytes);
            worker->blocks++;
        }
        kvs_load_close(load);
    }
    kvs_lease_release(lease);
}

static void *keeper(void *argument)
{
    struct worker *worker = argument;
    struct stress *stress = worker->stress;
    struct kvs_stats stats;
    for (uint32_t round = 0; round < 4 * stress->rounds; round++) {
        const struct kvs_key *keys = stress->chains[pick(worker, CHAINS)];
        struct kvs_ticket *ticket;
        uint32_t what = pick(worker, 12);
        if (what == 0) {
            assert(kvs_delete(stress->cache, &keys[pick(worker, BLOCKS)], &ticket) == 0);
            finish(ticket);
        } else if (what == 1) {
            assert(kvs_drop_ram(stress->store) == 0);
        } else if (what == 2) {
            assert(kvs_flush(stress->store, &ticket) == 0);
            finish(ticket);
        } else if (what == 3) {
            assert(kvs_find(stress->cache, keys, BLOCKS, &ticket) == 0);
            finish(ticket);
        } else if (what < 8) {
            get_block(worker, &keys[pick(worker, BLOCKS)]);
        } else {
            assert(kvs_tick(stress->store) == 0);
            kvs_stats(stress->store, &stats);
        }
        if (stress->clock) {
            int64_t week_ns = 7ll * 86400 * 1000000000; /* the scrub begins a pass again */
            kvs_virtual_clock_advance(stress->clock, what == 11 ? week_ns : 20 * 1000000);
        }
    }
    return NULL;
}

static void stress_open(struct stress *stress, const char *path, struct kvs_io_engine *engine)
{
    struct kvs_root_options root = {.path = path, .capacity_bytes = 1 << 20, .engine = engine};
    struct kvs_class classes[] = {{"chat", 100 * 365 * 86400ll}, {"blink", 1}};
    struct kvs_options options = {.roots = &root,
                                  .root_count = 1,
                                  .classes = classes,
                                  .class_count = 2,
                                  .engine = KVS_ENGINE_THREADS,
                                  .helpers = 2,
                                  .io_depth = 16,
                                  .pool_bytes = 4 << 20,
                                  .scrub_bytes_per_s = 1ull << 30,
                                  .io_timeout_ns = INT64_MAX / 4, /* the clock jumps under reads */
                                  .min_age_s = 0};
    char message[256];
    options.clock = stress->clock ? kvs_virtual_clock_face(stress->clock) : NULL;
    int error = kvs_open(&options, &stress->store, message, sizeof(message));
    if (error) {
        printf("%s\n", message);
    }
    assert(error == 0);
    stress_cache_open(stress->store, &stress->cache);
    for (int32_t chain = 0; chain < CHAINS; chain++) {
        chain_keys(chain, SHARED_BLOCKS, stress->chains[chain]);
    }
}

static void run(const char *name, uint32_t rounds, uint64_t seed, int virtual)
{
    static void *(*const jobs[THREADS])(void *) = {
        putter, putter, pool_loader, pool_loader, caller_loader, caller_loader, keeper};
    struct worker workers[THREADS];
    struct stress stress = {.rounds = rounds};
    struct kvs_io_engine *engine = NULL;
    struct kvs_stats stats;
    char path[] = "kvs-stress-store-XXXXXX", command[64];
    assert(mkdtemp(path));
    if (virtual) {
        struct kvs_fault_device device = {.latency_ns = 1000, .depth = 16, .auto_advance = 1};
        assert(kvs_virtual_clock_open(1700000000, &stress.clock) == 0);
        assert(kvs_io_fault_open(stress.clock, &device, &engine) == 0);
    }
    stress_open(&stress, path, engine);
    uint64_t blocks[2] = {0};
    for (uint32_t i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.stress = &stress, .random = seed + i};
        assert(pthread_create(&workers[i].thread, NULL, jobs[i], &workers[i]) == 0);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        blocks[i > 1] += workers[i].blocks;
    }
    kvs_stats(stress.store, &stats);
    printf("%s: %llu blocks published, %llu cells loaded, %llu extents evicted, %llu expired, "
           "%llu scrubbed in %llu passes\n",
           name, (unsigned long long)blocks[0], (unsigned long long)blocks[1],
           (unsigned long long)stats.evicted_extents, (unsigned long long)stats.expired_extents,
           (unsigned long long)stats.scrub_extents, (unsigned long long)stats.scrub_passes);
    assert(blocks[0] > 0 && blocks[1] > 0 && stats.evicted_extents > 0);
    assert(stats.quarantined_extents == 0); /* how far the scrub comes is the machine's */
    kvs_cache_close(stress.cache);
    kvs_close(stress.store);
    if (stress.clock) {
        kvs_virtual_clock_close(stress.clock);
    }
    snprintf(command, sizeof(command), "rm -rf '%s'", path);
    assert(system(command) == 0);
}

int main(int argc, char **argv)
{
    uint32_t rounds = argc > 1 ? (uint32_t)atoi(argv[1]) : 300;
    unsigned long long seed = argc > 2 ? strtoull(argv[2], NULL, 10) : (unsigned long long)getpid();
    printf("rounds %u, seed %llu\n", rounds, seed);
    run("threads", rounds, seed, 0);
    run("fault engine", rounds, seed, 1);
    return 0;
}
