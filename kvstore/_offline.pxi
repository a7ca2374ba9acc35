# The part of the binding for tools that open no store: headers of extents, the owner's lock of a
# root. Included by _core.pyx, whose imports and invariants hold here too.

from kvstore._offline cimport *

cdef extern from "string.h" nogil:
    size_t strnlen(const char *text, size_t most)


def format_constants():
    """Struct of an extent file -> field -> (offset, bytes), as the compiler laid them out."""
    found = {}
    for i in range(DISK_FIELD_COUNT):
        fields = found.setdefault(DISK_FIELDS[i].structure.decode(), {})
        fields[DISK_FIELDS[i].field.decode()] = (DISK_FIELDS[i].offset, DISK_FIELDS[i].bytes)
    return found


def decode_header(data):
    """What the front of an extent file says, or the word of the verdict that ended it. The first
    page alone gives what a scan needs; all header_bytes also `cell_bytes` (per layer) and
    `checksums` (of layer 0's blocks, then of layer 1's ...), `extras` (32 bytes a block) and
    `token_ids` (int32 of all blocks), each back to back, None where there are none."""
    cdef Py_buffer view
    cdef kvs_extent_header header
    cdef kvs_verdict verdict
    cdef bytes cells = b"", sums = b"", ids = None, extras = None
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        verdict = kvs_format_decode_page(view.buf, <size_t>view.len, &header)
        if verdict == KVS_VERDICT_GOOD and <uint64_t>view.len >= header.header_bytes:
            cells = PyBytes_FromStringAndSize(NULL, 4 * header.layer_count)
            sums = PyBytes_FromStringAndSize(NULL, 8 * header.layer_count * header.block_count)
            verdict = kvs_format_decode_rest(view.buf, &header,
                                             <uint32_t *>PyBytes_AS_STRING(cells),
                                             <uint64_t *>PyBytes_AS_STRING(sums))
            if verdict == KVS_VERDICT_GOOD:
                extras = section_of(view.buf, KVS_SECTION_EXTRAS, 32 * header.block_count)
                ids = section_of(view.buf, KVS_SECTION_TOKEN_IDS,
                                 4 * header.block_tokens * header.block_count)
    finally:
        PyBuffer_Release(&view)
    if verdict != KVS_VERDICT_GOOD:
        return kvs_verdict_name(verdict).decode()
    return {
        "header_bytes": header.header_bytes, "file_bytes": header.file_bytes,
        "block_tokens": header.block_tokens, "ttl_s": header.ttl_s,
        "created_s": header.created_s,
        "class_name": header.class_name[:strnlen(header.class_name, 16)].decode(errors="replace"),
        "parent": (<char *>header.parent.bytes)[:32] if header.parent_known else None,
        "start": None if header.start == <uint64_t>-1 else header.start,
        "fingerprint": (<char *>header.fingerprint)[:32],
        "keys": [(<char *>header.keys[i].bytes)[:32] for i in range(header.block_count)],
        "cell_bytes": tuple(memoryview(cells).cast("I")),
        "checksums": tuple(memoryview(sums).cast("Q")), "extras": extras,
        "token_ids": ids,
    }


cdef bytes section_of(const void *header, kvs_section_type type, Py_ssize_t size):
    cdef const void *found = kvs_format_section(header, type)
    return None if found is NULL else (<const char *>found)[:size]


cdef extern from * nogil:
    """
    #include <sys/syscall.h>
    #include <unistd.h>

    static int io_priority_get(void) { return (int)syscall(SYS_ioprio_get, 1, 0); }
    static int io_priority_set(int value) { return (int)syscall(SYS_ioprio_set, 1, 0, value); }
    """
    int io_priority_get()
    int io_priority_set(int value)

IO_PRIORITY_LOW = 2 << 13 | 7  # best effort, last: behind everybody, but never starved


def io_priority(int wanted):
    """Sets this thread's I/O priority and returns the old one; a refusal changes nothing."""
    cdef int old = io_priority_get()
    if wanted >= 0:
        io_priority_set(wanted)
    return old


def owner_of(bytes root):
    """Who owns the root, in words; "" when nobody does. Changes nothing. OSError."""
    cdef char holder[256]
    return holder.decode() if check(kvs_owner_of(root, holder, 256), "owner.lock") else ""


cdef class OwnerLock:
    """Nobody else owns the root until close(). BlockingIOError names who does."""

    cdef kvs_owner_lock *handle

    def __init__(self, bytes root):
        cdef char holder[256]
        memset(holder, 0, sizeof(holder))
        if self.handle is not NULL:
            raise ValueError("the lock is taken already")
        cdef int code = kvs_owner_lock_take(root, holder, 256, &self.handle)
        if code == -EBUSY:
            raise BlockingIOError(holder.decode())
        check(code, "taking owner.lock")

    def close(self):
        if self.handle is not NULL:
            kvs_owner_lock_give(self.handle)
        self.handle = NULL

    def __dealloc__(self):
        if self.handle is not NULL:
            kvs_owner_lock_give(self.handle)
