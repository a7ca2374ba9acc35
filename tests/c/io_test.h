/*
 * io_test.h: what the C tests of the engines share: CHECK, a file of known bytes, running
 * operations to the end, fd counting.
 */
#ifndef KVS_IO_TEST_H
#define KVS_IO_TEST_H

#include "io.h"

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                \
        }                                                                           \
    } while (0)

#define CHECK_EQ(left, right)                                                                    \
    do {                                                                                         \
        long long left_value = (long long)(left), right_value = (long long)(right);              \
        if (left_value != right_value) {                                                         \
            fprintf(stderr, "%s:%d: failed: %s == %s (%lld, %lld)\n", __FILE__, __LINE__, #left, \
                    #right, left_value, right_value);                                            \
            abort();                                                                             \
        }                                                                                        \
    } while (0)

/* The byte that belongs at an offset of a test file. */
static inline unsigned char byte_at(uint64_t offset)
{
    return (unsigned char)((offset * 0x9e3779b97f4a7c15u) >> 56);
}

static inline void fill_bytes(void *buffer, uint64_t offset, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        ((unsigned char *)buffer)[i] = byte_at(offset + i);
    }
}

static inline void check_bytes(const void *buffer, uint64_t offset, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        CHECK_EQ(((const unsigned char *)buffer)[i], byte_at(offset + i));
    }
}

static inline void *aligned_buffer(size_t bytes)
{
    void *buffer;
    CHECK_EQ(posix_memalign(&buffer, 4096, bytes), 0);
    memset(buffer, 0, bytes);
    return buffer;
}

/* A temporary directory with one file in it, "data", under TMPDIR or the current directory. */
struct test_file {
    char directory[4096 - 16];
    char path[4096];
    uint64_t bytes;
};

static inline void test_file_make(struct test_file *file, uint64_t bytes)
{
    const char *parent = getenv("TMPDIR");
    snprintf(file->directory, sizeof file->directory, "%s/kvs-io-XXXXXX",
             parent != NULL ? parent : ".");
    CHECK(mkdtemp(file->directory) != NULL);
    snprintf(file->path, sizeof file->path, "%s/data", file->directory);
    file->bytes = bytes;
    unsigned char *content = malloc(bytes);
    CHECK(content != NULL);
    fill_bytes(content, 0, bytes);
    FILE *out = fopen(file->path, "wb");
    CHECK(out != NULL && fwrite(content, 1, bytes, out) == bytes && fclose(out) == 0);
    free(content);
}

static inline void test_file_remove(const struct test_file *file)
{
    unlink(file->path);
    rmdir(file->directory);
}

/* Runs ops to the end; each must come back exactly once, whatever the order. */
static inline void run_ops(struct kvs_io_engine *engine, struct kvs_io_op *ops, unsigned count)
{
    struct kvs_io_op **waiting = calloc(count, sizeof *waiting);
    char *came_back = calloc(count, 1);
    CHECK(waiting != NULL && came_back != NULL);
    for (unsigned i = 0; i < count; i++) {
        ops[i].owner = &came_back[i];
        waiting[i] = &ops[i];
    }
    unsigned submitted = 0, reaped = 0;
    while (reaped < count) {
        int taken = engine->calls->submit(engine, waiting + submitted, count - submitted);
        CHECK(taken >= 0);
        submitted += (unsigned)taken;
        CHECK(submitted - reaped <= engine->depth);
        struct kvs_io_op *done[5];
        int finished = engine->calls->reap(engine, done, 5, -1);
        CHECK(finished >= 0 && finished <= 5);
        for (int i = 0; i < finished; i++) {
            char *mark = done[i]->owner;
            CHECK_EQ(*mark, 0);
            *mark = 1;
        }
        reaped += (unsigned)finished;
    }
    CHECK_EQ(submitted, count);
    free(waiting);
    free(came_back);
}

static inline struct kvs_io_op op_of(enum kvs_io_kind kind, int fd, void *buffer, uint64_t offset,
                                     uint32_t bytes)
{
    return (struct kvs_io_op){
        .kind = kind, .fd = fd, .buffer = buffer, .offset = offset, .bytes = bytes};
}

static inline int32_t run_one(struct kvs_io_engine *engine, struct kvs_io_op op)
{
    run_ops(engine, &op, 1);
    return op.result;
}

static inline int count_fds(void)
{
    DIR *directory = opendir("/proc/self/fd");
    CHECK(directory != NULL);
    int count = 0;
    while (readdir(directory) != NULL) {
        count++;
    }
    closedir(directory);
    return count;
}

#endif
