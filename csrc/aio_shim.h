/*
 * aio_shim.h: the four system calls of Linux AIO that io_aio.c needs, in libaio's place: same names
 * and meaning, results are counts or negative errnos. Needs kernel headers only.
 */
#ifndef KVS_AIO_SHIM_H
#define KVS_AIO_SHIM_H

#include <errno.h>
#include <linux/aio_abi.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline int aio_shim_result(long result)
{
    return result < 0 ? -errno : (int)result;
}

static inline int io_setup(unsigned requests, aio_context_t *context)
{
    return aio_shim_result(syscall(__NR_io_setup, (long)requests, context));
}

static inline int io_submit(aio_context_t context, unsigned count, struct iocb **requests)
{
    return aio_shim_result(syscall(__NR_io_submit, context, (long)count, requests));
}

/* timeout NULL: for ever. */
static inline int io_getevents(aio_context_t context, unsigned min, unsigned max,
                               struct io_event *events, struct timespec *timeout)
{
    return aio_shim_result(
        syscall(__NR_io_getevents, context, (long)min, (long)max, events, timeout));
}

/* Waits for what is in flight. */
static inline int io_destroy(aio_context_t context)
{
    return aio_shim_result(syscall(__NR_io_destroy, context));
}

#endif
