/*
 * breaker.h: a device in trouble: the state of a root's circuit breaker, what opens it (breaker.c),
 * what closes it again (recover.c), and the file system that times and refuses calls (fs_watch.c).
 */
#ifndef KVS_BREAKER_H
#define KVS_BREAKER_H

#include <stdint.h>

#include "kvs.h"

struct kvs_fs;
struct kvs_root;
struct kvs_transfer;

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

int kvs_device_error(int error); /* it speaks of the device */
int kvs_busy_error(int error);   /* it speaks of this machine's or disk's fullness */
/* Under way for io_timeout. *rounds: how many rounds of the keeper saw that. */
int kvs_overdue(const struct kvs_store *store, int64_t began_ns, int64_t now_ns, uint8_t *rounds);
int64_t kvs_slow_ns(const struct kvs_store *store); /* an operation longer than this is slow */
void kvs_breaker_note_locked(struct kvs_root *root, int error, int64_t took_ns);
void kvs_breaker_note_call_locked(struct kvs_root *root, int error);
void kvs_breaker_trip_locked(struct kvs_root *root, const char *why);
void kvs_breaker_round_locked(struct kvs_root *root, int64_t now_ns);
void kvs_breaker_close_locked(struct kvs_root *root);
void kvs_breaker_stay_open_locked(struct kvs_root *root, const char *why);
void kvs_probe_job(struct kvs_root *root, void *argument);
void kvs_probe_read_done(struct kvs_root *root, struct kvs_transfer *transfer); /* I/O thread */
/* Takes root down when its path no longer leads to the directory in use. */
void kvs_path_look(struct kvs_root *root);
void kvs_flushes_refuse_locked(struct kvs_store *store, int error); /* flush.c: all end */
void kvs_flushes_round_locked(struct kvs_store *store, int64_t now_ns); /* too late: all end */
int kvs_fs_watch_open(struct kvs_store *store, struct kvs_fs **out);
void kvs_fs_watch_close(struct kvs_fs *fs);
void kvs_event_note_locked(struct kvs_root *root, const char *what, const char *why); /* info.c */

#endif
