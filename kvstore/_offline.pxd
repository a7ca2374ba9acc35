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
        kvs_key parent
        uint32_t parent_known
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
    enum kvs_section_type:
        KVS_SECTION_EXTRAS
        KVS_SECTION_TOKEN_IDS

    const void *kvs_format_section(const void *buffer, kvs_section_type type)

cdef extern from "owner.h" nogil:
    struct kvs_owner_lock:
        pass

    int kvs_owner_of(const char *root_path, char *holder, uint32_t holder_bytes)
    int kvs_owner_lock_take(const char *root_path, char *holder, uint32_t holder_bytes,
                            kvs_owner_lock **out)
    void kvs_owner_lock_give(kvs_owner_lock *lock)

# The layout of an extent file, as compiled: tests hold docs/FORMAT.md against it.
cdef extern from *:
    """
    #include <stddef.h>
    #include "format.h"

    #define DISK_FIELD(s, f) {#s, #f, offsetof(struct s, f), sizeof(((struct s *)0)->f)}
    static const struct disk_field {
        const char *structure, *field;
        size_t offset, bytes;
    } DISK_FIELDS[] = {
        DISK_FIELD(kvs_disk_header, magic), DISK_FIELD(kvs_disk_header, version),
        DISK_FIELD(kvs_disk_header, section_count), DISK_FIELD(kvs_disk_header, header_bytes),
        DISK_FIELD(kvs_disk_header, file_bytes), DISK_FIELD(kvs_disk_header, page_xxh3),
        DISK_FIELD(kvs_disk_header, layer_count), DISK_FIELD(kvs_disk_header, block_count),
        DISK_FIELD(kvs_disk_header, block_tokens), DISK_FIELD(kvs_disk_header, zero),
        DISK_FIELD(kvs_disk_section, type), DISK_FIELD(kvs_disk_section, flags),
        DISK_FIELD(kvs_disk_section, offset), DISK_FIELD(kvs_disk_section, bytes),
        DISK_FIELD(kvs_disk_section, zero), DISK_FIELD(kvs_disk_section, xxh3),
        DISK_FIELD(kvs_disk_chain, parent), DISK_FIELD(kvs_disk_chain, start),
        DISK_FIELD(kvs_disk_chain, parent_known), DISK_FIELD(kvs_disk_chain, zero),
        DISK_FIELD(kvs_disk_class, name), DISK_FIELD(kvs_disk_class, created_s),
        DISK_FIELD(kvs_disk_class, ttl_s),
    };
    enum { DISK_FIELD_COUNT = sizeof(DISK_FIELDS) / sizeof(DISK_FIELDS[0]) };
    """
    struct disk_field:
        const char *structure
        const char *field
        size_t offset
        size_t bytes
    const disk_field DISK_FIELDS[]
    enum: DISK_FIELD_COUNT
