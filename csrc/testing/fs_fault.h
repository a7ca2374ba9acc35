/*
 * fs_fault.h: a file system that fails on request. Wraps another kvs_fs; every call is counted,
 * then passed on unless a fault of the plan matches. The plan is walked in the order it was made:
 * each fault of this call that still has calls to skip skips one, the first that has none fires. A
 * fault that has fired `count` times is inert.
 *
 * A dropped call touches nothing: stat and space give zeros, a read leaves the buffer as it was, a
 * list is empty, a close leaks the descriptor. A stalled call keeps its thread, as a disk does that
 * does not answer. Calls that make a descriptor cannot be dropped.
 * unlock is passed on, neither counted nor failed. Thread-safe.
 */
#ifndef KVS_FS_FAULT_H
#define KVS_FS_FAULT_H

#include "fs.h"
#include "history.h"

enum kvs_fs_call {
    KVS_FS_OPEN_ROOT,
    KVS_FS_MAKE_DIRECTORY,
    KVS_FS_OPEN_READ,
    KVS_FS_OPEN_TEMP,
    KVS_FS_ALLOCATE,
    KVS_FS_LINK,
    KVS_FS_RENAME,
    KVS_FS_UNLINK,
    KVS_FS_SET_TIMES,
    KVS_FS_STAT_FD,
    KVS_FS_STAT_PATH,
    KVS_FS_LIST,
    KVS_FS_SPACE,
    KVS_FS_SYNC,
    KVS_FS_SYNC_FILE,
    KVS_FS_READ_AT,
    KVS_FS_WRITE_AT,
    KVS_FS_CLOSE,
    KVS_FS_LOCK,
    KVS_FS_DIRECT_UNIT,
    KVS_FS_REPLACE,
    KVS_FS_REMOVE_DIRECTORY,
    KVS_FS_CALL_COUNT
};

enum { KVS_FS_FAULT_PLAN = 64 };
enum { KVS_FS_FAULT_KILL = 4096 }; /* as `error`: SIGKILL ends the process before the call */

struct kvs_fs_fault {
    enum kvs_fs_call call;
    int error;      /* positive errno; 0: the call is dropped but reports success; or below */
    uint64_t skip;  /* matching calls let through before it fires */
    uint64_t count; /* how often it fires, 0: for ever */
    int stalls;     /* 1: it is passed on only after kvs_fs_fault_release_stalled */
};

int kvs_fs_fault_open(struct kvs_fs *inner, struct kvs_fs **out);
void kvs_fs_fault_close(struct kvs_fs *fs); /* not the inner one */
/* At most KVS_FS_FAULT_PLAN faults at a time. */
void kvs_fs_fault_add(struct kvs_fs *fs, const struct kvs_fs_fault *fault);
void kvs_fs_fault_clear(struct kvs_fs *fs);
/* Lets calls that stall go on; those that come later stall again. */
void kvs_fs_fault_release_stalled(struct kvs_fs *fs);
/* How many calls stall just now. */
unsigned kvs_fs_fault_stalled(struct kvs_fs *fs);
uint64_t kvs_fs_fault_calls(struct kvs_fs *fs, enum kvs_fs_call call);
/* Pretends a size and free space, so that budget and reserve can be tested. total_bytes 0: the real
 * ones; else free_bytes may be 0, a full disk. */
void kvs_fs_fault_set_space(struct kvs_fs *fs, uint64_t total_bytes, uint64_t free_bytes);
/* Before the first call; the caller closes it, after the last one. */
void kvs_fs_fault_set_history(struct kvs_fs *fs, struct kvs_history *history);
/* Pretends to be poorer: files are not direct, as after EINVAL for O_DIRECT; last use is lost. */
enum kvs_fs_poor {
    KVS_FS_POOR_DIRECT = 1,
    KVS_FS_POOR_ATIME_ZERO = 2, /* stat gives atime 0 */
    KVS_FS_POOR_ATIME_MTIME = 4 /* stat gives mtime twice */
};
void kvs_fs_fault_set_poor(struct kvs_fs *fs, uint32_t poor); /* bits of enum kvs_fs_poor */
/* Pretends that direct transfers need multiples of `bytes`; 0: the real figure. */
void kvs_fs_fault_set_direct_unit(struct kvs_fs *fs, int bytes);

#endif
