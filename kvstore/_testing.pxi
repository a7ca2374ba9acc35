"""The faces of csrc/testing, for testing/injection.py. Included by _core.pyx: its rules hold."""


cdef class VirtualClock(Handle):
    cdef kvs_virtual_clock *handle

    def __cinit__(self, int64_t wall_s):
        check(kvs_virtual_clock_open(wall_s, &self.handle), "opening a clock")

    def __dealloc__(self):
        if self.handle is not NULL and self.mine():
            kvs_virtual_clock_close(self.handle)

    def now_ns(self):
        return kvs_virtual_clock_now_ns(self.handle)

    def advance(self, int64_t ns):
        with nogil:
            kvs_virtual_clock_advance(self.handle, ns)

    def step_wall(self, int64_t seconds):
        kvs_virtual_clock_step_wall(self.handle, seconds)


cdef class History:
    cdef kvs_history *handle

    def __cinit__(self, bytes path not None):
        check(kvs_history_open(PyBytes_AS_STRING(path), &self.handle), "opening a history")

    def __dealloc__(self):
        if self.handle is not NULL:
            kvs_history_close(self.handle)


cdef class InjectedEngine(Handle):
    """Belongs to the store it was given to, and ends with it; by itself when there was none."""

    cdef kvs_io_engine *handle

    def __dealloc__(self):
        self.close_handle()

    cdef int close_handle(self) except -1:
        """A store that took it refers to it for as long as it runs, and took the handle then."""
        if self.handle is not NULL and self.mine():
            self.handle.calls.close(self.handle)
        self.handle = NULL
        return 0

    cdef kvs_io_engine *open_handle(self) except NULL:
        if self.handle is NULL:
            raise ValueError("the store closed this engine")
        return self.handle


cdef class NullEngine(InjectedEngine):
    def __cinit__(self, unsigned int depth):
        check(kvs_io_null_open(depth, &self.handle), "opening a null engine")


@cython.no_gc_clear  # its clock and history must not go before it
cdef class FaultEngine(InjectedEngine):
    cdef VirtualClock clock
    cdef History history

    def __cinit__(self, VirtualClock clock not None, uint64_t bytes_per_second,
                  int64_t latency_ns, unsigned int depth, bint auto_advance, History history):
        cdef kvs_fault_device device
        device.bytes_per_second = bytes_per_second
        device.latency_ns = latency_ns
        device.depth = depth
        device.auto_advance = auto_advance
        check(kvs_io_fault_open(clock.handle, &device, &self.handle), "opening a fault engine")
        self.clock = clock
        self.history = history
        kvs_io_fault_set_history(self.handle, NULL if history is None else history.handle)

    def __dealloc__(self):
        self.close_handle()  # while its clock is there: the base comes after it is gone

    def add(self, int kind, int io_kind, uint64_t skip, uint64_t count, uint64_t value):
        cdef kvs_fault fault
        fault.kind = <kvs_fault_kind>kind
        fault.io_kind = io_kind
        fault.skip = skip
        fault.count = count
        fault.value = value
        kvs_io_fault_add(self.open_handle(), &fault)

    def clear(self):
        kvs_io_fault_clear(self.open_handle())

    def release_stalled(self):
        kvs_io_fault_release_stalled(self.open_handle())

    def log(self, uint64_t start):
        """Records from number `start` on, in order of submission."""
        cdef kvs_fault_record some[LOG_MAX]
        cdef uint64_t at = start
        cdef uint64_t total = start + 1
        cdef uint64_t i
        records = []
        while at < total:
            total = kvs_io_fault_log(self.open_handle(), at, some, LOG_MAX)
            for i in range(min(<uint64_t>LOG_MAX, total - at) if total > at else 0):
                records.append(some[i])
            at += LOG_MAX
        return records

    def next_ns(self):
        return kvs_io_fault_next_ns(self.open_handle())

    def settle(self, int timeout_ms):
        cdef int code
        cdef kvs_io_engine *handle = self.open_handle()
        with nogil:
            code = kvs_io_fault_settle(handle, timeout_ms)
        check(code, "settling")


@cython.no_gc_clear  # its history must not go before it
cdef class FaultFiles:
    cdef kvs_fs *inner
    cdef kvs_fs *handle
    cdef History history

    def __cinit__(self, History history):
        check(kvs_fs_posix_open(&self.inner), "opening the file system")
        check(kvs_fs_fault_open(self.inner, &self.handle), "opening the fault file system")
        self.history = history
        kvs_fs_fault_set_history(self.handle, NULL if history is None else history.handle)

    def __dealloc__(self):
        if self.handle is not NULL:
            kvs_fs_fault_close(self.handle)
        if self.inner is not NULL:
            kvs_fs_posix_close(self.inner)

    def add(self, int call, int error, uint64_t skip, uint64_t count, bint stalls):
        cdef kvs_fs_fault fault
        fault.stalls = stalls
        fault.call = <kvs_fs_call>call
        fault.error = error
        fault.skip = skip
        fault.count = count
        kvs_fs_fault_add(self.handle, &fault)

    def clear(self):
        kvs_fs_fault_clear(self.handle)

    def release_stalled(self):
        kvs_fs_fault_release_stalled(self.handle)

    def stalled(self):
        return kvs_fs_fault_stalled(self.handle)

    def calls(self, int call):
        return kvs_fs_fault_calls(self.handle, <kvs_fs_call>call)

    def set_space(self, uint64_t total_bytes, uint64_t free_bytes):
        kvs_fs_fault_set_space(self.handle, total_bytes, free_bytes)

    def set_poor(self, uint32_t poor):
        kvs_fs_fault_set_poor(self.handle, poor)

    def set_direct_unit(self, int unit_bytes):
        kvs_fs_fault_set_direct_unit(self.handle, unit_bytes)


cdef class RawIo:
    """Raw reads or writes without a store; used by the thread that made it."""

    cdef kvs_raw_io *handle

    def __cinit__(self, list paths not None, bytes steps not None, bint writes,
                  uint32_t depth_max, uint64_t memory_bytes, str engine):
        """steps: struct kvs_raw_step, packed."""
        cdef kvs_raw_plan plan
        cdef const char **array = <const char **>calloc(len(paths) + 1, sizeof(char *))
        cdef bytes path
        cdef int code
        if array is NULL:
            raise MemoryError()
        try:
            plan.engine = ENGINES[engine]
            for i, path in enumerate(paths):
                array[i] = PyBytes_AS_STRING(path)  # owned by `paths`
            plan.paths = array
            plan.path_count = <uint32_t>len(paths)
            plan.steps = <const kvs_raw_step *>PyBytes_AS_STRING(steps)
            plan.step_count = <uint32_t>(len(steps) // sizeof(kvs_raw_step))
            plan.kind = KVS_IO_WRITE if writes else KVS_IO_READ
            plan.depth_max = depth_max
            plan.memory_bytes = memory_bytes
            with nogil:
                code = kvs_raw_open(&plan, &self.handle)
        finally:
            free(array)
        check(code, "opening files for raw I/O (O_DIRECT)")

    def __dealloc__(self):
        if self.handle is not NULL:
            kvs_raw_close(self.handle)

    def run(self, uint32_t depth, int64_t duration_ns, uint64_t steps_max):
        """{"bytes", "steps", "ns"} of a run with `depth` operations in flight."""
        cdef kvs_raw_result result
        cdef int code
        with nogil:
            code = kvs_raw_run(self.handle, depth, duration_ns, steps_max, &result)
        check(code, "raw I/O")
        return result

    def latency_counts(self):
        """Per bucket of LATENCY_EDGES_NS, in all runs so far."""
        cdef kvs_latency times = kvs_raw_latency(self.handle)[0]
        return times.counts

    def huge_coverage(self):
        return kvs_raw_huge_coverage(self.handle)

    @property
    def engine(self):
        return kvs_raw_engine(self.handle).decode()

    @property
    def registered(self):
        return bool(kvs_raw_registered(self.handle))
