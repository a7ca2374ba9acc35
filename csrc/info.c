/*
 * info.c: what a store says of itself: counters of store, loads and writers, roots, pool; names of
 * stages and reasons.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "store.h"

const char *kvs_reason_name(enum kvs_reason reason)
{
    static const char *const names[KVS_REASON_COUNT] = {
        "",          "absent",  "expired",   "evicted",  "deleted",  "pending",
        "warming",   "damaged", "foreign",   "io_error", "deadline", "pool",
        "cancelled", "closed",  "root_down", "busy",     "refused"};
    return (unsigned)reason < KVS_REASON_COUNT ? names[reason] : "unknown";
}

const char *kvs_refusal_name(enum kvs_refusal refusal)
{
    static const char *const names[KVS_REFUSAL_COUNT] = {"", "first_offer", "write_budget"};
    return (unsigned)refusal < KVS_REFUSAL_COUNT ? names[refusal] : "unknown";
}

const char *kvs_stage_name(enum kvs_stage stage)
{
    static const char *const names[KVS_STAGE_COUNT] = {"read", "write",  "open",      "first_layer",
                                                       "load", "commit", "layer_wait"};
    return (unsigned)stage < KVS_STAGE_COUNT ? names[stage] : "unknown";
}

void kvs_stage_latency(struct kvs_store *store, enum kvs_stage stage, struct kvs_latency *out)
{
    kvs_lock(store);
    *out = store->latencies[stage];
    kvs_unlock(store);
}

void kvs_layer_wait_note(struct kvs_store *store, int64_t ns)
{
    kvs_lock(store);
    kvs_latency_note(&store->latencies[KVS_STAGE_LAYER_WAIT], ns);
    kvs_unlock(store);
}

static void count_loads_locked(const struct kvs_store *store, struct kvs_stats *out)
{
    for (const struct kvs_link *at = store->loads.next; at != &store->loads; at = at->next) {
        const struct kvs_load *load = KVS_ENTRY(at, struct kvs_load, link);
        out->loads_running += load->state == KVS_LOAD_RUNNING;
        out->loads_waiting += load->state == KVS_LOAD_WAITING;
    }
}

void kvs_stats(struct kvs_store *store, struct kvs_stats *out)
{
    kvs_lock(store);
    *out = store->stats;
    count_loads_locked(store, out);
    out->extents = store->live_extents;
    out->blocks = store->live_blocks;
    out->puts_queued = store->put_count;
    out->writes_in_progress = store->writes_in_flight;
    out->leases = store->lease_count;
    out->open_files = store->file_count;
    out->regions = store->region_count;
    out->pool_bytes = kvs_arena_bytes(store->arena);
    out->pool_free_bytes = kvs_arena_free_bytes(store->arena);
    out->pool_cached_bytes = store->cached_bytes;
    out->clock_step_s = store->wall.step_s;
    out->index_bytes = kvs_index_memory_locked(store);
    kvs_unlock(store);
}

void kvs_load_count_locked(struct kvs_load *load)
{
    struct kvs_stats *stats = &load->store->stats;
    const struct kvs_namespace *ns = load->ns;
    enum kvs_reason reason = kvs_load_reason_locked(load, ns->layer_count - 1);
    load->stats.finished_ns = kvs_store_now_ns(load->store);
    load->stats.failed_blocks = load->blocks - load->layers[ns->layer_count - 1].blocks;
    stats->loads++;
    stats->loads_short += load->stats.failed_blocks > 0;
    stats->loads_by_reason[reason]++;
    stats->disk_bytes += load->stats.disk_bytes;
    stats->ram_bytes += load->stats.ram_bytes;
    stats->reads += load->stats.reads;
    stats->disk_tokens += load->stats.disk_bytes * ns->block_tokens / ns->block_bytes;
    stats->ram_tokens += load->stats.ram_bytes * ns->block_tokens / ns->block_bytes;
    if (reason != KVS_REASON_CANCELLED && reason != KVS_REASON_CLOSED) {
        kvs_latency_note(&load->store->latencies[KVS_STAGE_LOAD],
                         load->stats.finished_ns - load->stats.opened_ns);
    }
}

void kvs_writer_stats(struct kvs_writer *writer, struct kvs_writer_stats *out)
{
    kvs_lock(writer->store);
    *out = writer->stats;
    out->blocks_admitted = writer->admitted_end - writer->start;
    kvs_unlock(writer->store);
}

int kvs_root_info(struct kvs_store *store, uint32_t number, struct kvs_root_info *out)
{
    if (number >= store->root_count) {
        return -EINVAL;
    }
    kvs_lock(store);
    const struct kvs_root *root = &store->roots[number];
    memset(out, 0, sizeof(*out));
    snprintf(out->path, sizeof(out->path), "%s", root->path);
    snprintf(out->engine_why, sizeof(out->engine_why), "%s", root->engine_why);
    snprintf(out->file_system, sizeof(out->file_system), "%s", root->space.type);
    if (root->engine) {
        snprintf(out->engine, sizeof(out->engine), "%s", root->engine->name);
        out->registered = (uint32_t)root->engine->registered;
    }
    out->register_error = root->register_error;
    out->is_owner = (uint32_t)root->is_owner;
    out->warming = (uint32_t)root->warming;
    out->lost = root->lost | __atomic_load_n(&store->fs->lost, __ATOMIC_RELAXED);
    if (root->is_owner) {
        out->lost &= ~(uint32_t)KVS_FS_LOST_WRITE; /* it could be written since */
    }
    out->io_depth = root->slot_count;
    out->capacity_bytes = root->capacity_bytes;
    out->used_bytes = root->used_bytes;
    out->reserve_bytes = root->reserve_bytes;
    out->free_bytes = root->space.free_bytes;
    out->quarantine_files = root->quarantine_files;
    out->quarantine_bytes = root->quarantine_bytes;
    out->reads_in_flight_max = root->ops_in_flight_max;
    out->ops_in_flight = root->ops_in_flight;
    out->bytes_in_flight = root->bytes_in_flight;
    out->reads_queued = root->reads_queued;
    out->read_bytes_queued = root->read_bytes_queued;
    out->device_read_bytes = root->device_read_bytes;
    out->device_written_bytes = root->device_written_bytes;
    out->device_errors = root->device_errors;
    const struct kvs_breaker *breaker = &root->breaker;
    out->breaker_state = breaker->state;
    out->breaker_trips = breaker->trips;
    int64_t now_ns = kvs_store_now_ns(store);
    out->down_ns = breaker->state ? now_ns - breaker->since_ns : 0;
    if (breaker->state == KVS_BREAKER_OPEN && breaker->probe_ns > now_ns) {
        out->probe_in_ns = breaker->probe_ns - now_ns;
    }
    snprintf(out->trouble, sizeof(out->trouble), "%s", breaker->why);
    out->write_budget_bytes = store->write_budget_bytes;
    out->write_budget_left_bytes = kvs_write_budget_left_locked(root);
    kvs_scrub_info_locked(root, out);
    kvs_unlock(store);
    return 0;
}

void kvs_event_note_locked(struct kvs_root *root, const char *what, const char *why)
{
    struct kvs_store *store = root->store;
    uint32_t count = atomic_load(&store->event_count);
    if (count == KVS_EVENTS) { /* nobody asks: the oldest goes */
        store->event_first = (store->event_first + 1) % KVS_EVENTS;
        count--;
    }
    struct kvs_event *event = &store->events[(store->event_first + count) % KVS_EVENTS];
    snprintf(event->text, sizeof(event->text), "%s %s%s", root->path, what, why);
    atomic_store(&store->event_count, count + 1);
}

int kvs_event_take(struct kvs_store *store, char *text, uint32_t text_bytes)
{
    if (atomic_load(&store->event_count) == 0) {
        return 0;
    }
    kvs_lock(store);
    uint32_t count = atomic_load(&store->event_count);
    if (count > 0) {
        snprintf(text, text_bytes, "%s", store->events[store->event_first].text);
        store->event_first = (store->event_first + 1) % KVS_EVENTS;
        atomic_store(&store->event_count, count - 1);
    }
    kvs_unlock(store);
    return count > 0;
}

void kvs_files_info(struct kvs_store *store, struct kvs_files_info *out)
{
    *out = (struct kvs_files_info){store->descriptor_limit, store->file_max};
}

void kvs_pool_info(struct kvs_store *store, struct kvs_pool_info *out)
{
    out->base = (uint64_t)(uintptr_t)kvs_arena_base(store->arena);
    out->bytes = kvs_arena_bytes(store->arena);
    out->page_kind = kvs_arena_page_kind(store->arena);
    out->root_count = store->root_count;
    out->huge_coverage = kvs_arena_huge_coverage(store->arena);
}
