# The part of the binding that writes. Included by _core.pyx, whose imports and invariants hold
# here too.


cdef class Writer(Handle):
    cdef kvs_writer *handle
    cdef readonly Cache cache
    cdef readonly bint committed

    def __init__(self, Cache cache not None, bytes keys not None, uint64_t start, int retention,
                 uint32_t flags, bytes extras, token_ids):
        """token_ids: contiguous int32 buffer of the blocks' tokens, to be kept, or None."""
        cdef Py_buffer view
        cdef int code
        if self.handle is not NULL or start > key_count(keys):
            raise ValueError(f"start {start} is past the chain of {key_count(keys)} blocks")
        cdef kvs_cache *opened = cache.open_handle()
        cdef const kvs_key *digests = extras_at(extras, keys)
        cdef const int32_t *ids = token_ids_at(token_ids, keys, cache.block_tokens, &view)
        code = kvs_writer_open(opened, keys_at(keys), key_count(keys), start, retention, flags,
                               digests, ids, &self.handle)
        if ids is not NULL:
            PyBuffer_Release(&view)
        check(code, "writer")
        self.cache = cache

    def __dealloc__(self):
        self.close()

    cdef kvs_writer *open_handle(self) except NULL:
        if self.handle is NULL:
            raise ValueError("the writer is closed: it was aborted")
        self.cache.store.open_handle()
        if self.committed:
            raise ValueError("the writer was committed already")
        return self.handle

    def extend(self, bytes keys not None, bytes extras, token_ids):
        cdef Py_buffer view
        cdef kvs_writer *writer = self.open_handle()
        cdef const kvs_key *digests = extras_at(extras, keys)
        cdef const int32_t *ids = token_ids_at(token_ids, keys, self.cache.block_tokens, &view)
        cdef int code = kvs_writer_extend(writer, keys_at(keys), key_count(keys), digests, ids)
        if ids is not NULL:
            PyBuffer_Release(&view)
        check(code, "extend")

    def put(self, uint32_t layer, uint64_t first, uint64_t count, bytes sources not None, owners):
        """sources: (address, block stride) as uint64 per part; owners: what holds that memory."""
        cdef kvs_ticket *handle = NULL
        check(kvs_writer_put(self.open_handle(), layer, first, count,
                             <const kvs_source *>PyBytes_AS_STRING(sources), &handle), "put")
        cdef Ticket ticket = ticket_of(handle)
        keep(ticket, owners)
        return ticket

    def commit(self):
        """The writer lives until the ticket is done, whoever still refers to it."""
        cdef kvs_ticket *handle = NULL
        check(kvs_writer_commit(self.open_handle(), &handle), "commit")
        self.committed = True
        cdef Ticket ticket = ticket_of(handle)
        keep(ticket, self)
        return ticket

    def stats(self):
        cdef kvs_writer_stats_struct numbers
        if self.handle is NULL:
            raise ValueError("the writer is closed")
        self.check_process()
        kvs_writer_stats(self.handle, &numbers)
        return numbers

    def close(self):
        cdef kvs_writer *handle = self.handle
        self.handle = NULL
        if handle is not NULL and self.mine():
            kvs_writer_close(handle)


cdef const kvs_key *extras_at(bytes extras, bytes keys) except? NULL:
    if extras is None:
        return NULL
    if len(extras) != len(keys):
        raise ValueError("one extras digest per block")
    return keys_at(extras)


cdef const int32_t *token_ids_at(ids, bytes keys, uint64_t block_tokens,
                                 Py_buffer *view) except? NULL:
    """Not NULL: the caller releases `view`."""
    if ids is None:
        return NULL
    PyObject_GetBuffer(ids, view, PyBUF_SIMPLE)
    if <uint64_t>view.len < 4 * block_tokens * key_count(keys):
        PyBuffer_Release(view)
        raise ValueError(f"token ids of {key_count(keys)} blocks of {block_tokens}, not {len(ids)}")
    return <const int32_t *>view.buf
