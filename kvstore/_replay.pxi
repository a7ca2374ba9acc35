"""The binding's part for replays (csrc/replay.h); included by _core.pyx, whose rules hold here."""

from kvstore._kvs_replay cimport *


def extent_file_bytes(bytes cell_bytes not None, uint32_t block_count):
    """Length of an extent file of that many blocks. cell_bytes: uint32 per layer."""
    cdef uint32_t header_bytes
    cdef uint64_t file_bytes = 0
    check(kvs_format_geometry(<uint32_t>(len(cell_bytes) // 4),
                              <const uint32_t *>PyBytes_AS_STRING(cell_bytes), block_count, 0, 0,
                              &header_bytes, NULL, &file_bytes), "sizing an extent")
    return file_bytes


cdef class Replay:
    """Index, recency and times to live of a store without devices. For one thread at a time."""

    cdef kvs_replay *handle

    def __cinit__(self, list classes not None, bytes charges not None, uint64_t capacity,
                  int admission, uint64_t write_budget_bytes, uint64_t block_bytes):
        """classes: (name bytes, ttl s); charges: uint64 for an extent of 1, 2, ... blocks."""
        cdef kvs_class class_array[16]
        cdef kvs_replay_options options
        fill_classes(class_array, classes)
        options.classes = class_array
        options.class_count = <uint32_t>len(classes)
        options.extent_blocks = <uint32_t>(len(charges) // 8)
        options.capacity = capacity
        options.charges = <const uint64_t *>PyBytes_AS_STRING(charges)
        options.admission = <kvs_admission>admission
        options.write_budget_bytes = write_budget_bytes
        options.block_bytes = block_bytes
        check(kvs_replay_open(&options, &self.handle), "opening a replay")

    def __dealloc__(self):
        if self.handle is not NULL:
            kvs_replay_close(self.handle)

    def request(self, int64_t now_ns, bytes keys not None, uint32_t class_number):
        """(leading blocks hit, why not more or None, and of the others: stored, without room,
        refused)."""
        cdef kvs_replay_answer answer
        cdef uint64_t count = key_count(keys)
        cdef const kvs_key *array = keys_at(keys)
        cdef int code
        with nogil:
            code = kvs_replay_request(self.handle, now_ns, array, count, class_number, &answer)
        check(code, "replaying a request")
        return (answer.hit_blocks, reason_of(answer.reason), answer.stored_blocks,
                answer.dropped_blocks, answer.refused_blocks)

    def match(self, bytes keys not None):
        """(leading blocks that are resident, why not more or None): changes nothing."""
        cdef kvs_match_answer found
        cdef uint64_t count = key_count(keys)
        cdef const kvs_key *array = keys_at(keys)
        with nogil:
            kvs_replay_match(self.handle, array, count, &found)
        return found.blocks, reason_of(found.reason)

    def report(self):
        """Field name -> number, or list of numbers; evicted_idle: by class, then by age bucket."""
        cdef kvs_replay_report_struct *report
        report = <kvs_replay_report_struct *>calloc(1, sizeof(kvs_replay_report_struct))
        if report is NULL:
            raise MemoryError()
        try:
            kvs_replay_report(self.handle, report)
            return report[0]
        finally:
            free(report)


# Least age in seconds of each bucket.
AGE_BUCKETS = tuple(kvs_age_of_bucket(i) for i in range(KVS_AGE_BUCKETS))
