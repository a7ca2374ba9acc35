/*
 * history.c: see history.h. Thread-safe; whoever made the history outlives those that write it. A
 * history that cannot be written ends the test: a hole in it would look like a change not made.
 */
#include "history.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

struct kvs_history {
    pthread_mutex_t mutex; /* held while a change is made */
    int fd;
};

int kvs_history_open(const char *path, struct kvs_history **out)
{
    struct kvs_history *history = calloc(1, sizeof *history);
    if (history == NULL) {
        return -ENOMEM;
    }
    history->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    if (history->fd < 0) {
        const int error = -errno;
        free(history);
        return error;
    }
    pthread_mutex_init(&history->mutex, NULL);
    *out = history;
    return 0;
}

void kvs_history_close(struct kvs_history *history)
{
    close(history->fd);
    pthread_mutex_destroy(&history->mutex);
    free(history);
}

void kvs_history_begin(struct kvs_history *history)
{
    if (history != NULL) {
        pthread_mutex_lock(&history->mutex);
    }
}

static struct iovec piece(const void *data, size_t bytes)
{
    return (struct iovec){.iov_base = (void *)(uintptr_t)data, .iov_len = bytes};
}

void kvs_history_end(struct kvs_history *history, int64_t result, const struct kvs_change *change)
{
    if (history == NULL) {
        return;
    }
    struct stat file = {0};
    if (result >= 0 && change->fd >= 0) {
        fstat(change->fd, &file);
    }
    const struct kvs_history_entry entry = {
        .call = change->call,
        .path_bytes = change->path != NULL ? (uint32_t)strlen(change->path) : 0,
        .target_bytes = change->target != NULL ? (uint32_t)strlen(change->target) : 0,
        .data_bytes = change->data_bytes,
        .inode = file.st_ino,
        .offset = change->offset,
        .atime_s = change->atime_s,
        .mtime_s = change->mtime_s};
    if (result >= 0) {
        const struct iovec pieces[] = {
            piece(&entry, sizeof entry), piece(change->path, entry.path_bytes),
            piece(change->target, entry.target_bytes), piece(change->data, entry.data_bytes)};
        const ssize_t bytes = (ssize_t)(sizeof entry + entry.path_bytes + entry.target_bytes) +
                              (ssize_t)entry.data_bytes;
        const ssize_t written = writev(history->fd, pieces, 4);
        assert(written == bytes);
        (void)written;
        (void)bytes;
    }
    pthread_mutex_unlock(&history->mutex);
}
