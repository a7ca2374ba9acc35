/*
 * breaker.h: the state of a root's circuit breaker, and the probe that closes it again.
 *
 * Known to types.h; what is done with it is in breaker.c (opening) and recover.c (closing).
 */
#ifndef KVS_BREAKER_H
#define KVS_BREAKER_H

#include <stdint.h>

#include "kvs.h"

enum kvs_breaker_state { KVS_BREAKER_CLOSED, KVS_BREAKER_OPEN, KVS_BREAKER_PROBING };

/* Guarded by the store's lock. */
struct kvs_breaker {
    enum kvs_breaker_state state;
    uint64_t trips;
    int64_t since_ns;   /* when it opened, or was last closed */
    int64_t probe_ns;   /* OPEN: when the next probe is due */
    int64_t wait_ns;    /* between probes; doubles */
    uint64_t successes; /* operations that went well since open */
    uint32_t errors;    /* of the device, since the last operation that went well */
    int64_t window_ns;  /* start of the window in which slow operations are counted */
    uint32_t window_ops, window_slow;
    int64_t looked_ns; /* when the root's path was last compared with the directory in use */
    char why[KVS_TROUBLE_BYTES];
};

/* What happened to roots, for a log. */
enum { KVS_EVENTS = 16 };
struct kvs_event {
    char text[KVS_TROUBLE_BYTES + 1152]; /* a path and why */
};

#endif
