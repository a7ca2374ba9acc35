# The binding's view of csrc/testing/: virtual clock, fault and null engines, fault file system,
# raw I/O.

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from kvstore._kvs cimport (
    kvs_clock, kvs_engine_choice, kvs_fs, kvs_io_engine, kvs_io_kind, kvs_latency
)

cdef extern from "testing/history.h" nogil:
    struct kvs_history:
        pass

    int kvs_history_open(const char *path, kvs_history **out)
    void kvs_history_close(kvs_history *history)

cdef extern from "testing/io_fault.h" nogil:
    struct kvs_virtual_clock:
        pass

    int kvs_virtual_clock_open(int64_t wall_s, kvs_virtual_clock **out)
    void kvs_virtual_clock_close(kvs_virtual_clock *clock)
    kvs_clock *kvs_virtual_clock_face(kvs_virtual_clock *clock)
    int64_t kvs_virtual_clock_now_ns(kvs_virtual_clock *clock)
    void kvs_virtual_clock_advance(kvs_virtual_clock *clock, int64_t ns)
    void kvs_virtual_clock_step_wall(kvs_virtual_clock *clock, int64_t seconds)

    enum kvs_fault_kind:
        KVS_FAULT_ERRNO, KVS_FAULT_SHORT, KVS_FAULT_DELAY, KVS_FAULT_BIT_FLIP, KVS_FAULT_STALL
        KVS_FAULT_CUT

    struct kvs_fault:
        kvs_fault_kind kind
        int io_kind
        uint64_t skip
        uint64_t count
        uint64_t value

    struct kvs_fault_record:
        uint64_t sequence
        int32_t io_kind
        int32_t fd
        uint64_t inode
        uint64_t offset
        uint64_t bytes
        int64_t submitted_ns
        int64_t completed_ns
        int64_t result
        uint64_t buffer

    struct kvs_fault_device:
        uint64_t bytes_per_second
        int64_t latency_ns
        unsigned int depth
        int auto_advance

    int kvs_io_fault_open(kvs_virtual_clock *clock, const kvs_fault_device *device,
                          kvs_io_engine **out)
    void kvs_io_fault_add(kvs_io_engine *engine, const kvs_fault *fault)
    void kvs_io_fault_clear(kvs_io_engine *engine)
    void kvs_io_fault_release_stalled(kvs_io_engine *engine)
    uint64_t kvs_io_fault_log(kvs_io_engine *engine, uint64_t start, kvs_fault_record *out,
                              uint64_t max)
    int64_t kvs_io_fault_next_ns(kvs_io_engine *engine)
    int kvs_io_fault_settle(kvs_io_engine *engine, int timeout_ms)
    void kvs_io_fault_set_history(kvs_io_engine *engine, kvs_history *history)

cdef extern from "testing/fs_fault.h" nogil:
    enum kvs_fs_call:
        KVS_FS_CALL_COUNT

    struct kvs_fs_fault:
        kvs_fs_call call
        int error
        uint64_t skip
        uint64_t count
        int stalls

    int kvs_fs_fault_open(kvs_fs *inner, kvs_fs **out)
    void kvs_fs_fault_close(kvs_fs *fs)
    void kvs_fs_fault_add(kvs_fs *fs, const kvs_fs_fault *fault)
    void kvs_fs_fault_clear(kvs_fs *fs)
    void kvs_fs_fault_release_stalled(kvs_fs *fs)
    unsigned int kvs_fs_fault_stalled(kvs_fs *fs)
    uint64_t kvs_fs_fault_calls(kvs_fs *fs, kvs_fs_call call)
    void kvs_fs_fault_set_space(kvs_fs *fs, uint64_t total_bytes, uint64_t free_bytes)
    void kvs_fs_fault_set_history(kvs_fs *fs, kvs_history *history)
    void kvs_fs_fault_set_poor(kvs_fs *fs, uint32_t poor)
    void kvs_fs_fault_set_direct_unit(kvs_fs *fs, int bytes)

cdef extern from "testing/io_null.h" nogil:
    int kvs_io_null_open(unsigned int depth, kvs_io_engine **out)

cdef extern from "testing/raw_io.h" nogil:
    struct kvs_raw_io:
        pass

    struct kvs_raw_step:
        uint64_t offset
        uint32_t file
        uint32_t bytes

    struct kvs_raw_plan:
        const char *const *paths
        const kvs_raw_step *steps
        uint32_t path_count
        uint32_t step_count
        kvs_io_kind kind
        uint32_t depth_max
        uint64_t memory_bytes
        kvs_engine_choice engine

    struct kvs_raw_result:
        uint64_t bytes
        uint64_t steps
        int64_t ns

    int kvs_raw_open(const kvs_raw_plan *plan, kvs_raw_io **out)
    int kvs_raw_run(kvs_raw_io *raw, uint32_t depth, int64_t duration_ns, uint64_t steps_max,
                    kvs_raw_result *out)
    const char *kvs_raw_engine(const kvs_raw_io *raw)
    int kvs_raw_registered(const kvs_raw_io *raw)
    double kvs_raw_huge_coverage(const kvs_raw_io *raw)
    const kvs_latency *kvs_raw_latency(const kvs_raw_io *raw)
    void kvs_raw_close(kvs_raw_io *raw)
