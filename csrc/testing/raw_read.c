/*
 * raw_read.c: see raw_read.h. The engine is chosen as a store would.
 *
 * Invariants:
 *   1. Position walks the files in the order given, aligned, and starts over at the end; a file's
 *      tail may make a shorter read, the rest of less than 4096 bytes is not read.
 *   2. run returns with nothing in flight, also when a read failed.
 */
#define _GNU_SOURCE 1 /* O_DIRECT */
#include "testing/raw_read.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "arena.h"
#include "io_choose.h"
#include "io_wait.h"

enum { ALIGN = 4096, DEPTH_LIMIT = 4096, REAP_MAX = 64 };

struct raw_file {
    int fd;
    uint64_t bytes; /* a multiple of ALIGN */
};

struct kvs_raw_reader {
    struct kvs_arena *arena;
    struct kvs_io_engine *engine;
    struct raw_file *files;
    uint32_t file_count, io_bytes, depth_max;
    uint32_t file; /* the next read */
    uint64_t offset;
    struct kvs_io_op *ops; /* [depth_max] */
    void **buffers;        /* [buffer_count] */
    uint32_t buffer_count, buffer, walked; /* the next one; how many are walked, 0: none */
};

static int file_open(struct raw_file *file, const char *path)
{
    struct stat stat;
    file->fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (file->fd < 0 || fstat(file->fd, &stat) < 0) {
        return -errno;
    }
    file->bytes = (uint64_t)stat.st_size / ALIGN * ALIGN;
    return 0;
}

static int files_open(struct kvs_raw_reader *reader, const char *const *paths, uint32_t count)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < count; i++) {
        int error = file_open(&reader->files[i], paths[i]);
        if (error) {
            return error;
        }
        total += reader->files[i].bytes;
    }
    return total ? 0 : -EINVAL;
}

/* One allocation per buffer: none crosses a registered piece. */
static int memory_open(struct kvs_raw_reader *reader)
{
    uint64_t bytes = (uint64_t)reader->io_bytes * reader->buffer_count;
    reader->buffers = calloc(reader->buffer_count, sizeof(*reader->buffers));
    int error = reader->buffers ? kvs_arena_open(bytes + bytes / 8, &reader->arena) : -ENOMEM;
    for (uint32_t i = 0; !error && i < reader->buffer_count; i++) {
        reader->buffers[i] = kvs_arena_take(reader->arena, reader->io_bytes);
        error = reader->buffers[i] ? 0 : -ENOMEM;
    }
    return error;
}

static int engine_open(struct kvs_raw_reader *reader, enum kvs_engine_choice engine)
{
    char why[KVS_ENGINE_WHY_BYTES];
    struct kvs_io_wish wish = {
        .engine = engine, .depth = reader->depth_max, .file_system = "", .direct = 1};
    int error = kvs_io_choose(&wish, &reader->engine, why);
    if (!error && engine != KVS_ENGINE_URING_PLAIN) {
        /* A refusal is a slower path, told by kvs_raw_reader_registered. */
        (void)reader->engine->calls->register_memory(reader->engine, kvs_arena_base(reader->arena),
                                                     kvs_arena_bytes(reader->arena));
    }
    return error;
}

int kvs_raw_reader_open(const char *const *paths, uint32_t path_count, uint32_t io_bytes,
                        uint32_t depth_max, uint64_t memory_bytes, enum kvs_engine_choice engine,
                        struct kvs_raw_reader **out)
{
    if (path_count == 0 || io_bytes == 0 || io_bytes % ALIGN || io_bytes > KVS_IO_MAX_BYTES ||
        depth_max == 0 || depth_max > DEPTH_LIMIT || memory_bytes / io_bytes > UINT32_MAX / 2) {
        return -EINVAL;
    }
    struct kvs_raw_reader *reader = calloc(1, sizeof(*reader));
    if (!reader) {
        return -ENOMEM;
    }
    reader->io_bytes = io_bytes;
    reader->depth_max = depth_max;
    reader->file_count = path_count;
    reader->walked = (uint32_t)(memory_bytes / io_bytes);
    reader->buffer_count = reader->walked > depth_max ? reader->walked : depth_max;
    reader->files = malloc(path_count * sizeof(*reader->files));
    reader->ops = calloc(depth_max, sizeof(*reader->ops));
    for (uint32_t i = 0; reader->files && i < path_count; i++) {
        reader->files[i] = (struct raw_file){.fd = -1};
    }
    int error = reader->files && reader->ops ? 0 : -ENOMEM;
    error = error ? error : files_open(reader, paths, path_count);
    error = error ? error : memory_open(reader);
    error = error ? error : engine_open(reader, engine);
    if (error) {
        kvs_raw_reader_close(reader);
        return error;
    }
    *out = reader;
    return 0;
}

static void aim(struct kvs_raw_reader *reader, struct kvs_io_op *op)
{
    while (reader->offset >= reader->files[reader->file].bytes) {
        reader->file = (reader->file + 1) % reader->file_count;
        reader->offset = 0;
    }
    const struct raw_file *file = &reader->files[reader->file];
    uint64_t left = file->bytes - reader->offset;
    if (reader->walked) {
        op->buffer = reader->buffers[reader->buffer];
        reader->buffer = (reader->buffer + 1) % reader->buffer_count;
    }
    op->kind = KVS_IO_READ;
    op->fd = file->fd;
    op->offset = reader->offset;
    op->bytes = left < reader->io_bytes ? (uint32_t)left : reader->io_bytes;
    reader->offset += op->bytes;
}

/* Returns how many were taken; *error says why not all (the engine has room for depth_max). */
static uint32_t send(struct kvs_raw_reader *reader, struct kvs_io_op **ops, uint32_t count,
                     int *error)
{
    for (uint32_t i = 0; i < count; i++) {
        aim(reader, ops[i]);
    }
    int taken = reader->engine->calls->submit(reader->engine, ops, count);
    if (taken < (int)count) {
        *error = taken < 0 ? taken : -EAGAIN;
    }
    return taken < 0 ? 0 : (uint32_t)taken;
}

int kvs_raw_reader_run(struct kvs_raw_reader *reader, uint32_t depth, int64_t duration_ns,
                       struct kvs_raw_result *out)
{
    struct kvs_io_op *ops[REAP_MAX];
    uint32_t in_flight = 0;
    int error = depth == 0 || depth > reader->depth_max ? -EINVAL : 0;
    int64_t start_ns = kvs_monotonic_ns(), until_ns = kvs_deadline_after(start_ns, duration_ns);
    *out = (struct kvs_raw_result){0};
    for (uint32_t i = 0; !error && i < depth; i++) {
        ops[0] = &reader->ops[i];
        ops[0]->buffer = reader->buffers[i];
        in_flight += send(reader, ops, 1, &error);
    }
    while (in_flight) {
        int count = reader->engine->calls->reap(reader->engine, ops, REAP_MAX, -1);
        if (count < 0) {
            return count; /* the engine itself is broken */
        }
        for (int i = 0; i < count; i++) {
            error = error ? error : kvs_io_status(ops[i]);
            out->bytes += ops[i]->bytes;
        }
        in_flight -= (uint32_t)count;
        if (count && !error && kvs_monotonic_ns() < until_ns) {
            in_flight += send(reader, ops, (uint32_t)count, &error);
        }
    }
    out->ns = kvs_monotonic_ns() - start_ns;
    return error;
}

const char *kvs_raw_reader_engine(const struct kvs_raw_reader *reader)
{
    return reader->engine->name;
}

int kvs_raw_reader_registered(const struct kvs_raw_reader *reader)
{
    return reader->engine->registered;
}

void kvs_raw_reader_close(struct kvs_raw_reader *reader)
{
    if (reader->engine) {
        reader->engine->calls->close(reader->engine);
    }
    for (uint32_t i = 0; reader->files && i < reader->file_count; i++) {
        if (reader->files[i].fd >= 0) {
            close(reader->files[i].fd);
        }
    }
    if (reader->arena) {
        kvs_arena_close(reader->arena);
    }
    free(reader->files);
    free(reader->buffers);
    free(reader->ops);
    free(reader);
}
