/*
 * io.h: the data waist. Every byte of a cell that moves between memory and disk goes through here.
 *
 * Four calls and a wake-up fd: submit, reap, close, register_memory. Engines behind it: io_uring
 * (io_uring.c), Linux AIO (io_aio.c), threads over pread/pwrite (io_threads.c), and the fault
 * engine for tests (testing/io_fault.c). An engine knows nothing of blocks, extents or loads.
 *
 * The contract, once for all engines:
 *   1. One thread (the root's I/O thread) calls submit and reap; wake_fd may be written (an
 *      eventfd, 8 bytes) by any thread and makes a sleeping reap return early with 0 operations.
 *   2. From submit until reap hands it back, an operation and its buffer belong to the engine,
 *      whatever happens to whoever waits for it: a read in flight cannot be cancelled, the kernel
 *      still writes the buffer.
 *   3. submit takes operations in order and returns how many it took (fewer when `depth` are in
 *      flight, 0 when full). It never blocks on the device for longer than the kernel makes it;
 *      the caller caps bytes in flight.
 *   4. result is the number of bytes moved or a negative errno. A short result is reported as it
 *      is; only kvs_io_status() judges it.
 *   5. close may be called only with nothing in flight.
 */
#ifndef KVS_IO_H
#define KVS_IO_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

enum kvs_io_kind { KVS_IO_READ, KVS_IO_WRITE };

struct kvs_io_op {
    enum kvs_io_kind kind;
    int fd;
    void *buffer;
    uint64_t offset; /* in the file, bytes */
    uint32_t bytes;  /* asked for, > 0, at most KVS_IO_MAX_BYTES */
    int32_t result;  /* set by the engine */
    void *owner;     /* the caller's, untouched */
};

enum { KVS_IO_MAX_BYTES = 1 << 26 };

struct kvs_io_engine;

struct kvs_io_engine_calls {
    /* Returns how many of ops[0..count) were taken, or a negative errno (nothing taken). */
    int (*submit)(struct kvs_io_engine *engine, struct kvs_io_op *const *ops, unsigned count);
    /* Fills done[0..max) with finished operations; waits up to timeout_ns (0: do not wait, < 0: for
     * ever) for the first one. Their number, 0 on time-out or wake-up, or a negative errno. */
    int (*reap)(struct kvs_io_engine *engine, struct kvs_io_op **done, unsigned max,
                int64_t timeout_ns);
    /* Tells the engine of long-lived memory that most buffers lie in, so that it can pin it once.
     * Called at most once, before the first submit. 0, or a negative errno: slower, not broken. */
    int (*register_memory)(struct kvs_io_engine *engine, void *base, uint64_t bytes);
    void (*close)(struct kvs_io_engine *engine);
};

struct kvs_io_engine {
    const struct kvs_io_engine_calls *calls;
    const char *name; /* "io_uring", "aio", "threads", "fault" */
    int wake_fd;      /* eventfd, owned by the engine */
    unsigned depth;   /* most operations in flight */
    int registered;   /* 1 when register_memory worked (fixed-buffer reads) */
};

/* Engines are made by probing: each returns 0 and *out, or a negative errno that says why not. */
int kvs_io_uring_open(unsigned depth, struct kvs_io_engine **out);
int kvs_io_aio_open(unsigned depth, struct kvs_io_engine **out);
int kvs_io_threads_open(unsigned depth, unsigned thread_count, struct kvs_io_engine **out);

/* "liburing static", "liburing shared" or "shim": how this build reaches io_uring. */
const char *kvs_io_uring_kind(void);

/* The one place where a completion is judged: 0 when whole, -errno as the engine said, -ENODATA at
 * end of file (nothing moved), -EAGAIN when part of it moved and the rest may be tried again. */
static inline int kvs_io_status(const struct kvs_io_op *op)
{
    if (op->result < 0) {
        return op->result;
    }
    if ((uint32_t)op->result == op->bytes) {
        return 0;
    }
    return op->result == 0 ? -ENODATA : -EAGAIN;
}

#endif
