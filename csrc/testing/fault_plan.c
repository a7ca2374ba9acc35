/*
 * fault_plan.c: see fault_plan.h.
 */
#define _GNU_SOURCE 1 /* posix_memalign, O_CLOEXEC */
#include "fault_plan.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fires(struct kvs_fault_counter *counter, enum kvs_io_kind io_kind)
{
    const struct kvs_fault *fault = &counter->fault;
    if (fault->io_kind != -1 && fault->io_kind != (int)io_kind) {
        return 0;
    }
    if (counter->seen++ < fault->skip || (fault->count > 0 && counter->fired == fault->count)) {
        return 0;
    }
    counter->fired++;
    return 1;
}

struct kvs_fault_fate kvs_fault_decide(struct kvs_fault_plan *plan, enum kvs_io_kind io_kind)
{
    struct kvs_fault_fate fate = {.move_at_most = UINT64_MAX, .flip_bit = UINT64_MAX};
    for (unsigned i = 0; i < plan->count; i++) {
        const struct kvs_fault *fault = &plan->counters[i].fault;
        if (!fires(&plan->counters[i], io_kind)) {
            continue;
        }
        switch (fault->kind) {
        case KVS_FAULT_ERRNO:
            fate.error = fate.error != 0 ? fate.error : (int)fault->value;
            break;
        case KVS_FAULT_SHORT:
            fate.move_at_most = fault->value < fate.move_at_most ? fault->value : fate.move_at_most;
            break;
        case KVS_FAULT_DELAY:
            fate.delay_ns += (int64_t)fault->value;
            break;
        case KVS_FAULT_BIT_FLIP:
            fate.flip_bit = fault->value;
            break;
        case KVS_FAULT_STALL:
            fate.stalls = 1;
            break;
        case KVS_FAULT_CUT:
            plan->is_cut = 1;
            break;
        }
    }
    if (plan->is_cut) {
        fate.error = EIO;
    }
    return fate;
}

static ssize_t move_through(int fd, const struct kvs_io_op *op, void *buffer, size_t bytes)
{
    ssize_t moved;
    do {
        moved = op->kind == KVS_IO_READ ? pread(fd, buffer, bytes, (off_t)op->offset)
                                        : pwrite(fd, buffer, bytes, (off_t)op->offset);
    } while (moved < 0 && errno == EINTR);
    return moved < 0 ? -errno : moved;
}

/* A shortened transfer has any length, which O_DIRECT refuses: it takes a buffered descriptor. */
static ssize_t move(const struct kvs_io_op *op, void *buffer, size_t bytes)
{
    if (bytes == op->bytes) {
        return move_through(op->fd, op, buffer, bytes);
    }
    int flags = fcntl(op->fd, F_GETFL);
    if (flags < 0) {
        return -errno;
    }
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", op->fd);
    int fd = open(path, (flags & O_ACCMODE) | O_CLOEXEC);
    if (fd < 0) {
        return -errno;
    }
    ssize_t moved = move_through(fd, op, buffer, bytes);
    close(fd);
    return moved;
}

static void flip(void *bytes, uint64_t bit)
{
    ((unsigned char *)bytes)[bit / 8] ^= (unsigned char)(1u << (bit % 8));
}

/* The data is damaged on its way: the caller's buffer stays as it is. */
static ssize_t write_flipped(const struct kvs_io_op *op, size_t bytes, uint64_t bit)
{
    void *copy;
    if (posix_memalign(&copy, 4096, op->bytes) != 0) {
        return -ENOMEM;
    }
    memcpy(copy, op->buffer, op->bytes);
    flip(copy, bit);
    ssize_t moved = move(op, copy, bytes);
    free(copy);
    return moved;
}

int32_t kvs_fault_carry_out(const struct kvs_io_op *op, const struct kvs_fault_fate *fate)
{
    if (fate->error != 0) {
        return -fate->error;
    }
    size_t bytes = fate->move_at_most < op->bytes ? (size_t)fate->move_at_most : op->bytes;
    uint64_t flip_byte = fate->flip_bit / 8;
    if (op->kind == KVS_IO_WRITE && flip_byte < bytes) {
        return (int32_t)write_flipped(op, bytes, fate->flip_bit);
    }
    ssize_t moved = move(op, op->buffer, bytes);
    if (op->kind == KVS_IO_READ && moved > 0 && flip_byte < (uint64_t)moved) {
        flip(op->buffer, fate->flip_bit);
    }
    return (int32_t)moved;
}
