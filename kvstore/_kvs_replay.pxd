# The binding's view of replay.h and of the sizes of extents, see _kvs.pxd.

from libc.stdint cimport int64_t, uint32_t, uint64_t

from kvstore._kvs cimport (
    kvs_admission, kvs_class, kvs_key, kvs_match_answer, kvs_reason, kvs_stats_struct
)

cdef extern from "replay.h" nogil:
    enum:
        KVS_AGE_BUCKETS

    struct kvs_replay_options:
        const kvs_class *classes
        uint32_t class_count
        uint32_t extent_blocks
        uint64_t capacity
        const uint64_t *charges
        kvs_admission admission
        uint64_t write_budget_bytes
        uint64_t block_bytes

    struct kvs_replay:
        pass

    int kvs_replay_open(const kvs_replay_options *options, kvs_replay **out)
    void kvs_replay_close(kvs_replay *replay)

    struct kvs_replay_answer:
        uint64_t hit_blocks, stored_blocks, dropped_blocks, refused_blocks
        kvs_reason reason

    int kvs_replay_request(kvs_replay *replay, int64_t now_ns, const kvs_key *keys,
                           uint64_t count, uint32_t class_number, kvs_replay_answer *out)

    void kvs_replay_match(kvs_replay *replay, const kvs_key *keys, uint64_t count,
                          kvs_match_answer *out)

    struct kvs_replay_report_struct "kvs_replay_report":
        kvs_stats_struct stats
        uint64_t used, used_max
        uint64_t stored_blocks, dropped_blocks, refused_blocks, evicted_blocks, expired_blocks
        uint64_t evicted_idle[16][496]

    void kvs_replay_report(const kvs_replay *replay, kvs_replay_report_struct *out)
    uint64_t kvs_age_of_bucket(uint32_t bucket)

cdef extern from "format.h" nogil:
    int kvs_format_geometry(uint32_t layer_count, const uint32_t *cell_bytes, uint32_t block_count,
                            int with_extras, uint32_t ids_per_block, uint32_t *header_bytes,
                            uint64_t *region_offsets, uint64_t *file_bytes)
