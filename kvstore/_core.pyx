# cython: language_level=3, binding=False, embedsignature=False
"""The binding: converts, keeps alive, raises. No policy, no defaults, no waiting but `wait`.

Invariants
  1. A handle of the core is touched only while the GIL is held, so no call can race with the close
     of its handle. Three calls give the GIL up: open (no handle yet), close (the handle is taken
     out first) and Ticket.wait (a ticket is closed only when its last reference goes).
  2. A Cache closes its handle only when it is freed, and every view of pool memory refers to its
     Cache: the core keeps the pool mapped until the last handle is gone, so a view that outlives
     its layer, load and store shows stale bytes, never unmapped memory.
  3. Memory of the caller that the core may still touch is referred to by `_kept` until the ticket
     that ends the core's interest is done, whatever happens to the objects around it.
  4. No __dealloc__ raises or waits.
  5. A forked child never calls the core with a handle of its parent: the core's lock may have been
     held at the fork. Its calls raise StoreForked, its handles are left alone.

Arrays of C structs come in as bytes packed by the caller (keys back to back, targets and sources as
pairs of uint64, tables as int32).
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.exc cimport PyErr_CheckSignals
from cpython.ref cimport Py_INCREF
from libc.errno cimport EAGAIN, EBUSY, ENOENT, E2BIG, ETIMEDOUT
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset
from posix.unistd cimport getpid, pid_t
cimport cython

import os
import time

from kvstore._kvs cimport *
from kvstore._kvs_testing cimport *
from kvstore.errors import OpenError, PoolTooSmall, StoreClosed, StoreForked, error_of

cdef enum:
    KEY_BYTES = 32
    MESSAGE_BYTES = 1024
    TAKE_MAX = 256
    LOG_MAX = 256
    EVENT_BYTES = 1400
    # A wait is cut into slices, so that Ctrl-C ends it: handlers cannot run inside the core.
    WAIT_SLICE_NS = 200000000

LOAD_BLOCK = KVS_LOAD_BLOCK
LOAD_PREFETCH = KVS_LOAD_PREFETCH
WRITER_SINGLE = KVS_WRITER_SINGLE
ROOTS_MAX = KVS_ROOTS_MAX
CLASSES_MAX = KVS_CLASSES_MAX
CLASS_NAME_BYTES = KVS_CLASS_NAME_BYTES
ROLES = {"owner": KVS_ROLE_OWNER, "peer": KVS_ROLE_PEER, "auto": KVS_ROLE_AUTO}
ENGINES = {
    "auto": KVS_ENGINE_AUTO,
    "io_uring": KVS_ENGINE_URING,
    "io_uring_plain": KVS_ENGINE_URING_PLAIN,
    "aio": KVS_ENGINE_AIO,
    "threads": KVS_ENGINE_THREADS,
}
ADMISSIONS = {"always": KVS_ADMIT_ALWAYS, "second-hit": KVS_ADMIT_SECOND_HIT}
REFUSALS = tuple(kvs_refusal_name(<kvs_refusal>i).decode() for i in range(KVS_REFUSAL_COUNT))
PAGE_KINDS = {
    KVS_PAGES_SMALL: "small",
    KVS_PAGES_TRANSPARENT_HUGE: "transparent huge",
    KVS_PAGES_HUGETLB: "hugetlb",
}
LOST = {
    "direct": KVS_FS_LOST_DIRECT,
    "noatime": KVS_FS_LOST_NOATIME,
    "tmpfile": KVS_FS_LOST_TMPFILE,
    "allocate": KVS_FS_LOST_ALLOCATE,
    "atime": KVS_FS_LOST_ATIME,
    "write": KVS_FS_LOST_WRITE,
}
LATENCY_EDGES_NS = tuple(kvs_latency_edge_ns(i) for i in range(KVS_LATENCY_BUCKETS - 1))
STAGES = tuple(kvs_stage_name(<kvs_stage>i).decode() for i in range(KVS_STAGE_COUNT))
REASONS = tuple(kvs_reason_name(<kvs_reason>i).decode() for i in range(KVS_REASON_COUNT))


def liburing_kind():
    return kvs_io_uring_kind().decode()


cdef int check(int code, str doing) except -1:
    """Codes become exceptions here (and only here); 0 and counts pass."""
    if code < 0:
        raise error_of(code, doing)
    return code


cdef object reason_of(kvs_reason reason):
    return None if reason == KVS_REASON_NONE else REASONS[<int>reason]


# ------------------------------------------------------------------------------------ pure calls


def chain_keys(tokens, uint32_t block_tokens, bytes salt, extras):
    """Keys, back to back. tokens: contiguous int32 buffer; extras: (tag, offset, value) each."""
    if block_tokens == 0:
        raise ValueError("block_tokens must be at least 1")
    cdef Py_buffer view
    cdef kvs_extra *array = NULL
    cdef list plain = [(tag.encode() if isinstance(tag, str) else tag, offset, value)
                       for tag, offset, value in extras]
    cdef uint32_t extra_count = <uint32_t>len(plain)
    PyObject_GetBuffer(tokens, &view, PyBUF_SIMPLE)
    cdef uint64_t count = <uint64_t>view.len // 4
    cdef Py_ssize_t key_total = <Py_ssize_t>(count // block_tokens)
    cdef bytes keys = PyBytes_FromStringAndSize(NULL, key_total * KEY_BYTES)
    cdef kvs_key *out = <kvs_key *>PyBytes_AS_STRING(keys)
    cdef const uint8_t *salt_at = <const uint8_t *>PyBytes_AS_STRING(salt)
    cdef uint32_t salt_bytes = <uint32_t>len(salt)
    cdef int code
    try:
        array = extras_array(plain)
        with nogil:
            code = kvs_keys_chain(<const int32_t *>view.buf, count, block_tokens, salt_at,
                                  salt_bytes, array, extra_count, out)
    finally:
        free(array)
        PyBuffer_Release(&view)
    check(code, "making keys (block_tokens, or an extra's tag or offset)")
    return keys


cdef kvs_extra *extras_array(list extras) except? NULL:
    """Points into the tuples' bytes: valid while `extras` lives. The caller frees the array."""
    if not extras:
        return NULL
    cdef kvs_extra *array = <kvs_extra *>calloc(len(extras), sizeof(kvs_extra))
    if array is NULL:
        raise MemoryError()
    cdef bytes tag, value
    for i, (tag, offset, value) in enumerate(extras):
        array[i].tag = <const uint8_t *>PyBytes_AS_STRING(tag)
        array[i].tag_bytes = <uint32_t>len(tag)
        array[i].value = <const uint8_t *>PyBytes_AS_STRING(value)
        array[i].value_bytes = <uint32_t>len(value)
        array[i].token_offset = <uint64_t>offset
    return array


def wrap_keys(bytes foreign, uint32_t key_bytes, bytes salt):
    """Keys, back to back, of an engine's own keys of key_bytes each, back to back."""
    if key_bytes == 0:
        raise ValueError("key_bytes must be at least 1")
    cdef Py_ssize_t count = len(foreign) // key_bytes
    cdef bytes keys = PyBytes_FromStringAndSize(NULL, count * KEY_BYTES)
    check(kvs_keys_wrap(<const uint8_t *>PyBytes_AS_STRING(foreign), <uint64_t>count, key_bytes,
                        <const uint8_t *>PyBytes_AS_STRING(salt), <uint32_t>len(salt),
                        <kvs_key *>PyBytes_AS_STRING(keys)), "wrapping keys")
    return keys


def xxh3(data):
    """XXH3-64 of a contiguous buffer: the checksum of cells."""
    cdef Py_buffer view
    cdef uint64_t value
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    with nogil:
        value = kvs_xxh3(view.buf, <size_t>view.len)
    PyBuffer_Release(&view)
    return value


include "_offline.pxi"


# -------------------------------------------------------------------------------------- memory


cdef class HugeMemory:
    """Writable buffer of huge-page memory, freed with its last user."""

    cdef void *address
    cdef Py_ssize_t nbytes
    cdef kvs_page_kind kind

    def __cinit__(self, uint64_t nbytes):
        cdef int code
        with nogil:
            code = kvs_huge_alloc(nbytes, &self.address, &self.kind)
        check(code, "allocating huge-page memory")
        self.nbytes = <Py_ssize_t>nbytes

    def __dealloc__(self):
        if self.address is not NULL:
            kvs_huge_free(self.address, <uint64_t>self.nbytes)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.address, self.nbytes, 0, flags)

    @property
    def pages(self):
        return PAGE_KINDS[self.kind]


cdef class View:
    """Read-only buffer over pool memory. Read-only: other loads are served from the same bytes."""

    cdef const void *address
    cdef Py_ssize_t nbytes
    cdef object owner

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, <void *>self.address, self.nbytes, 1, flags)

    def __len__(self):
        return self.nbytes


cdef View view_of(const void *address, uint64_t nbytes, object owner):
    cdef View view = View.__new__(View)
    view.address = address
    view.nbytes = <Py_ssize_t>nbytes
    view.owner = owner
    return view


# What the core may still touch: {id(ticket): (ticket, objects)}. An entry goes when its ticket is
# seen done: by whoever waits for it, by `sweep` (loads closing, the store closing), or by the next
# `keep`, which looks at the two oldest entries. So no thread is needed, nothing waits in a
# __dealloc__, and at most a few finished buffers linger until the next call.
cdef dict _kept = {}


def keep(Ticket ticket, objects):
    """Refers to `objects` until `ticket` is done."""
    _kept[id(ticket)] = (ticket, objects)
    for _ in range(min(2, len(_kept))):
        oldest = next(iter(_kept))
        entry = _kept.pop(oldest)
        if (<Ticket>entry[0]).pending():
            _kept[oldest] = entry


def sweep():
    """Lets go of everything the core is done with; returns how many entries are left."""
    for number, entry in list(_kept.items()):
        if not (<Ticket>entry[0]).pending():
            _kept.pop(number, None)
    return len(_kept)


# ------------------------------------------------------------------------------ tickets, queues


cdef class Handle:
    """What all handles share: they belong to the process that made them (invariant 5)."""

    cdef pid_t born
    cdef object __weakref__

    def __cinit__(self):
        self.born = getpid()

    cdef bint mine(self) noexcept:
        return self.born == getpid()

    cdef int check_process(self) except -1:
        if not self.mine():
            raise StoreForked("the store was opened before fork; open one in this process")
        return 0


@cython.no_gc_clear  # its queue must not go before it: the core may still send there
cdef class Ticket(Handle):
    """Something that takes time: pending, then done with one result, for ever."""

    cdef kvs_ticket *handle
    cdef Queue queue
    cdef public object waiter  # the bridge that an event goes to; see _loop.py

    def __dealloc__(self):
        if self.handle is not NULL and self.mine():
            kvs_ticket_send(self.handle, NULL, 0)
            kvs_ticket_close(self.handle)

    def wait(self, int64_t timeout_ns):
        """Blocks without the GIL. True when done, False when timeout_ns passed (< 0: for ever)."""
        cdef int64_t until = 0 if timeout_ns < 0 else time.monotonic_ns() + timeout_ns
        cdef int64_t left = WAIT_SLICE_NS
        cdef int code = -ETIMEDOUT
        self.check_process()
        while code == -ETIMEDOUT:
            if timeout_ns >= 0:
                left = max(0, min(<int64_t>WAIT_SLICE_NS, until - <int64_t>time.monotonic_ns()))
            with nogil:
                code = kvs_ticket_wait(self.handle, left)
            PyErr_CheckSignals()
            if left == 0:
                break
        if code == -ETIMEDOUT:
            return False
        check(code, "waiting")
        _kept.pop(id(self), None)
        return True

    def done(self):
        """The result, or None while pending."""
        cdef int64_t result = 0
        self.check_process()
        if self.handle is NULL or not kvs_ticket_done(self.handle, &result):  # NULL: not begun
            return None
        _kept.pop(id(self), None)
        return result

    cdef bint pending(self) except -1:
        """Whether the core may still work on it; not for what a forked child has of its parent."""
        return self.mine() and self.done() is None

    def send(self, Queue queue, uint64_t token):
        """When done (or at once) the queue gets `token`. None takes it back."""
        self.check_process()
        kvs_ticket_send(self.handle, NULL if queue is None else queue.open_handle(), token)
        self.queue = queue


cdef Ticket ticket_of(kvs_ticket *handle):
    if handle is NULL:
        raise MemoryError("no memory for a ticket")
    cdef Ticket ticket = Ticket.__new__(Ticket)
    ticket.handle = handle
    return ticket


cdef class Queue(Handle):
    """Where an event loop hears of finished tickets. Close it when no ticket is sent to it."""

    cdef kvs_queue *handle

    def __init__(self, Store store not None):
        if self.handle is NULL:
            check(kvs_queue_open(store.open_handle(), &self.handle), "opening a queue")

    def __dealloc__(self):
        self.close()

    cdef kvs_queue *open_handle(self) except NULL:
        self.check_process()
        if self.handle is NULL:
            raise ValueError("the queue is closed")
        return self.handle

    def fd(self):
        return kvs_queue_fd(self.open_handle())

    def take(self):
        """All tokens that arrived, and the eventfd reset."""
        cdef uint64_t tokens[TAKE_MAX]
        cdef uint32_t count = TAKE_MAX
        taken = []
        while count == TAKE_MAX:
            count = kvs_queue_take(self.open_handle(), tokens, TAKE_MAX)
            taken.extend([tokens[i] for i in range(count)])
        return taken

    def close(self):
        cdef kvs_queue *handle = self.handle
        self.handle = NULL
        if handle is not NULL and self.mine():
            kvs_queue_close(handle)


# ------------------------------------------------------------------------------------- the store


@cython.no_gc_clear  # a store that was never closed hands on what it uses when it is freed
cdef class Store(Handle):
    cdef kvs_store *handle
    cdef tuple testing  # clock, files and engines must outlive the store

    def __init__(self, *, list roots not None, list classes not None, uint32_t default_class,
                 int role, int engine, uint32_t io_depth, uint64_t pool_bytes,
                 uint64_t reserve_bytes, int64_t min_age_s, int64_t io_timeout_ns,
                 uint64_t scrub_bytes_per_s=0, int admission=0, uint64_t write_budget_bytes=0,
                 int32_t helpers=-1, bint manual_ticks=False,
                 VirtualClock clock=None, FaultFiles files=None, list engines=None):
        """roots: (path bytes, capacity bytes, 0 for the default); classes: (name bytes, ttl s)."""
        if self.handle is not NULL:
            raise ValueError("the store is open already")
        cdef kvs_root_options root_array[16]
        cdef kvs_class class_array[16]
        cdef kvs_options options
        cdef char message[MESSAGE_BYTES]
        cdef kvs_store *handle = NULL
        cdef int code
        memset(&options, 0, sizeof(options))
        memset(message, 0, sizeof(message))
        fill_roots(root_array, roots, engines)
        fill_classes(class_array, classes)
        options.roots = root_array
        options.root_count = <uint32_t>len(roots)
        options.classes = class_array
        options.class_count = <uint32_t>len(classes)
        options.default_class = default_class
        options.role = <kvs_role>role
        options.engine = <kvs_engine_choice>engine
        options.io_depth = io_depth
        options.pool_bytes = pool_bytes
        options.reserve_bytes = reserve_bytes
        options.min_age_s = min_age_s
        options.io_timeout_ns = io_timeout_ns
        options.scrub_bytes_per_s = scrub_bytes_per_s
        options.helpers = helpers
        options.admission = <kvs_admission>admission
        options.write_budget_bytes = write_budget_bytes
        options.manual_ticks = manual_ticks
        if clock is not None:
            options.clock = kvs_virtual_clock_face(clock.handle)
        if files is not None:
            options.fs = files.handle
        self.testing = (clock, files, tuple(engines or ()))
        with nogil:
            code = kvs_open(&options, &handle, message, MESSAGE_BYTES)
        if code < 0:
            # Some engines were closed and some not reached; which cannot be told. None is touched
            # again, and what the others use stays.
            Py_INCREF(self.testing)
            self.forget_engines(0)
            raise OpenError(message.decode(errors="replace") or os.strerror(-code))
        self.handle = handle

    def __dealloc__(self):
        # store.py closes in time. One that was never closed runs on, and so must what it uses.
        if self.handle is not NULL:
            Py_INCREF(self.testing)

    cdef kvs_store *open_handle(self) except NULL:
        self.check_process()
        if self.handle is NULL:
            raise StoreClosed("the store is closed")
        return self.handle

    @property
    def closed(self):
        return self.handle is NULL

    def close(self):
        """Waits, without the GIL, until nothing is in flight. The number of roots whose devices did
        not answer in time: they are closed by threads left behind."""
        cdef kvs_store *handle = self.handle
        cdef uint32_t left
        self.handle = NULL
        if handle is NULL or not self.mine():
            return 0
        with nogil:
            left = kvs_close(handle)
        if left:
            Py_INCREF(self.testing)  # those threads use it as long as they live
        self.forget_engines(left)
        sweep()
        return bin(left).count("1")

    cdef int forget_engines(self, uint32_t left) except -1:
        """The store closed them, but those of the roots that are left."""
        for number, engine in enumerate(self.testing[2]):
            if engine is not None and not left >> <uint32_t>number & 1:
                (<InjectedEngine>engine).handle = NULL
        return 0

    def cache(self, **layout):
        return Cache(self, **layout)

    def queue(self):
        return Queue(self)

    def tick(self):
        check(kvs_tick(self.open_handle()), "tick")

    def drop_ram(self):
        check(kvs_drop_ram(self.open_handle()), "drop_ram")

    def flush(self):
        cdef kvs_ticket *ticket = NULL
        check(kvs_flush(self.open_handle(), &ticket), "flush")
        return ticket_of(ticket)

    def stats(self):
        """Field name -> number, or list of numbers by class or reason."""
        cdef kvs_stats_struct numbers
        kvs_stats(self.open_handle(), &numbers)
        return numbers

    def stage_latency(self, int stage):
        """Counts per bucket, and the sum in ns."""
        cdef kvs_latency numbers
        if not 0 <= stage < KVS_STAGE_COUNT:
            raise ValueError(f"no stage {stage}")
        kvs_stage_latency(self.open_handle(), <kvs_stage>stage, &numbers)
        return numbers

    def note_layer_wait(self, int64_t ns):
        """Of a load that may outlive its store: then it is nobody's figure."""
        if self.handle is not NULL and self.mine():
            kvs_layer_wait_note(self.handle, ns)

    def events(self):
        """Roots that went down or came back since the last call, as lines for a log."""
        cdef char text[EVENT_BYTES]
        cdef kvs_store *handle = self.open_handle()
        found = []
        while kvs_event_take(handle, text, EVENT_BYTES):
            found.append((<bytes>text).decode(errors="replace"))
        return found

    def root_info(self, uint32_t root):
        cdef kvs_root_info_struct info
        check(kvs_root_info(self.open_handle(), root, &info), "root_info")
        return info

    def files_info(self):
        cdef kvs_files_info_struct info
        kvs_files_info(self.open_handle(), &info)
        return info

    def pool_info(self):
        cdef kvs_pool_info_struct info
        kvs_pool_info(self.open_handle(), &info)
        return info


cdef int fill_roots(kvs_root_options *array, list roots, list engines) except -1:
    """The paths stay owned by `roots`."""
    if not 1 <= len(roots) <= KVS_ROOTS_MAX:
        raise ValueError(f"a store has 1 to {KVS_ROOTS_MAX} roots, not {len(roots)}")
    if engines is not None and len(engines) != len(roots):
        raise ValueError("one engine per root")
    cdef bytes path
    for i, (path, capacity) in enumerate(roots):
        array[i].path = PyBytes_AS_STRING(path)
        array[i].capacity_bytes = <uint64_t>capacity
        array[i].engine = NULL
        if engines is not None and engines[i] is not None:
            array[i].engine = (<InjectedEngine?>engines[i]).open_handle()
    return 0


cdef int fill_classes(kvs_class *array, list classes) except -1:
    if not 1 <= len(classes) <= KVS_CLASSES_MAX:
        raise ValueError(f"a store has 1 to {KVS_CLASSES_MAX} retention classes")
    cdef bytes name
    for i, (name, ttl_s) in enumerate(classes):
        if not 1 <= len(name) < KVS_CLASS_NAME_BYTES:
            raise ValueError(f"a class name has 1 to {KVS_CLASS_NAME_BYTES - 1} bytes: {name!r}")
        memset(array[i].name, 0, KVS_CLASS_NAME_BYTES)
        memcpy(array[i].name, PyBytes_AS_STRING(name), len(name))
        array[i].ttl_s = <int64_t>ttl_s
    return 0


# ------------------------------------------------------------------------------ a cache, leases


cdef class Cache(Handle):
    """One namespace. Its handle is closed only when this object is freed (invariant 2)."""

    cdef kvs_cache *handle
    cdef readonly Store store
    cdef uint32_t block_tokens

    def __init__(self, Store store not None, *, bytes fingerprint not None, uint32_t block_tokens,
                 uint32_t extent_blocks, bytes part_counts not None, bytes part_bytes not None,
                 bytes description not None):
        """part_counts: uint32 per layer; part_bytes: uint32 per part, layer after layer."""
        if self.handle is not NULL or len(fingerprint) != 32:
            raise ValueError("a cache is opened once, with a fingerprint of 32 bytes")
        cdef kvs_layout layout
        memcpy(layout.fingerprint, PyBytes_AS_STRING(fingerprint), 32)
        layout.layer_count = <uint32_t>(len(part_counts) // 4)
        layout.block_tokens = block_tokens
        layout.extent_blocks = extent_blocks
        layout.part_counts = <const uint32_t *>PyBytes_AS_STRING(part_counts)
        layout.part_bytes = <const uint32_t *>PyBytes_AS_STRING(part_bytes)
        layout.description = PyBytes_AS_STRING(description)
        check(kvs_cache_open(store.open_handle(), &layout, &self.handle), "opening a cache")
        self.store = store
        self.block_tokens = block_tokens

    def __dealloc__(self):
        if self.handle is not NULL and self.mine():
            kvs_cache_close(self.handle)

    cdef kvs_cache *open_handle(self) except NULL:
        self.store.open_handle()  # a closed store says so first
        return self.handle

    def lease(self, *words):
        return Lease(self, *words)

    def writer(self, *words):
        return Writer(self, *words)

    def match(self, bytes keys not None):
        """(leading blocks that are resident, reason or None)."""
        cdef kvs_match_answer answer
        check(kvs_match(self.open_handle(), keys_at(keys), key_count(keys), &answer), "match")
        return answer.blocks, reason_of(answer.reason)

    def find(self, bytes keys not None):
        cdef kvs_ticket *ticket = NULL
        check(kvs_find(self.open_handle(), keys_at(keys), key_count(keys), &ticket), "find")
        return ticket_of(ticket)

    def contains(self, bytes key not None):
        one_key(key)
        return check(kvs_contains(self.open_handle(), keys_at(key)), "contains") == 1

    def removed(self, bytes key not None):
        """(reason, seconds since 1970), or None."""
        cdef int64_t when_s = 0
        one_key(key)
        cdef kvs_reason reason = kvs_removed(self.open_handle(), keys_at(key), &when_s)
        return (reason_of(reason), when_s) if when_s else None

    def delete(self, bytes key not None):
        cdef kvs_ticket *ticket = NULL
        one_key(key)
        check(kvs_delete(self.open_handle(), keys_at(key), &ticket), "delete")
        return ticket_of(ticket)


cdef const kvs_key *keys_at(bytes keys) noexcept:
    return <const kvs_key *>PyBytes_AS_STRING(keys)


cdef uint64_t key_count(bytes keys) noexcept:
    return <uint64_t>len(keys) // KEY_BYTES


cdef int one_key(bytes key) except -1:
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
    return 0


include "_replay.pxi"


cdef class Lease(Handle):
    cdef kvs_lease *handle
    cdef readonly Cache cache

    def __init__(self, Cache cache not None, bytes keys not None, uint64_t first, uint64_t end,
                 bytes owner not None, int retention, int64_t timeout_ns):
        if self.handle is not NULL or not first <= end <= key_count(keys):
            raise ValueError(f"blocks {first} to {end} of {key_count(keys)} keys")
        check(kvs_lease_open(cache.open_handle(), keys_at(keys), first, end,
                             PyBytes_AS_STRING(owner), retention, timeout_ns, &self.handle),
              "lease")
        self.cache = cache

    def __dealloc__(self):
        self.release()

    def load(self, **words):
        return Load(self, **words)

    def release(self):
        cdef kvs_lease *handle = self.handle
        self.handle = NULL
        if handle is not NULL and self.mine():
            kvs_lease_release(handle)

    def alive(self):
        self.check_process()
        return self.handle is not NULL and kvs_lease_alive(self.handle) == 1


# ----------------------------------------------------------------------------------------- loads


cdef class Load(Handle):
    cdef kvs_load *handle
    cdef readonly Cache cache
    cdef readonly Ticket drained  # no read or copy can write caller memory any more

    def __init__(self, Lease lease not None, *, bytes targets, uint32_t page_tokens, bytes table,
                 object owners, uint32_t flags, int64_t deadline_ns):
        """targets: (address, page stride) as uint64 per part, or None for the pool.

        owners: what holds the memory of the targets. It is kept before the load starts: once it
        runs, nothing may come between (Ctrl-C) that could free that memory.
        """
        cdef kvs_into into
        cdef uint64_t needed = 0
        memset(&into, 0, sizeof(into))
        if self.handle is not NULL or lease.handle is NULL:
            raise ValueError("the lease was released")
        lease.cache.store.open_handle()
        if targets is not None:
            into.targets = <const kvs_target *>PyBytes_AS_STRING(targets)
            into.page_tokens = page_tokens
        if table is not None:
            into.table = <const int32_t *>PyBytes_AS_STRING(table)
            into.table_entries = <uint64_t>len(table) // 4
        cdef Ticket drained = Ticket.__new__(Ticket)
        if targets is not None:
            _kept[id(drained)] = (drained, owners)
        cdef int code = kvs_load_open(lease.handle, NULL if targets is None else &into, flags,
                                      deadline_ns, &needed, &self.handle)
        if code < 0:
            _kept.pop(id(drained), None)
        if code == -E2BIG:
            raise PoolTooSmall(needed)
        check(code, "load")
        drained.handle = kvs_load_drained(self.handle)
        self.drained = drained
        self.cache = lease.cache

    def __dealloc__(self):
        self.close()

    cdef kvs_load *open_handle(self) except NULL:
        self.check_process()
        if self.handle is NULL:
            raise ValueError("the load is closed")
        return self.handle

    @property
    def closed(self):
        return self.handle is NULL

    def layer_ticket(self, uint32_t layer):
        return ticket_of(kvs_load_layer_ticket(self.open_handle(), layer))

    def layer(self, uint32_t layer):
        """(good leading blocks, reason or None, spans, boot ns when ready); None: not ready."""
        cdef kvs_layer answer
        cdef int code = kvs_load_layer(self.open_handle(), layer, &answer)
        if code == -EAGAIN:
            return None
        check(code, "layer")
        return answer.blocks, reason_of(answer.reason), answer.span_count, answer.ready_ns

    def span(self, uint32_t layer, uint32_t index, uint64_t cell_bytes):
        """(first block, blocks, View), or None past the last one or after release."""
        cdef kvs_span span
        cdef int code = kvs_load_span(self.open_handle(), layer, index, &span)
        if code == -ENOENT:
            return None
        check(code, "span")
        nbytes = span.block_count * cell_bytes
        return span.first_block, span.block_count, view_of(span.cells, nbytes, self.cache)

    def release(self, uint32_t layer):
        if self.handle is not NULL and self.mine():
            kvs_load_release(self.handle, layer)

    def block(self):
        cdef const void *data = NULL
        cdef uint64_t nbytes = 0
        check(kvs_load_block(self.open_handle(), &data, &nbytes), "block")
        return view_of(data, nbytes, self.cache)

    def cancel(self):
        if self.handle is not NULL and self.mine():
            kvs_load_cancel(self.handle)

    def stats(self):
        cdef kvs_load_stats_struct numbers
        kvs_load_stats(self.open_handle(), &numbers)
        return numbers

    def close(self):
        cdef kvs_load *handle = self.handle
        self.handle = NULL
        if handle is not NULL and self.mine():
            kvs_load_close(handle)


# --------------------------------------------------------------------------------------- writers


include "_writer.pxi"


include "_testing.pxi"
