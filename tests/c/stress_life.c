/*
 * stress_life.c: lives that end early, for the sanitizers: two stores on one root (an owner that
 * scrubs, and a peer), a crowd of threads on both, and both closed under them.
 *
 * Loads are cancelled and closed while others wait for them; leases run out under loads; writers
 * are closed with puts under way, commits not waited for; tickets are sent to queues, taken back
 * and closed; extents are deleted under all of it. Handles outlive their store.
 *
 * A delivered cell has the bytes put under its key, every ticket is done in time, also of a closed
 * store, no descriptor is left. Bounded by counts, not by time.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "stress_cells.h"
#include "testing/io_fault.h"

enum {
    CHAINS = 4,
    SHARED_BLOCKS = 21,
    THREADS = 6,
    SLOTS = 3,
    SIDES = 2,
    CLOSE_AFTER = 60,
    OPS_MAX = 4000
};

/* A running load that every thread may look at and cancel; whoever opened it closes it. */
struct slot {
    pthread_rwlock_t lock;
    struct kvs_load *load;
};

struct life {
    struct kvs_store *stores[SIDES]; /* owner, peer */
    struct kvs_cache *caches[SIDES];
    struct kvs_virtual_clock *clock; /* NULL: real time */
    struct kvs_key chains[CHAINS][BLOCKS];
    struct slot slots[SLOTS];
    atomic_uint ops, loaded, published, cancelled, closed_loads;
};

struct worker {
    struct life *life;
    uint64_t random;
    pthread_t thread;
    struct memory memory;
    uint8_t *sources; /* [LAYERS][BLOCKS * CELL_MAX] */
    struct kvs_queue *queues[SIDES];
};

static uint32_t pick(struct worker *worker, uint32_t below)
{
    worker->random = worker->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(worker->random >> 33) % below;
}

/* ---- tickets: waited for, sent somewhere and taken back, or let go ---- */

static void ticket_use(struct worker *worker, uint32_t side, struct kvs_ticket *ticket)
{
    uint64_t tokens[8];
    struct kvs_queue *queue = worker->queues[side];
    switch (pick(worker, 4)) {
    case 0:
        finish(ticket);
        return;
    case 1: /* an event, or none */
        kvs_ticket_send(ticket, queue, 7);
        kvs_ticket_wait(ticket, pick(worker, 2) * 100000);
        break;
    case 2:
        kvs_ticket_send(ticket, queue, 8);
        break;
    default:
        kvs_ticket_wait(ticket, 0);
    }
    kvs_ticket_send(ticket, NULL, 0);
    while (kvs_queue_take(queue, tokens, 8) == 8) {
    }
    kvs_ticket_close(ticket);
}

/* ---- loads ---- */

static void load_watch(struct worker *worker, uint32_t side, struct kvs_load *load,
                       const struct kvs_key *keys, int prefetch)
{
    struct kvs_layer layer;
    for (uint32_t i = 0; i < LAYERS && pick(worker, 6); i++) {
        ticket_use(worker, side, kvs_load_layer_ticket(load, i));
        if (kvs_load_layer(load, i, &layer) < 0) {
            continue;
        }
        assert(layer.reason != KVS_REASON_DAMAGED && layer.reason != KVS_REASON_IO_ERROR);
        if (!prefetch && layer.span_count) {
            assert(check_spans(load, keys, 0, i) == layer.blocks);
            atomic_fetch_add(&worker->life->loaded, (unsigned)layer.blocks);
        }
        worker->life->closed_loads += layer.reason == KVS_REASON_CLOSED;
        worker->life->cancelled += layer.reason == KVS_REASON_CANCELLED;
        if (pick(worker, 2)) {
            kvs_load_release(load, i);
        }
    }
}

/* Opens one in a slot that others reach, and ends it in one of many ways. */
static int load_life(struct worker *worker, uint32_t side)
{
    struct life *life = worker->life;
    const struct kvs_key *keys = life->chains[pick(worker, CHAINS)];
    static const int64_t timeouts_ns[] = {1, 1000000, WAIT_NS};
    struct slot *slot = &life->slots[pick(worker, SLOTS)];
    struct kvs_target targets[PARTS];
    struct kvs_lease *lease;
    struct kvs_load *load;
    uint64_t needed, count = 1 + pick(worker, BLOCKS);
    int into = pick(worker, 3) == 0, prefetch = !into && pick(worker, 4) == 0;
    int error = kvs_lease_open(life->caches[side], keys, 0, count, pick(worker, 2) ? "a" : "b", -1,
                               timeouts_ns[pick(worker, 3)], &lease);
    if (error) {
        return error;
    }
    for (uint32_t part = 0; part < PARTS; part++) {
        memset(worker->memory.base[part], CANARY, part_room(part));
        targets[part] = (struct kvs_target){worker->memory.base[part] + 4096, part_bytes[part]};
    }
    struct kvs_into where = {.targets = targets, .page_tokens = TOKENS};
    error = kvs_load_open(lease, into ? &where : NULL, prefetch ? KVS_LOAD_PREFETCH : 0,
                          pick(worker, 4) ? WAIT_NS : 1000000, &needed, &load);
    if (pick(worker, 2)) { /* a load holds what it reads itself */
        kvs_lease_release(lease);
        lease = NULL;
    }
    if (!error) {
        struct kvs_ticket *drained = kvs_load_drained(load);
        pthread_rwlock_wrlock(&slot->lock);
        int shown = slot->load == NULL;
        slot->load = shown ? load : slot->load;
        pthread_rwlock_unlock(&slot->lock);
        load_watch(worker, side, load, keys, prefetch);
        if (shown) {
            pthread_rwlock_wrlock(&slot->lock);
            slot->load = NULL;
            pthread_rwlock_unlock(&slot->lock);
        }
        kvs_load_close(load);
        finish(drained); /* from here on the memory is ours again */
    }
    if (lease) {
        kvs_lease_release(lease);
    }
    return error;
}

/* What others do to a load that is not theirs. */
static void slot_touch(struct worker *worker)
{
    struct slot *slot = &worker->life->slots[pick(worker, SLOTS)];
    struct kvs_load_stats stats;
    struct kvs_layer layer;
    pthread_rwlock_rdlock(&slot->lock);
    if (slot->load) {
        struct kvs_ticket *ticket = kvs_load_layer_ticket(slot->load, pick(worker, LAYERS));
        kvs_load_stats(slot->load, &stats);
        kvs_load_layer(slot->load, pick(worker, LAYERS), &layer);
        if (pick(worker, 4) == 0) {
            kvs_load_cancel(slot->load);
        }
        kvs_ticket_wait(ticket, 1000);
        kvs_ticket_close(ticket);
    }
    pthread_rwlock_unlock(&slot->lock);
}

/* ---- writers ---- */

static int writer_life(struct worker *worker, uint32_t side)
{
    struct life *life = worker->life;
    const struct kvs_key *keys = life->chains[pick(worker, CHAINS)];
    struct kvs_writer *writer;
    struct kvs_ticket *puts[LAYERS], *commit;
    uint32_t put_count = 0;
    uint64_t count = 1 + pick(worker, BLOCKS);
    int error = kvs_writer_open(life->caches[side], keys, count, 0, -1, 0, NULL, NULL, &writer);
    if (error) {
        return error;
    }
    for (uint32_t layer = 0; !error && layer < LAYERS && pick(worker, 8); layer++) {
        uint8_t *cells = worker->sources + (size_t)layer * BLOCKS * CELL_MAX;
        struct kvs_source sources[2] = {{cells, cell_bytes[layer]},
                                        {cells + part_bytes[first_part[layer]], cell_bytes[layer]}};
        for (uint64_t block = 0; block < count; block++) {
            cell_fill(cells + block * cell_bytes[layer], &keys[block], layer);
        }
        if (cell_bytes[layer]) {
            int refused = kvs_writer_put(writer, layer, 0, count, sources, &puts[put_count]);
            assert(refused == 0 || refused == -ESHUTDOWN);
            put_count += refused == 0;
            error = refused;
        }
    }
    if (!error && pick(worker, 4) && kvs_writer_commit(writer, &commit) == 0) {
        if (pick(worker, 2)) {
            int64_t resident = finish(commit);
            assert(resident >= 0 && resident <= (int64_t)count);
            atomic_fetch_add(&life->published, (unsigned)resident);
        } else {
            ticket_use(worker, side, commit);
        }
    }
    kvs_writer_close(writer);
    for (uint32_t i = 0; i < put_count; i++) {
        finish(puts[i]); /* the sources are used again */
    }
    return error;
}

/* ---- the rest ---- */

static int keeper_turn(struct worker *worker, uint32_t side)
{
    struct life *life = worker->life;
    const struct kvs_key *keys = life->chains[pick(worker, CHAINS)];
    struct kvs_ticket *ticket = NULL;
    struct kvs_stats stats;
    int error = 0;
    switch (pick(worker, 6)) {
    case 0:
        error = kvs_delete(life->caches[side], &keys[pick(worker, BLOCKS)], &ticket);
        break;
    case 1:
        error = kvs_flush(life->stores[side], &ticket);
        break;
    case 2:
        error = kvs_find(life->caches[side], keys, BLOCKS, &ticket);
        break;
    case 3:
        error = kvs_drop_ram(life->stores[side]);
        break;
    default:
        error = kvs_tick(life->stores[side]);
        kvs_stats(life->stores[side], &stats);
    }
    if (ticket) {
        ticket_use(worker, side, ticket);
    }
    if (life->clock) { /* leases and deadlines run out; now and then the scrub begins again */
        int64_t week_ns = 7ll * 86400 * 1000000000;
        kvs_virtual_clock_advance(life->clock, pick(worker, 32) ? 1000000 : week_ns);
    }
    return error;
}

/* Until both stores are closed. */
static void *crowd(void *argument)
{
    struct worker *worker = argument;
    int over[SIDES] = {0};
    for (uint32_t i = 0; i < OPS_MAX && !(over[0] && over[1]); i++) {
        uint32_t side = pick(worker, SIDES), what = pick(worker, 8);
        int error = 0;
        if (over[side]) {
            continue;
        }
        if (what < 3) {
            error = load_life(worker, side);
        } else if (what < 5) {
            error = writer_life(worker, side);
        } else if (what < 7) {
            error = keeper_turn(worker, side);
        } else {
            slot_touch(worker);
        }
        assert(error == 0 || error == -ESHUTDOWN);
        over[side] = error == -ESHUTDOWN;
        atomic_fetch_add(&worker->life->ops, 1);
    }
    return NULL;
}

static void *close_store(void *store)
{
    kvs_close(store);
    return NULL;
}

/* ---- a life ---- */

static void side_open(struct life *life, uint32_t side, const char *path,
                      struct kvs_io_engine *engine)
{
    struct kvs_root_options root = {.path = path, .capacity_bytes = 1 << 20, .engine = engine};
    struct kvs_class class = {"chat", 100 * 365 * 86400ll};
    struct kvs_options options = {.roots = &root,
                                  .root_count = 1,
                                  .classes = &class,
                                  .class_count = 1,
                                  .role = side == 0 ? KVS_ROLE_OWNER : KVS_ROLE_PEER,
                                  .engine = KVS_ENGINE_THREADS,
                                  .helpers = 2,
                                  .io_depth = 8,
                                  .pool_bytes = 4 << 20,
                                  .scrub_bytes_per_s = side == 0 ? 1ull << 30 : 0};
    char message[256];
    options.clock = life->clock ? kvs_virtual_clock_face(life->clock) : NULL;
    assert(kvs_open(&options, &life->stores[side], message, sizeof(message)) == 0);
    stress_cache_open(life->stores[side], &life->caches[side]);
}

static void worker_open(struct worker *worker, struct life *life, uint64_t random)
{
    *worker = (struct worker){.life = life, .random = random};
    memory_open(&worker->memory);
    worker->sources = malloc((size_t)LAYERS * BLOCKS * CELL_MAX);
    for (uint32_t side = 0; side < SIDES; side++) {
        assert(kvs_queue_open(life->stores[side], &worker->queues[side]) == 0);
    }
    assert(pthread_create(&worker->thread, NULL, crowd, worker) == 0);
}

static void worker_close(struct worker *worker)
{
    pthread_join(worker->thread, NULL);
    for (uint32_t side = 0; side < SIDES; side++) {
        kvs_queue_close(worker->queues[side]);
    }
    for (uint32_t part = 0; part < PARTS; part++) {
        free(worker->memory.base[part]);
    }
    free(worker->sources);
}

static void live(struct life *life, const char *path, uint64_t seed, int virtual)
{
    struct worker workers[THREADS];
    struct kvs_io_engine *engine = NULL;
    pthread_t closing[SIDES];
    life->clock = NULL;
    if (virtual) {
        struct kvs_fault_device device = {.latency_ns = 1000, .depth = 8, .auto_advance = 1};
        assert(kvs_virtual_clock_open(1700000000, &life->clock) == 0);
        assert(kvs_io_fault_open(life->clock, &device, &engine) == 0);
    }
    atomic_store(&life->ops, 0);
    side_open(life, 0, path, engine);
    side_open(life, 1, path, NULL);
    for (uint32_t i = 0; i < THREADS; i++) {
        worker_open(&workers[i], life, seed * 1000 + i);
    }
    while (atomic_load(&life->ops) < CLOSE_AFTER + seed % 7 * 30) {
        usleep(200); /* paces, decides nothing: any moment is as good */
    }
    for (uint32_t side = 0; side < SIDES; side++) {
        assert(pthread_create(&closing[side], NULL, close_store, life->stores[side]) == 0);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        worker_close(&workers[i]);
    }
    for (uint32_t side = 0; side < SIDES; side++) {
        pthread_join(closing[side], NULL);
        kvs_cache_close(life->caches[side]);
    }
    if (virtual) {
        kvs_virtual_clock_close(life->clock);
    }
}

int main(int argc, char **argv)
{
    uint32_t lives = argc > 1 ? (uint32_t)atoi(argv[1]) : 24;
    unsigned long long seed = argc > 2 ? strtoull(argv[2], NULL, 10) : (unsigned long long)getpid();
    char path[] = "kvs-stress-life-XXXXXX", command[64];
    static struct life life;
    printf("lives %u, seed %llu\n", lives, seed);
    fflush(stdout); /* also when an assert ends it */
    assert(mkdtemp(path));
    for (uint32_t i = 0; i < SLOTS; i++) {
        pthread_rwlock_init(&life.slots[i].lock, NULL);
    }
    for (int32_t chain = 0; chain < CHAINS; chain++) {
        chain_keys(chain, SHARED_BLOCKS, life.chains[chain]);
    }
    uint32_t before = descriptors();
    for (uint32_t i = 0; i < lives; i++) {
        live(&life, path, seed + i, i % 2 == 1);
        assert(descriptors() == before);
    }
    printf("%u blocks loaded, %u published, %u layers cancelled, %u closed\n", life.loaded,
           life.published, life.cancelled, life.closed_loads);
    assert(life.loaded > 0 && life.published > 0 && life.cancelled > 0);
    snprintf(command, sizeof(command), "rm -rf '%s'", path);
    assert(system(command) == 0);
    return 0;
}
