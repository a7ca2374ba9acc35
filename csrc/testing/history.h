/*
 * history.h: a record of every change that a store makes on its disk, both waists in one order:
 * what a simulated power cut chooses from. The failing file system and the fault engine write it
 * when they are given one (kvs_fs_fault_set_history, kvs_io_fault_set_history).
 *
 * Recorded are calls that changed something, each when it has returned: failed ones, reads and
 * closes are not. Changes are made one at a time, so their place in it is the order they really
 * had, and a sync stands behind all that it covers. A write of cells is recorded when it is handed
 * back: until then it is as good as not made.
 *
 * The file: for each change a kvs_history_entry, then path, target and data without terminators.
 * An entry is written at once, so the length of the file tells a test what was done so far.
 */
#ifndef KVS_HISTORY_H
#define KVS_HISTORY_H

#include <stdint.h>

struct kvs_history;

enum { KVS_HISTORY_CELLS = 1000 }; /* a write through io.h */

/* A change, as its maker knows it. */
struct kvs_change {
    uint32_t call; /* enum kvs_fs_call, or KVS_HISTORY_CELLS */
    int fd;        /* of the file, -1: none */
    const char *path;   /* NULL: none */
    const char *target; /* of a rename; NULL: none */
    const void *data;
    uint32_t data_bytes;
    uint64_t offset; /* of data; or the length that was allocated */
    int64_t atime_s, mtime_s;
};

struct kvs_history_entry {
    uint32_t call, path_bytes, target_bytes, data_bytes;
    uint64_t inode; /* 0: none. Numbers are used again once their file is gone. */
    uint64_t offset;
    int64_t atime_s, mtime_s;
};

int kvs_history_open(const char *path, struct kvs_history **out); /* a new or emptied file */
void kvs_history_close(struct kvs_history *history);

/* Between them the change is made; NULL records nothing. `result` below 0: nothing was changed. */
void kvs_history_begin(struct kvs_history *history);
void kvs_history_end(struct kvs_history *history, int64_t result, const struct kvs_change *change);

#endif
