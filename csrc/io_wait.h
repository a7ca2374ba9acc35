/*
 * io_wait.h: the two things every engine's reap needs: an eventfd to be woken by, and deadlines.
 *
 * Private to the engines. A deadline of INT64_MAX means "for ever"; sums saturate there.
 */
#ifndef KVS_IO_WAIT_H
#define KVS_IO_WAIT_H

#include <errno.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* Non-blocking on purpose: neither a writer nor the engine that drains it can ever hang on it. */
static inline int kvs_wake_open(void)
{
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return fd < 0 ? -errno : fd;
}

static inline void kvs_wake_write(int fd)
{
    uint64_t one = 1;
    /* Can only fail when the counter is full, and then the reader is awake anyway. */
    ssize_t written = write(fd, &one, sizeof one);
    (void)written;
}

/* Returns 1 when somebody had written since the last drain. */
static inline int kvs_wake_drain(int fd)
{
    uint64_t writes;
    return read(fd, &writes, sizeof writes) == (ssize_t)sizeof writes;
}

static inline int64_t kvs_monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* timeout_ns as reap takes it: 0 do not wait, < 0 for ever. */
static inline int64_t kvs_deadline_after(int64_t now_ns, int64_t timeout_ns)
{
    if (timeout_ns < 0 || timeout_ns > INT64_MAX - now_ns) {
        return INT64_MAX;
    }
    return now_ns + timeout_ns;
}

/* What is left of a deadline on the monotonic clock: 0 when it has passed, -1 for ever. */
static inline int64_t kvs_remaining_ns(int64_t deadline_ns)
{
    if (deadline_ns == INT64_MAX) {
        return -1;
    }
    int64_t left = deadline_ns - kvs_monotonic_ns();
    return left > 0 ? left : 0;
}

static inline struct timespec kvs_timespec(int64_t ns)
{
    return (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
}

#endif
