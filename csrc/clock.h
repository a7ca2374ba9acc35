/*
 * clock.h: where time comes from. The real clock, or one that a test drives.
 *
 * boot_ns is CLOCK_BOOTTIME (never steps, counts suspend): deadlines, leases, expiry while open.
 * wall_s is CLOCK_REALTIME in whole seconds: only what is written to disk (mtime, atime).
 */
#ifndef KVS_CLOCK_H
#define KVS_CLOCK_H

#include <stdint.h>
#include <time.h>

struct kvs_clock {
    int64_t (*boot_ns)(struct kvs_clock *clock);
    int64_t (*wall_s)(struct kvs_clock *clock);
};

static inline int64_t kvs_clock_real_boot_ns(struct kvs_clock *clock)
{
    (void)clock;
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline int64_t kvs_clock_real_wall_s(struct kvs_clock *clock)
{
    (void)clock;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec;
}

#define KVS_CLOCK_REAL {kvs_clock_real_boot_ns, kvs_clock_real_wall_s}

#endif
