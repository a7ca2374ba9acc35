/*
 * A match makes no system call: the kernel is asked to refuse all of this thread's while one runs.
 * A hit, a miss and a chain that ends in the middle, with the store's real clock and a disk below.
 *
 * The store's lock is a mutex: who meets another thread in it waits by a system call (futex). That
 * one is made all the same and counted apart.
 */
#define _GNU_SOURCE /* REG_RAX */
#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "format_test.h"
#include "kvs.h"

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#define PR_SYS_DISPATCH_ON 1
#endif

enum { BLOCKS = 40, CELL = 4096, MATCHES = 1000 };

static volatile char dispatch; /* 1: the kernel refuses system calls of this thread */
static volatile int refused, waits;

static void on_refused(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    dispatch = 0; /* or the return from here would be refused, too */
    if (info->si_syscall != SYS_futex) {
        refused++;
        return;
    }
    waits++;
#ifdef __x86_64__
    greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    long result = syscall(SYS_futex, regs[REG_RDI], regs[REG_RSI], regs[REG_RDX], regs[REG_R10],
                          regs[REG_R8], regs[REG_R9]);
    regs[REG_RAX] = result < 0 ? -errno : result;
#else
    (void)context;
#endif
}

static int refusal_starts(void)
{
    struct sigaction action = {.sa_sigaction = on_refused, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGSYS, &action, NULL) == 0);
    return prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, 0, 0, &dispatch);
}

static struct kvs_store *store_open(const char *path)
{
    struct kvs_root_options root = {.path = path, .capacity_bytes = 1 << 28};
    struct kvs_class class = {"chat", 7 * 86400};
    struct kvs_options options = {.roots = &root,
                                  .root_count = 1,
                                  .classes = &class,
                                  .class_count = 1,
                                  .engine = KVS_ENGINE_THREADS,
                                  .pool_bytes = 16 << 20,
                                  .manual_ticks = 1};
    struct kvs_store *store = NULL;
    char message[256];
    CHECK(kvs_open(&options, &store, message, sizeof(message)) == 0);
    return store;
}

static struct kvs_cache *cache_open(struct kvs_store *store)
{
    static const uint32_t part_counts[] = {1}, part_bytes[] = {CELL};
    struct kvs_layout layout = {.layer_count = 1,
                                .block_tokens = 1,
                                .extent_blocks = 16,
                                .part_counts = part_counts,
                                .part_bytes = part_bytes,
                                .description = "{}"};
    struct kvs_cache *cache = NULL;
    CHECK(kvs_cache_open(store, &layout, &cache) == 0);
    return cache;
}

static int64_t finish(struct kvs_ticket *ticket)
{
    int64_t result = -1;
    CHECK(kvs_ticket_wait(ticket, 20ll * 1000000000) == 0);
    CHECK(kvs_ticket_done(ticket, &result));
    kvs_ticket_close(ticket);
    return result;
}

static void put(struct kvs_cache *cache, const struct kvs_key *keys)
{
    static uint8_t cells[BLOCKS][CELL];
    struct kvs_source source = {cells, CELL};
    struct kvs_writer *writer;
    struct kvs_ticket *ticket;
    CHECK(kvs_writer_open(cache, keys, BLOCKS, 0, -1, 0, NULL, NULL, &writer) == 0);
    CHECK(kvs_writer_put(writer, 0, 0, BLOCKS, &source, &ticket) == 0);
    CHECK(finish(ticket) == 0);
    CHECK(kvs_writer_commit(writer, &ticket) == 0);
    CHECK(finish(ticket) == BLOCKS);
    kvs_writer_close(writer);
}

static void match_refused(struct kvs_cache *cache, const struct kvs_key *keys, uint64_t count,
                          uint64_t expected)
{
    struct kvs_match match;
    refused = waits = 0;
    for (int i = 0; i < MATCHES; i++) {
        dispatch = 1;
        int error = kvs_match(cache, keys, count, &match);
        dispatch = 0;
        CHECK(error == 0 && match.blocks == expected);
    }
    CHECK(refused == 0);
    CHECK(waits < MATCHES / 10); /* a file worker may still be at the end of the commit */
}

int main(void)
{
    char path[] = "kvs-test-match-XXXXXX", command[64];
    int32_t tokens[BLOCKS + 24];
    struct kvs_key keys[BLOCKS + 24], others[BLOCKS];
    for (int32_t i = 0; i < BLOCKS + 24; i++) {
        tokens[i] = i;
    }
    CHECK(kvs_keys_chain(tokens, BLOCKS + 24, 1, NULL, 0, NULL, 0, keys) == 0);
    CHECK(kvs_keys_chain(tokens + 1, BLOCKS, 1, NULL, 0, NULL, 0, others) == 0);
    CHECK(mkdtemp(path));
    struct kvs_store *store = store_open(path);
    struct kvs_cache *cache = cache_open(store);
    put(cache, keys);
    if (refusal_starts() < 0) {
        printf("skip: this kernel refuses no system calls for a thread (errno %d)\n", errno);
    } else {
        dispatch = 1;
        syscall(SYS_getppid);
        CHECK(refused == 1 && dispatch == 0);
        match_refused(cache, keys, BLOCKS, BLOCKS);
        match_refused(cache, keys, BLOCKS + 24, BLOCKS);
        match_refused(cache, others, BLOCKS, 0);
        printf("ok no system call in 3000 matches\n");
    }
    kvs_cache_close(cache);
    kvs_close(store);
    snprintf(command, sizeof(command), "rm -rf '%s'", path);
    CHECK(system(command) == 0);
    return 0;
}
