/*
 * io_fault.h: the fault engine and its virtual clock. One more implementation of io.h, for tests.
 *
 * The engine does real pread/pwrite on the caller's fds when an operation *completes*, but the
 * moment of completion is decided by a virtual device: `bytes_per_second` serial bandwidth plus
 * `latency_ns` per operation, on the virtual clock. Nothing completes until a test moves the clock
 * (or `auto_advance` lets a sleeping reap jump to the next completion by itself).
 *
 * Faults come from a plan (an explicit list, in order of match): errno, short result, extra delay,
 * one flipped bit, never completes, and "cut at write n": from then on no write reaches the file
 * and every operation fails with -EIO. Every operation is recorded in a log that tests read.
 *
 * Thread-safe: tests call it from their own thread while an I/O thread sits in reap.
 */
#ifndef KVS_IO_FAULT_H
#define KVS_IO_FAULT_H

#include "clock.h"
#include "history.h"
#include "io.h"

struct kvs_virtual_clock; /* starts at boot_ns = 1 s, wall_s as given */

int kvs_virtual_clock_open(int64_t wall_s, struct kvs_virtual_clock **out);
void kvs_virtual_clock_close(struct kvs_virtual_clock *clock);
struct kvs_clock *kvs_virtual_clock_face(struct kvs_virtual_clock *clock);
int64_t kvs_virtual_clock_now_ns(struct kvs_virtual_clock *clock);
/* Moves time forward (boot and wall together) and wakes engines that wait on it. */
void kvs_virtual_clock_advance(struct kvs_virtual_clock *clock, int64_t ns);
/* Steps the wall clock alone, as an operator or NTP would. */
void kvs_virtual_clock_step_wall(struct kvs_virtual_clock *clock, int64_t seconds);

enum kvs_fault_kind {
    KVS_FAULT_ERRNO,    /* value: positive errno */
    KVS_FAULT_SHORT,    /* value: bytes that do move */
    KVS_FAULT_DELAY,    /* value: extra nanoseconds */
    KVS_FAULT_BIT_FLIP, /* value: bit number within the operation's bytes, flipped in the buffer
                           of a read, or in what reaches the file for a write */
    KVS_FAULT_STALL,    /* completes only when kvs_io_fault_release_stalled is called */
    KVS_FAULT_CUT       /* this and all later writes are lost; every later operation is -EIO */
};

struct kvs_fault {
    enum kvs_fault_kind kind;
    int io_kind;      /* KVS_IO_READ, KVS_IO_WRITE, or -1 for both */
    uint64_t skip;    /* matching operations let through before it fires */
    uint64_t count;   /* how often it fires, 0: for ever */
    uint64_t value;
};

struct kvs_fault_record {
    uint64_t sequence; /* order of submission, from 0 */
    int32_t io_kind;
    int32_t fd;
    uint64_t inode;
    uint64_t offset;
    uint64_t bytes;
    int64_t submitted_ns; /* virtual */
    int64_t completed_ns; /* virtual; -1 while in flight */
    int64_t result;
    uint64_t buffer; /* address */
};

struct kvs_fault_device {
    uint64_t bytes_per_second; /* 0: no time passes */
    int64_t latency_ns;
    unsigned depth;
    int auto_advance; /* 1: reap advances the clock to the next completion by itself */
};

int kvs_io_fault_open(struct kvs_virtual_clock *clock, const struct kvs_fault_device *device,
                      struct kvs_io_engine **out);
void kvs_io_fault_add(struct kvs_io_engine *engine, const struct kvs_fault *fault);
void kvs_io_fault_clear(struct kvs_io_engine *engine);
void kvs_io_fault_release_stalled(struct kvs_io_engine *engine);
/* Copies up to max records from `from` on; returns how many there are in all. */
uint64_t kvs_io_fault_log(struct kvs_io_engine *engine, uint64_t from, struct kvs_fault_record *out,
                          uint64_t max);
/* Virtual time of the earliest completion not yet due, or -1. */
int64_t kvs_io_fault_next_ns(struct kvs_io_engine *engine);
/* Waits (real time, at most timeout_ms) until the I/O thread sleeps in reap with nothing due and
 * no wake-up pending. 0, or -ETIMEDOUT. */
int kvs_io_fault_settle(struct kvs_io_engine *engine, int timeout_ms);
/* Before the first submit; the caller closes it, after the engine. Writes are recorded as the core
 * meant them, whatever a fault made of them. */
void kvs_io_fault_set_history(struct kvs_io_engine *engine, struct kvs_history *history);

#endif
