/*
 * virtual_clock.c: a clock that moves only when a test moves it.
 *
 * boot_ns never goes back; wall time follows it and can be stepped on its own. Thread-safe. An
 * advance wakes its watchers under the lock, so that one who unwatches is never written to later.
 */
#include "virtual_clock.h"

#include "../io_wait.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

enum { WATCH_LIMIT = 16 };
static const int64_t NS_PER_S = 1000000000;

struct kvs_virtual_clock {
    struct kvs_clock face;
    pthread_mutex_t lock;
    int64_t boot_ns;
    int64_t wall_minus_boot_ns;
    int watchers[WATCH_LIMIT];
    unsigned watcher_count;
};

static int64_t face_boot_ns(struct kvs_clock *face)
{
    struct kvs_virtual_clock *clock = (struct kvs_virtual_clock *)face;
    pthread_mutex_lock(&clock->lock);
    int64_t now = clock->boot_ns;
    pthread_mutex_unlock(&clock->lock);
    return now;
}

static int64_t face_wall_s(struct kvs_clock *face)
{
    struct kvs_virtual_clock *clock = (struct kvs_virtual_clock *)face;
    pthread_mutex_lock(&clock->lock);
    int64_t now = (clock->boot_ns + clock->wall_minus_boot_ns) / NS_PER_S;
    pthread_mutex_unlock(&clock->lock);
    return now;
}

int kvs_virtual_clock_open(int64_t wall_s, struct kvs_virtual_clock **out)
{
    struct kvs_virtual_clock *clock = calloc(1, sizeof *clock);
    if (clock == NULL) {
        return -ENOMEM;
    }
    clock->face = (struct kvs_clock){face_boot_ns, face_wall_s};
    clock->boot_ns = NS_PER_S;
    clock->wall_minus_boot_ns = wall_s * NS_PER_S - clock->boot_ns;
    pthread_mutex_init(&clock->lock, NULL);
    *out = clock;
    return 0;
}

void kvs_virtual_clock_close(struct kvs_virtual_clock *clock)
{
    assert(clock->watcher_count == 0);
    pthread_mutex_destroy(&clock->lock);
    free(clock);
}

struct kvs_clock *kvs_virtual_clock_face(struct kvs_virtual_clock *clock)
{
    return &clock->face;
}

int64_t kvs_virtual_clock_now_ns(struct kvs_virtual_clock *clock)
{
    return face_boot_ns(&clock->face);
}

/* Called with the lock held. */
static void move_to(struct kvs_virtual_clock *clock, int64_t boot_ns)
{
    clock->boot_ns = boot_ns;
    for (unsigned i = 0; i < clock->watcher_count; i++) {
        kvs_wake_write(clock->watchers[i]);
    }
}

void kvs_virtual_clock_advance(struct kvs_virtual_clock *clock, int64_t ns)
{
    assert(ns >= 0);
    pthread_mutex_lock(&clock->lock);
    move_to(clock, clock->boot_ns + ns);
    pthread_mutex_unlock(&clock->lock);
}

void kvs_virtual_clock_advance_to(struct kvs_virtual_clock *clock, int64_t boot_ns)
{
    pthread_mutex_lock(&clock->lock);
    if (boot_ns > clock->boot_ns) {
        move_to(clock, boot_ns);
    }
    pthread_mutex_unlock(&clock->lock);
}

void kvs_virtual_clock_step_wall(struct kvs_virtual_clock *clock, int64_t seconds)
{
    pthread_mutex_lock(&clock->lock);
    clock->wall_minus_boot_ns += seconds * NS_PER_S;
    pthread_mutex_unlock(&clock->lock);
}

int kvs_virtual_clock_watch(struct kvs_virtual_clock *clock, int fd)
{
    pthread_mutex_lock(&clock->lock);
    int result = clock->watcher_count < WATCH_LIMIT ? 0 : -ENOSPC;
    if (result == 0) {
        clock->watchers[clock->watcher_count++] = fd;
    }
    pthread_mutex_unlock(&clock->lock);
    return result;
}

void kvs_virtual_clock_unwatch(struct kvs_virtual_clock *clock, int fd)
{
    pthread_mutex_lock(&clock->lock);
    for (unsigned i = 0; i < clock->watcher_count; i++) {
        if (clock->watchers[i] == fd) {
            clock->watchers[i] = clock->watchers[--clock->watcher_count];
            break;
        }
    }
    pthread_mutex_unlock(&clock->lock);
}
