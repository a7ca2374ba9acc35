# What the binding needs of the core where no store is open: format.h and owner.h.

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from kvstore._kvs cimport kvs_key

cdef extern from "format.h" nogil:
    struct kvs_extent_header:
        uint32_t layer_count
        uint32_t block_count
        uint32_t block_tokens
        uint32_t header_bytes
        uint64_t file_bytes
        uint8_t fingerprint[32]
        uint64_t start
        char class_name[16]
        int64_t created_s
        int64_t ttl_s
        kvs_key keys[64]

    enum kvs_verdict:
        KVS_VERDICT_GOOD

    const char *kvs_verdict_name(kvs_verdict verdict)
    kvs_verdict kvs_format_decode_page(const void *page, size_t size, kvs_extent_header *out)
    kvs_verdict kvs_format_decode_rest(const void *buffer, const kvs_extent_header *header,
                                       uint32_t *cell_bytes, uint64_t *checksums)

cdef extern from "owner.h" nogil:
    struct kvs_owner_lock:
        pass

    int kvs_owner_of(const char *root_path, char *holder, uint32_t holder_bytes)
    int kvs_owner_lock_take(const char *root_path, char *holder, uint32_t holder_bytes,
                            kvs_owner_lock **out)
    void kvs_owner_lock_give(kvs_owner_lock *lock)
