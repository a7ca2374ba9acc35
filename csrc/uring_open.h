/*
 * uring_open.h: how a ring comes about: by way of liburing or our shim, with the flags that this
 * kernel knows, and after a probe. Private to io_uring.c, which drives the ring.
 *
 * Invariant: the probe goes the whole way of the engine (a disabled ring, enabled, a poll, a read),
 * because some sandboxes allow the setup and refuse what comes after it.
 */
#ifndef KVS_URING_OPEN_H
#define KVS_URING_OPEN_H

#include "io_wait.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/syscall.h>

#if defined(KVS_URING_STATIC) || defined(KVS_URING_SHARED)
#include <liburing.h>
#else
#include "uring_shim.h"
#endif

/* Dropped one by one, youngest first, by kernels that answer EINVAL. */
static const unsigned OPTIONAL_FLAGS[] = {
    IORING_SETUP_DEFER_TASKRUN, /* 6.1: completions are handled in our waits only, in batches */
    IORING_SETUP_SINGLE_ISSUER, /* 6.0 */
    IORING_SETUP_COOP_TASKRUN,  /* 5.19 */
    IORING_SETUP_SUBMIT_ALL,    /* 5.18: one bad request does not hold up those behind it */
};
enum { OPTIONAL_FLAG_COUNT = sizeof OPTIONAL_FLAGS / sizeof OPTIONAL_FLAGS[0] };

static inline int is_transient(int result)
{
    return result == -ETIME || result == -EINTR || result == -EAGAIN || result == -EBUSY;
}

/* A ring with as many of the optional flags as the kernel takes; *granted says which. */
static inline int ring_open(struct io_uring *ring, unsigned entries, unsigned flags,
                            unsigned *granted)
{
    unsigned wanted = flags;
    for (unsigned i = 0; i < OPTIONAL_FLAG_COUNT; i++) {
        wanted |= OPTIONAL_FLAGS[i];
    }
    for (unsigned dropped = 0;; dropped++) {
        struct io_uring_params params = {.flags = wanted};
        int result = io_uring_queue_init_params(entries, ring, &params);
        if (result == 0 && !(params.features & IORING_FEAT_EXT_ARG)) {
            io_uring_queue_exit(ring);
            return -ENOSYS; /* before 5.11 a wait takes no timeout */
        }
        if (result != -EINVAL || dropped == OPTIONAL_FLAG_COUNT) {
            *granted = wanted;
            return result;
        }
        wanted &= ~OPTIONAL_FLAGS[dropped];
    }
}

static inline struct io_uring_sqe *next_sqe(struct io_uring *ring)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
    if (sqe == NULL) {
        abort(); /* the engine's own counting is broken; not an assert: we would write through it */
    }
    return sqe;
}

static inline int ring_enable(struct io_uring *ring)
{
    /* Not io_uring_enable_rings(): liburing.so 2.3 forgets to export it. */
    int fd = ring->ring_fd;
    return syscall(__NR_io_uring_register, fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0) < 0 ? -errno
                                                                                          : 0;
}

/* A poll and a real read of the (just written) wake_fd. Both must come back. */
static inline int probe_ring(struct io_uring *ring, int wake_fd)
{
    uint64_t counter = 0;
    kvs_wake_write(wake_fd);
    struct io_uring_sqe *sqe = next_sqe(ring);
    io_uring_prep_poll_add(sqe, wake_fd, POLLIN);
    io_uring_sqe_set_data64(sqe, 0);
    sqe = next_sqe(ring);
    io_uring_prep_read(sqe, wake_fd, &counter, sizeof counter, 0);
    io_uring_sqe_set_data64(sqe, 0);

    struct __kernel_timespec limit = {.tv_sec = 1};
    struct io_uring_cqe *cqes[2] = {NULL, NULL};
    unsigned seen = 0;
    for (int pass = 0; pass < 4 && seen < 2; pass++) { /* a signal may cut a wait short */
        int result = io_uring_submit_and_wait_timeout(ring, cqes, 2, &limit, NULL);
        if (result < 0 && !is_transient(result)) {
            return result;
        }
        seen = io_uring_peek_batch_cqe(ring, cqes, 2);
    }
    int result = seen == 2 ? 0 : -ETIME;
    for (unsigned i = 0; i < seen; i++) {
        result = cqes[i]->res < 0 ? cqes[i]->res : result;
    }
    return result == 0 && counter != 1 ? -EIO : result;
}

/* Never by version: seccomp, sysctls, sandboxes and old kernels show themselves by trying. On a
 * small ring of this thread's own. */
static inline int probe(int wake_fd)
{
    struct io_uring ring;
    unsigned granted;
    int result = ring_open(&ring, 2, IORING_SETUP_R_DISABLED, &granted);
    if (result < 0) {
        return result;
    }
    result = ring_enable(&ring);
    result = result == 0 ? probe_ring(&ring, wake_fd) : result;
    io_uring_queue_exit(&ring);
    return result;
}

#endif
