/*
 * uring_shim.h: the few liburing calls that io_uring.c makes, over raw system calls and
 * <linux/io_uring.h>, for builds without liburing. Same names, same meaning, nothing more.
 *
 * Static inline with a single includer, so that these names can never meet a real liburing that
 * some other extension has loaded into the process.
 *
 * Invariants: one thread uses a ring at a time; the kernel has IORING_FEAT_EXT_ARG (5.11), hence
 * also a single mapping for both rings and no lost completions; the SQ array is the identity.
 */
#ifndef KVS_URING_SHIM_H
#define KVS_URING_SHIM_H

#include <errno.h>
#include <linux/io_uring.h>
#include <linux/time_types.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Kernel ABI numbers that headers older than 6.1 lack; the running kernel decides at run time. */
#ifndef IORING_SETUP_SUBMIT_ALL
#define IORING_SETUP_SUBMIT_ALL (1U << 7)
#endif
#ifndef IORING_SETUP_COOP_TASKRUN
#define IORING_SETUP_COOP_TASKRUN (1U << 8)
#endif
#ifndef IORING_SETUP_SINGLE_ISSUER
#define IORING_SETUP_SINGLE_ISSUER (1U << 12)
#endif
#ifndef IORING_SETUP_DEFER_TASKRUN
#define IORING_SETUP_DEFER_TASKRUN (1U << 13)
#endif
#ifndef IORING_ENTER_REGISTERED_RING
#define IORING_ENTER_REGISTERED_RING (1U << 4)
#endif

enum { SHIM_REGISTER_RING_FDS = 20, SHIM_UNREGISTER_RING_FDS = 21 };

struct io_uring {
    int ring_fd;
    int enter_fd; /* ring_fd, or its index among the thread's registered rings */
    unsigned enter_flags;
    unsigned sqe_tail; /* handed out by get_sqe; published to the kernel by a flush */
    unsigned sq_mask, sq_entries, cq_mask;
    unsigned *sq_head, *sq_tail, *cq_head, *cq_tail;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
    char *rings;
    size_t rings_bytes, sqes_bytes;
};

static inline int shim_register(int fd, unsigned opcode, const void *arg, unsigned count)
{
    long result = syscall(__NR_io_uring_register, fd, opcode, arg, count);
    return result < 0 ? -errno : (int)result;
}

static inline int shim_enter(struct io_uring *ring, unsigned to_submit, unsigned wait_for,
                             unsigned flags, const void *arg, size_t arg_bytes)
{
    long result = syscall(__NR_io_uring_enter, ring->enter_fd, to_submit, wait_for,
                          flags | ring->enter_flags, arg, arg_bytes);
    return result < 0 ? -errno : (int)result;
}

static inline unsigned *shim_field(struct io_uring *ring, unsigned offset)
{
    return (unsigned *)(void *)(ring->rings + offset);
}

static inline int shim_map(struct io_uring *ring, const struct io_uring_params *params)
{
    size_t sq_bytes = params->sq_off.array + params->sq_entries * sizeof(unsigned);
    size_t cq_bytes = params->cq_off.cqes + params->cq_entries * sizeof(struct io_uring_cqe);
    ring->rings_bytes = sq_bytes > cq_bytes ? sq_bytes : cq_bytes;
    ring->sqes_bytes = params->sq_entries * sizeof(struct io_uring_sqe);
    void *rings = mmap(NULL, ring->rings_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                       ring->ring_fd, IORING_OFF_SQ_RING);
    if (rings == MAP_FAILED) {
        return -errno;
    }
    void *sqes = mmap(NULL, ring->sqes_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                      ring->ring_fd, IORING_OFF_SQES);
    if (sqes == MAP_FAILED) {
        int error = -errno;
        munmap(rings, ring->rings_bytes);
        return error;
    }
    ring->rings = rings;
    ring->sqes = sqes;
    ring->sq_head = shim_field(ring, params->sq_off.head);
    ring->sq_tail = shim_field(ring, params->sq_off.tail);
    ring->cq_head = shim_field(ring, params->cq_off.head);
    ring->cq_tail = shim_field(ring, params->cq_off.tail);
    ring->sq_mask = *shim_field(ring, params->sq_off.ring_mask);
    ring->cq_mask = *shim_field(ring, params->cq_off.ring_mask);
    ring->cqes = (struct io_uring_cqe *)(void *)(ring->rings + params->cq_off.cqes);
    unsigned *array = shim_field(ring, params->sq_off.array);
    for (unsigned i = 0; i < params->sq_entries; i++) {
        array[i] = i;
    }
    return 0;
}

static inline int io_uring_queue_init_params(unsigned entries, struct io_uring *ring,
                                             struct io_uring_params *params)
{
    memset(ring, 0, sizeof *ring);
    long fd = syscall(__NR_io_uring_setup, entries, params);
    if (fd < 0) {
        return -errno;
    }
    ring->ring_fd = (int)fd;
    ring->enter_fd = (int)fd;
    ring->sq_entries = params->sq_entries;
    /* Without it the rings are two mappings and a wait takes no timeout: too old for this shim. */
    int result = params->features & IORING_FEAT_EXT_ARG ? shim_map(ring, params) : -ENOSYS;
    if (result < 0) {
        close(ring->ring_fd);
    }
    return result;
}

static inline void io_uring_queue_exit(struct io_uring *ring)
{
    if (ring->enter_flags & IORING_ENTER_REGISTERED_RING) {
        struct io_uring_rsrc_update slot = {.offset = (unsigned)ring->enter_fd};
        shim_register(ring->ring_fd, SHIM_UNREGISTER_RING_FDS, &slot, 1);
    }
    munmap(ring->sqes, ring->sqes_bytes);
    munmap(ring->rings, ring->rings_bytes);
    close(ring->ring_fd);
}

static inline int io_uring_register_buffers(struct io_uring *ring, const struct iovec *buffers,
                                            unsigned count)
{
    return shim_register(ring->ring_fd, IORING_REGISTER_BUFFERS, buffers, count);
}

static inline int io_uring_register_ring_fd(struct io_uring *ring)
{
    struct io_uring_rsrc_update slot = {.offset = UINT32_MAX, .data = (unsigned)ring->ring_fd};
    int result = shim_register(ring->ring_fd, SHIM_REGISTER_RING_FDS, &slot, 1);
    if (result == 1) {
        ring->enter_fd = (int)slot.offset;
        ring->enter_flags |= IORING_ENTER_REGISTERED_RING;
    }
    return result;
}

/* SQEs that the kernel has not consumed yet. */
static inline unsigned io_uring_sq_ready(const struct io_uring *ring)
{
    return ring->sqe_tail - __atomic_load_n(ring->sq_head, __ATOMIC_ACQUIRE);
}

static inline struct io_uring_sqe *io_uring_get_sqe(struct io_uring *ring)
{
    if (io_uring_sq_ready(ring) >= ring->sq_entries) {
        return NULL;
    }
    return &ring->sqes[ring->sqe_tail++ & ring->sq_mask];
}

static inline void shim_prepare(struct io_uring_sqe *sqe, uint8_t opcode, int fd,
                                const void *address, unsigned bytes, uint64_t offset)
{
    memset(sqe, 0, sizeof *sqe);
    sqe->opcode = opcode;
    sqe->fd = fd;
    sqe->addr = (uintptr_t)address;
    sqe->len = bytes;
    sqe->off = offset;
}

static inline void io_uring_prep_read(struct io_uring_sqe *sqe, int fd, void *buffer,
                                      unsigned bytes, uint64_t offset)
{
    shim_prepare(sqe, IORING_OP_READ, fd, buffer, bytes, offset);
}

static inline void io_uring_prep_write(struct io_uring_sqe *sqe, int fd, const void *buffer,
                                       unsigned bytes, uint64_t offset)
{
    shim_prepare(sqe, IORING_OP_WRITE, fd, buffer, bytes, offset);
}

static inline void io_uring_prep_read_fixed(struct io_uring_sqe *sqe, int fd, void *buffer,
                                            unsigned bytes, uint64_t offset, int buffer_index)
{
    shim_prepare(sqe, IORING_OP_READ_FIXED, fd, buffer, bytes, offset);
    sqe->buf_index = (uint16_t)buffer_index;
}

static inline void io_uring_prep_write_fixed(struct io_uring_sqe *sqe, int fd, const void *buffer,
                                             unsigned bytes, uint64_t offset, int buffer_index)
{
    shim_prepare(sqe, IORING_OP_WRITE_FIXED, fd, buffer, bytes, offset);
    sqe->buf_index = (uint16_t)buffer_index;
}

static inline void io_uring_prep_poll_add(struct io_uring_sqe *sqe, int fd, unsigned poll_mask)
{
    shim_prepare(sqe, IORING_OP_POLL_ADD, fd, NULL, 0, 0);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    poll_mask = poll_mask << 16 | poll_mask >> 16; /* the kernel keeps the halves word-swapped */
#endif
    sqe->poll32_events = poll_mask;
}

static inline void io_uring_sqe_set_data64(struct io_uring_sqe *sqe, uint64_t data)
{
    sqe->user_data = data;
}

static inline uint64_t io_uring_cqe_get_data64(const struct io_uring_cqe *cqe)
{
    return cqe->user_data;
}

/* Publishes what get_sqe handed out; returns how much there is for the kernel to take. */
static inline unsigned shim_flush(struct io_uring *ring)
{
    __atomic_store_n(ring->sq_tail, ring->sqe_tail, __ATOMIC_RELEASE);
    return io_uring_sq_ready(ring);
}

static inline int io_uring_submit(struct io_uring *ring)
{
    unsigned to_submit = shim_flush(ring);
    return to_submit == 0 ? 0 : shim_enter(ring, to_submit, 0, 0, NULL, 0);
}

static inline int io_uring_submit_and_get_events(struct io_uring *ring)
{
    return shim_enter(ring, shim_flush(ring), 0, IORING_ENTER_GETEVENTS, NULL, 0);
}

static inline unsigned io_uring_peek_batch_cqe(struct io_uring *ring, struct io_uring_cqe **cqes,
                                               unsigned max)
{
    unsigned head = *ring->cq_head; /* only this thread moves it */
    unsigned ready = __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE) - head;
    unsigned count = ready < max ? ready : max;
    for (unsigned i = 0; i < count; i++) {
        cqes[i] = &ring->cqes[(head + i) & ring->cq_mask];
    }
    return count;
}

static inline void io_uring_cq_advance(struct io_uring *ring, unsigned count)
{
    __atomic_store_n(ring->cq_head, *ring->cq_head + count, __ATOMIC_RELEASE);
}

/* timeout NULL: for ever. -ETIME only when nothing was submitted either. */
static inline int io_uring_submit_and_wait_timeout(struct io_uring *ring, struct io_uring_cqe **cqe,
                                                   unsigned wait_for,
                                                   struct __kernel_timespec *timeout,
                                                   sigset_t *signals)
{
    struct io_uring_getevents_arg arg = {
        .sigmask = (uintptr_t)signals, .sigmask_sz = _NSIG / 8, .ts = (uintptr_t)timeout};
    int result = shim_enter(ring, shim_flush(ring), wait_for,
                            IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, &arg, sizeof arg);
    if (io_uring_peek_batch_cqe(ring, cqe, 1) == 0) {
        *cqe = NULL;
    }
    return result;
}

#endif
