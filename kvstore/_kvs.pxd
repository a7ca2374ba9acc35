# The binding's view of the core: kvs.h and what it includes, in the order of the headers, nothing
# else. What mirrors csrc/testing/ is in _kvs_testing.pxd.

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "keys.h" nogil:
    struct kvs_key:
        uint8_t bytes[32]

    struct kvs_extra:
        const uint8_t *tag
        uint32_t tag_bytes
        uint32_t value_bytes
        const uint8_t *value
        uint64_t token_offset

    int kvs_keys_chain(const int32_t *tokens, uint64_t token_count, uint32_t block_tokens,
                       const uint8_t *salt, uint32_t salt_bytes, const kvs_extra *extras,
                       uint32_t extra_count, kvs_key *keys_out)
    int kvs_keys_wrap(const uint8_t *foreign, uint64_t key_count, uint32_t key_bytes,
                      const uint8_t *salt, uint32_t salt_bytes, kvs_key *keys_out)

cdef extern from "xxh3.h" nogil:
    uint64_t kvs_xxh3(const void *data, size_t bytes)

cdef extern from "arena.h" nogil:
    enum kvs_page_kind:
        KVS_PAGES_SMALL, KVS_PAGES_TRANSPARENT_HUGE, KVS_PAGES_HUGETLB

    int kvs_huge_alloc(uint64_t bytes, void **out, kvs_page_kind *kind)
    void kvs_huge_free(void *address, uint64_t bytes)

cdef extern from "clock.h" nogil:
    struct kvs_clock:
        pass

cdef extern from "fs.h" nogil:
    struct kvs_fs:
        pass

    enum kvs_fs_lost:
        KVS_FS_LOST_DIRECT, KVS_FS_LOST_NOATIME, KVS_FS_LOST_TMPFILE, KVS_FS_LOST_ALLOCATE
        KVS_FS_LOST_ATIME, KVS_FS_LOST_WRITE

    int kvs_fs_posix_open(kvs_fs **out)
    void kvs_fs_posix_close(kvs_fs *fs)

cdef extern from "io.h" nogil:
    enum kvs_io_kind:
        KVS_IO_READ, KVS_IO_WRITE

    struct kvs_io_engine

    struct kvs_io_engine_calls:
        void (*close)(kvs_io_engine *engine)

    struct kvs_io_engine:
        const kvs_io_engine_calls *calls

    const char *kvs_io_uring_kind()

cdef extern from "latency.h" nogil:
    enum:
        KVS_LATENCY_BUCKETS

    struct kvs_latency:
        uint64_t counts[24]
        uint64_t sum_ns

    uint64_t kvs_latency_edge_ns(uint32_t bucket)

cdef extern from "kvs.h" nogil:
    enum:
        KVS_ROOTS_MAX
        KVS_CLASSES_MAX
        KVS_CLASS_NAME_BYTES

    enum kvs_reason:
        KVS_REASON_NONE
        KVS_REASON_COUNT

    const char *kvs_reason_name(kvs_reason reason)

    enum kvs_role:
        KVS_ROLE_OWNER, KVS_ROLE_PEER, KVS_ROLE_AUTO

    enum kvs_engine_choice:
        KVS_ENGINE_AUTO, KVS_ENGINE_URING, KVS_ENGINE_URING_PLAIN, KVS_ENGINE_AIO
        KVS_ENGINE_THREADS

    enum kvs_admission:
        KVS_ADMIT_ALWAYS, KVS_ADMIT_SECOND_HIT

    enum kvs_refusal:
        KVS_REFUSAL_COUNT

    const char *kvs_refusal_name(kvs_refusal refusal)

    struct kvs_class:
        char name[16]
        int64_t ttl_s

    struct kvs_root_options:
        const char *path
        uint64_t capacity_bytes
        kvs_io_engine *engine

    struct kvs_options:
        const kvs_root_options *roots
        uint32_t root_count
        uint32_t class_count
        const kvs_class *classes
        uint32_t default_class
        kvs_role role
        kvs_engine_choice engine
        uint32_t io_depth
        uint64_t io_bytes_in_flight
        uint64_t pool_bytes
        uint64_t reserve_bytes
        int64_t min_age_s
        int64_t io_timeout_ns
        uint64_t scrub_bytes_per_s
        int32_t helpers
        kvs_admission admission
        uint64_t write_budget_bytes
        uint32_t manual_ticks
        kvs_fs *fs
        kvs_clock *clock

    struct kvs_store:
        pass

    int kvs_open(const kvs_options *options, kvs_store **out, char *message,
                 uint32_t message_bytes)
    uint32_t kvs_close(kvs_store *store)
    int kvs_tick(kvs_store *store)
    int kvs_drop_ram(kvs_store *store)

    struct kvs_ticket:
        pass
    struct kvs_queue:
        pass

    int kvs_ticket_wait(kvs_ticket *ticket, int64_t timeout_ns)
    int kvs_ticket_done(kvs_ticket *ticket, int64_t *result)
    void kvs_ticket_send(kvs_ticket *ticket, kvs_queue *queue, uint64_t token)
    void kvs_ticket_close(kvs_ticket *ticket)

    int kvs_queue_open(kvs_store *store, kvs_queue **out)
    int kvs_queue_fd(const kvs_queue *queue)
    uint32_t kvs_queue_take(kvs_queue *queue, uint64_t *tokens, uint32_t max)
    void kvs_queue_close(kvs_queue *queue)

    struct kvs_layout:
        uint8_t fingerprint[32]
        uint32_t layer_count
        uint32_t block_tokens
        uint32_t extent_blocks
        const uint32_t *part_counts
        const uint32_t *part_bytes
        const char *description

    struct kvs_cache:
        pass

    int kvs_cache_open(kvs_store *store, const kvs_layout *layout, kvs_cache **out)
    void kvs_cache_close(kvs_cache *cache)

    struct kvs_match_answer "kvs_match":
        uint64_t blocks
        kvs_reason reason

    int kvs_match(kvs_cache *cache, const kvs_key *keys, uint64_t count, kvs_match_answer *out)
    int kvs_find(kvs_cache *cache, const kvs_key *keys, uint64_t count, kvs_ticket **out)
    int kvs_contains(kvs_cache *cache, const kvs_key *key)
    int kvs_delete(kvs_cache *cache, const kvs_key *key, kvs_ticket **out)

    kvs_reason kvs_removed(kvs_cache *cache, const kvs_key *key, int64_t *when_s)

    struct kvs_lease:
        pass

    int kvs_lease_open(kvs_cache *cache, const kvs_key *keys, uint64_t first, uint64_t end,
                       const char *owner, int retention, int64_t timeout_ns, kvs_lease **out)
    void kvs_lease_release(kvs_lease *lease)
    int kvs_lease_alive(kvs_lease *lease)

    struct kvs_target:
        void *base
        uint64_t page_stride

    struct kvs_into:
        const kvs_target *targets
        uint32_t page_tokens
        const int32_t *table
        uint64_t table_entries

    enum kvs_load_flags:
        KVS_LOAD_BLOCK, KVS_LOAD_PREFETCH

    struct kvs_load:
        pass

    int kvs_load_open(kvs_lease *lease, const kvs_into *into, uint32_t flags,
                      int64_t deadline_ns, uint64_t *needed_bytes, kvs_load **out)
    kvs_ticket *kvs_load_layer_ticket(kvs_load *load, uint32_t layer)
    kvs_ticket *kvs_load_drained(kvs_load *load)

    struct kvs_layer:
        uint64_t blocks
        kvs_reason reason
        uint32_t span_count
        int64_t ready_ns

    struct kvs_span:
        const void *cells
        uint64_t first_block
        uint64_t block_count

    int kvs_load_layer(kvs_load *load, uint32_t layer, kvs_layer *out)
    int kvs_load_span(kvs_load *load, uint32_t layer, uint32_t index, kvs_span *out)
    void kvs_load_release(kvs_load *load, uint32_t layer)
    int kvs_load_block(kvs_load *load, const void **data, uint64_t *bytes)
    void kvs_load_cancel(kvs_load *load)

    struct kvs_load_stats_struct "kvs_load_stats":
        uint64_t reads, disk_bytes, ram_bytes, direct_bytes, bounced_bytes, failed_blocks
        int64_t opened_ns, finished_ns

    void kvs_load_stats(kvs_load *load, kvs_load_stats_struct *out)
    void kvs_load_close(kvs_load *load)

    struct kvs_source:
        const void *base
        uint64_t block_stride

    enum kvs_writer_flags:
        KVS_WRITER_SINGLE

    struct kvs_writer:
        pass

    int kvs_writer_open(kvs_cache *cache, const kvs_key *keys, uint64_t count, uint64_t start,
                        int retention, uint32_t flags, const kvs_key *extras,
                        const int32_t *token_ids, kvs_writer **out)
    int kvs_writer_extend(kvs_writer *writer, const kvs_key *keys, uint64_t count,
                          const kvs_key *extras, const int32_t *token_ids)
    int kvs_writer_put(kvs_writer *writer, uint32_t layer, uint64_t first, uint64_t count,
                       const kvs_source *sources, kvs_ticket **out)
    int kvs_writer_commit(kvs_writer *writer, kvs_ticket **out)

    struct kvs_writer_stats_struct "kvs_writer_stats":
        uint64_t bytes_submitted
        uint64_t bytes_written
        uint64_t blocks_skipped
        uint64_t blocks_dropped
        uint64_t blocks_refused
        uint64_t blocks_admitted
        uint64_t extents

    void kvs_writer_stats(kvs_writer *writer, kvs_writer_stats_struct *out)
    void kvs_writer_close(kvs_writer *writer)

    int kvs_flush(kvs_store *store, kvs_ticket **out)

    struct kvs_stats_struct "kvs_stats":
        uint64_t lookups, hit_blocks, missed_blocks, hit_tokens, missed_tokens
        uint64_t loads, loads_short, disk_bytes, ram_bytes, reads
        uint64_t puts_bytes, written_bytes, lost_to_eexist_bytes, dropped_blocks
        uint64_t published_extents
        uint64_t refused_blocks[3]
        uint64_t evicted_extents, expired_extents, deleted_extents, quarantined_extents
        uint64_t quarantine_deleted, clock_steps
        int64_t clock_step_s
        uint64_t scrub_bytes, scrub_extents, scrub_damaged, scrub_passes
        uint64_t evicted_before_ttl[16]
        uint64_t evicted_age_s_sum[16]
        uint64_t removed_in_class[16]
        uint64_t misses_by_reason[17]
        uint64_t loads_by_reason[17]
        uint64_t disk_tokens, ram_tokens
        uint64_t loads_running, loads_waiting
        uint64_t puts_queued, writes_in_progress
        uint64_t extents, blocks, leases, open_files, regions
        uint64_t pool_bytes, pool_free_bytes, pool_cached_bytes, index_bytes

    void kvs_stats(kvs_store *store, kvs_stats_struct *out)

    enum kvs_stage:
        KVS_STAGE_COUNT

    const char *kvs_stage_name(kvs_stage stage)
    void kvs_stage_latency(kvs_store *store, kvs_stage stage, kvs_latency *out)
    void kvs_layer_wait_note(kvs_store *store, int64_t ns)

    struct kvs_root_info_struct "kvs_root_info":
        char path[1024]
        char engine[24]
        char engine_why[256]
        char file_system[16]
        uint32_t registered
        int32_t register_error
        uint32_t is_owner
        uint32_t warming
        uint32_t lost
        uint32_t io_depth
        uint64_t capacity_bytes, used_bytes, reserve_bytes, free_bytes
        uint64_t quarantine_files, quarantine_bytes, reads_in_flight_max
        uint64_t ops_in_flight, bytes_in_flight, reads_queued, read_bytes_queued
        uint64_t device_read_bytes, device_written_bytes, device_errors
        uint32_t breaker_state
        uint64_t breaker_trips
        int64_t down_ns, probe_in_ns
        char trouble[192]
        uint64_t write_budget_bytes, write_budget_left_bytes
        uint64_t scrub_bytes_per_s
        uint64_t scrub_pass_extents

    int kvs_root_info(kvs_store *store, uint32_t root, kvs_root_info_struct *out)
    int kvs_event_take(kvs_store *store, char *text, uint32_t text_bytes)

    struct kvs_files_info_struct "kvs_files_info":
        uint64_t descriptor_limit
        uint32_t open_max

    void kvs_files_info(kvs_store *store, kvs_files_info_struct *out)

    struct kvs_pool_info_struct "kvs_pool_info":
        uint64_t base, bytes
        uint32_t page_kind
        uint32_t root_count
        double huge_coverage

    void kvs_pool_info(kvs_store *store, kvs_pool_info_struct *out)
