/*
 * breaker.c: one circuit breaker per root: when a device is left alone, and what that means for all
 * who wait for it. How it is tried again: recover.c.
 *
 * It opens when an operation of the engine or a call of fs.h has been under way for io_timeout,
 * when operations fail one after the other, or when most of them take a large part of io_timeout.
 * While it is open the root has no blocks: lookups pass over its extents, new extents are born on
 * other roots, and fs_watch.c refuses calls without asking the device (-EHOSTDOWN).
 *
 * Invariants:
 *   1. Whoever waits for the root is told when it opens: loads get a miss, writers drop. Slots,
 *      buffers and regions stay the engine's until their operations come back.
 *   2. Only errors that speak of the device open it. Being short of descriptors, memory or space
 *      does not.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "store.h"

enum { ERRORS_MAX = 64, SLOW_OPS_MIN = 8, SLOW_SHARE = 4 };
static const int64_t WAIT_MIN_NS = KVS_NS_PER_S, WAIT_MAX_NS = 60 * KVS_NS_PER_S;

int kvs_device_error(int error)
{
    switch (-error) {
    case EIO:
    case ENXIO:
    case ENODEV:
    case ENOMEDIUM:
    case EREMOTEIO:
    case ETIMEDOUT:
    case EUCLEAN:
    case EBADMSG:
    case ENOTCONN:
    case ESHUTDOWN:
        return 1;
    default:
        return 0;
    }
}

int kvs_busy_error(int error)
{
    switch (-error) {
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOBUFS:
    case EAGAIN:
    case EINTR:
    case EBUSY:
    case ENOSPC:
    case EDQUOT:
        return 1;
    default:
        return 0;
    }
}

/* ---- those who wait ---- */

/* 1: this ended it. */
static int load_loses_root_locked(struct kvs_load *load, uint32_t root)
{
    kvs_load_hold_locked(load);
    for (uint32_t i = 0; i < load->span_count && load->state != KVS_LOAD_ENDED; i++) {
        struct kvs_load_span *span = &load->spans[i];
        if (span->root != root) {
            continue;
        }
        span->failed = 1;
        for (uint32_t layer = 0; layer < load->ns->layer_count && load->state != KVS_LOAD_ENDED;
             layer++) {
            if (!load->runs[(size_t)layer * load->span_count + i].over) {
                kvs_load_cut_locked(load, layer, span->first_block, KVS_REASON_ROOT_DOWN);
                kvs_load_span_done_locked(load, layer, i);
            }
        }
    }
    int ended = load->state == KVS_LOAD_ENDED;
    kvs_load_drop_locked(load);
    return ended;
}

static void loads_lose_root_locked(struct kvs_root *root)
{
    struct kvs_link *loads = &root->store->loads, *at = loads->next;
    while (at != loads) {
        struct kvs_load *load = KVS_ENTRY(at, struct kvs_load, link);
        int waits = load->state == KVS_LOAD_WAITING || load->state == KVS_LOAD_RUNNING;
        struct kvs_link *next = at->next;
        /* Ending one may have ended others. */
        at = waits && load_loses_root_locked(load, root->number) ? loads->next : next;
    }
}

/* What has no file yet is born elsewhere; the rest is dropped. A writer that is being published is
 * its job's, whose calls are refused. */
static void writers_lose_root_locked(struct kvs_root *root)
{
    struct kvs_link *writers = &root->store->writers;
    for (struct kvs_link *at = writers->next; at != writers;) {
        struct kvs_writer *writer = KVS_ENTRY(at, struct kvs_writer, link);
        at = at->next;
        if (writer->publishing) {
            continue;
        }
        kvs_writer_hold_locked(writer);
        for (uint32_t i = 0; i < writer->made_count; i++) {
            struct kvs_writer_extent *made = writer->made[i];
            if (made->root != root->number) {
                continue;
            }
            if (made->state == KVS_MADE_FRESH) {
                kvs_made_place_locked(writer, made);
                if (made->wanted) {
                    kvs_made_create_locked(writer, made);
                }
            } else {
                kvs_made_drop_locked(writer, made);
            }
        }
        kvs_writer_progress_locked(writer);
        kvs_writer_drop_locked(writer);
    }
}

/* ---- opening ---- */

void kvs_breaker_trip_locked(struct kvs_root *root, const char *why)
{
    struct kvs_breaker *breaker = &root->breaker;
    if (breaker->state != KVS_BREAKER_CLOSED) {
        return;
    }
    int64_t now_ns = kvs_store_now_ns(root->store);
    /* Down again soon after it came back: it was too early to trust it. */
    int again = breaker->trips > 0 && now_ns - breaker->since_ns < WAIT_MAX_NS;
    int64_t wait_ns = again ? 2 * breaker->wait_ns : WAIT_MIN_NS;
    breaker->wait_ns = wait_ns < WAIT_MAX_NS ? wait_ns : WAIT_MAX_NS;
    breaker->state = KVS_BREAKER_OPEN;
    breaker->trips++;
    breaker->since_ns = now_ns;
    breaker->probe_ns = now_ns + breaker->wait_ns;
    breaker->errors = breaker->window_ops = breaker->window_slow = 0;
    snprintf(breaker->why, sizeof(breaker->why), "%s", why);
    kvs_event_note_locked(root, "is down and left alone: ", why);
    kvs_transfers_give_up_locked(root);
    loads_lose_root_locked(root);
    writers_lose_root_locked(root);
    root->evictor = NULL;
    root->judge = NULL; /* those who wait for their turn need not wait for the device */
    kvs_deletes_resume_locked(root->store);
    kvs_flushes_refuse_locked(root->store, -EHOSTDOWN);
    kvs_wake_all(root->store);
    pthread_cond_broadcast(&root->store->changed);
}

int64_t kvs_slow_ns(const struct kvs_store *store)
{
    return store->io_timeout_ns / SLOW_SHARE;
}

void kvs_breaker_note_locked(struct kvs_root *root, int error, int64_t took_ns)
{
    struct kvs_breaker *breaker = &root->breaker;
    char why[KVS_TROUBLE_BYTES];
    if (breaker->state != KVS_BREAKER_CLOSED) {
        return;
    }
    if (!error) {
        breaker->successes++;
        breaker->errors = 0;
    } else if (kvs_device_error(error) && ++breaker->errors >= ERRORS_MAX) {
        snprintf(why, sizeof(why), "%d operations failed one after the other, the last one: %s",
                 ERRORS_MAX, strerror(-error));
        kvs_breaker_trip_locked(root, why);
        return;
    }
    int64_t now_ns = kvs_store_now_ns(root->store);
    if (now_ns - breaker->window_ns > 2 * root->store->io_timeout_ns) {
        breaker->window_ns = now_ns;
        breaker->window_ops = breaker->window_slow = 0;
    }
    breaker->window_ops++;
    breaker->window_slow += took_ns > kvs_slow_ns(root->store);
    if (breaker->window_slow >= SLOW_OPS_MIN && 2 * breaker->window_slow > breaker->window_ops) {
        snprintf(why, sizeof(why), "%u of %u operations took longer than %.3g s",
                 breaker->window_slow, breaker->window_ops, (double)kvs_slow_ns(root->store) / 1e9);
        kvs_breaker_trip_locked(root, why);
    }
}

/* Errors of calls count, their success does not: the kernel answers many of them from memory. */
void kvs_breaker_note_call_locked(struct kvs_root *root, int error)
{
    if (kvs_device_error(error)) {
        kvs_breaker_note_locked(root, error, 0);
    }
}

/* ---- what time shows ---- */

static void give_up_late_locked(struct kvs_root *root, struct kvs_slot *slot, int64_t now_ns)
{
    const struct kvs_transfer *transfer = slot->transfer;
    char why[KVS_TROUBLE_BYTES];
    slot->late = 1;
    if (transfer->file && transfer->file->extent) {
        kvs_extent_unreadable_locked(root, transfer->file->extent, transfer->again);
    }
    snprintf(why, sizeof(why), "a %s has been under way for %.3g s",
             transfer->kind == KVS_TRANSFER_WRITE ? "write" : "read",
             (double)(now_ns - slot->started_ns) / 1e9);
    kvs_breaker_trip_locked(root, why);
}

/* Two rounds must see it: after a pause of the whole machine everything looks late for a moment. */
int kvs_overdue(const struct kvs_store *store, int64_t began_ns, int64_t now_ns, uint8_t *rounds)
{
    if (now_ns - began_ns < store->io_timeout_ns) {
        *rounds = 0;
        return 0;
    }
    *rounds = (uint8_t)(*rounds < 2 ? *rounds + 1 : 2);
    return *rounds == 2;
}

static void overdue_locked(struct kvs_root *root, int64_t now_ns)
{
    for (uint32_t i = 0; i < root->slot_count; i++) {
        struct kvs_slot *slot = &root->slots[i];
        if (slot->transfer && !slot->late && slot->transfer->kind != KVS_TRANSFER_PROBE &&
            kvs_overdue(root->store, slot->started_ns, now_ns, &slot->rounds)) {
            give_up_late_locked(root, slot, now_ns);
        }
    }
}

void kvs_breaker_round_locked(struct kvs_root *root, int64_t now_ns)
{
    struct kvs_breaker *breaker = &root->breaker;
    overdue_locked(root, now_ns);
    kvs_workers_round_locked(root, now_ns);
    if (breaker->state == KVS_BREAKER_OPEN && breaker->probe_ns <= now_ns &&
        kvs_job_add_locked(root, kvs_probe_job, NULL, 1) == 0) {
        breaker->state = KVS_BREAKER_PROBING;
    }
}

/* ---- closing ---- */

void kvs_breaker_close_locked(struct kvs_root *root)
{
    struct kvs_breaker *breaker = &root->breaker;
    struct kvs_store *store = root->store;
    breaker->state = KVS_BREAKER_CLOSED;
    breaker->since_ns = kvs_store_now_ns(store);
    root->locking = root->path_looking = 0; /* jobs of before may never end */
    kvs_event_note_locked(root, "is back; it was down: ", breaker->why);
    /* A scan that was under way, or names that others made meanwhile. */
    kvs_scan_anew_locked(root);
    kvs_wake_all(store);
}

void kvs_breaker_stay_open_locked(struct kvs_root *root, const char *why)
{
    struct kvs_breaker *breaker = &root->breaker;
    breaker->wait_ns = 2 * breaker->wait_ns < WAIT_MAX_NS ? 2 * breaker->wait_ns : WAIT_MAX_NS;
    breaker->probe_ns = kvs_store_now_ns(root->store) + breaker->wait_ns;
    breaker->state = KVS_BREAKER_OPEN;
    snprintf(breaker->why, sizeof(breaker->why), "%s", why);
}
