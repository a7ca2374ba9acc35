/*
 * huge_pages.c: memory in 2 MiB pages, present before anybody uses it.
 *
 * Tried in order: reserved pages (hugetlb), transparent huge pages (madvise, then MADV_COLLAPSE for
 * what the page faults did not get), small pages. Less than huge pages is slower, never an error;
 * who wants to know asks for the kind and the coverage.
 *
 * Every page is faulted in here: a pool that is registered with io_uring or CUDA is pinned at once,
 * and memory that is not there must be known at open, as -ENOMEM, not later by a killed process.
 * The kernel rather kills than refuses, so the amount is first compared with what is available.
 */
#define _GNU_SOURCE 1

#include "huge_pages.h"

#include "arena.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MAP_HUGE_2MB
#define MAP_HUGE_2MB (21 << 26)
#endif
#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif

enum { MAX_HELPERS = 7 };

/* Faulted in at a time: between two steps other threads get at the address space. */
static const uint64_t FAULT_STEP_BYTES = (uint64_t)64 << 20;

/* The number that follows `key` at the start of a line of `path`; UINT64_MAX when there is none. */
static uint64_t number_after(const char *path, const char *key)
{
    uint64_t number = UINT64_MAX;
    char line[256];
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return number;
    }
    while (fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, key, strlen(key)) == 0) {
            if (sscanf(line + strlen(key), "%" SCNu64, &number) != 1) {
                number = UINT64_MAX;
            }
            break;
        }
    }
    fclose(file);
    return number;
}

/* What the control group (v2) of this process still allows; UINT64_MAX without a limit. */
static uint64_t group_headroom(void)
{
    char line[1024];
    char path[1200];
    int found = 0;
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (file == NULL) {
        return UINT64_MAX;
    }
    while (!found && fgets(line, sizeof line, file) != NULL) {
        found = strncmp(line, "0::", 3) == 0;
    }
    fclose(file);
    if (!found) {
        return UINT64_MAX;
    }
    line[strcspn(line, "\n")] = '\0';
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", line + 3);
    const uint64_t limit = number_after(path, "");
    if (limit == UINT64_MAX) {
        return UINT64_MAX;
    }
    /* The page cache is counted too, but it gives way; anonymous memory does not. */
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.stat", line + 3);
    const uint64_t used = number_after(path, "anon ");
    return used == UINT64_MAX ? limit : (used < limit ? limit - used : 0);
}

static int is_available(uint64_t bytes)
{
    const uint64_t kib = number_after("/proc/meminfo", "MemAvailable:");
    return (kib == UINT64_MAX || bytes / 1024 <= kib) && bytes <= group_headroom();
}

/* Steps are handed out to whichever thread is free next. */
struct fault_work {
    char *base;
    uint64_t bytes;
    uint64_t next;   /* atomic access */
    uint32_t failed; /* atomic access */
};

static int fault_step(char *base, uint64_t bytes)
{
    if (madvise(base, bytes, MADV_POPULATE_WRITE) == 0) {
        return 0;
    }
    if (errno != EINVAL) {
        return -ENOMEM;
    }
    for (uint64_t page = 0; page < bytes; page += 4096) { /* before Linux 5.14 */
        ((volatile char *)base)[page] = 0;
    }
    return 0;
}

static void *fault_steps(void *arg)
{
    struct fault_work *work = arg;
    while (!__atomic_load_n(&work->failed, __ATOMIC_RELAXED)) {
        const uint64_t at = __atomic_fetch_add(&work->next, FAULT_STEP_BYTES, __ATOMIC_RELAXED);
        if (at >= work->bytes) {
            break;
        }
        const uint64_t left = work->bytes - at;
        if (fault_step(work->base + at, left < FAULT_STEP_BYTES ? left : FAULT_STEP_BYTES) != 0) {
            __atomic_store_n(&work->failed, 1, __ATOMIC_RELAXED);
        }
    }
    return NULL;
}

/* Zeroing is work for the processor, so all of them share it; a small pool needs no help. */
static int fault_in(char *base, uint64_t bytes)
{
    struct fault_work work = {.base = base, .bytes = bytes};
    pthread_t helpers[MAX_HELPERS];
    cpu_set_t usable;
    unsigned wanted =
        sched_getaffinity(0, sizeof usable, &usable) == 0 ? (unsigned)CPU_COUNT(&usable) - 1 : 0;
    const uint64_t steps_to_share = (bytes - 1) / FAULT_STEP_BYTES;
    wanted = wanted < MAX_HELPERS ? wanted : MAX_HELPERS;
    wanted = wanted < steps_to_share ? wanted : (unsigned)steps_to_share;
    unsigned started = 0;
    while (started < wanted && pthread_create(&helpers[started], NULL, fault_steps, &work) == 0) {
        started++;
    }
    fault_steps(&work);
    for (unsigned i = 0; i < started; i++) {
        pthread_join(helpers[i], NULL);
    }
    return work.failed ? -ENOMEM : 0;
}

static int map_hugetlb(uint64_t bytes, void **out)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_HUGE_2MB, -1, 0);
    if (base == MAP_FAILED) {
        return -errno;
    }
    if (fault_in(base, bytes) != 0) {
        munmap(base, bytes); /* a control group may refuse what the reservation granted */
        return -ENOMEM;
    }
    *out = base;
    return 0;
}

/* Small pages, aligned to huge ones, not faulted in. */
static int map_aligned(uint64_t bytes, void **out)
{
    char *start = mmap(NULL, bytes + KVS_HUGE_PAGE_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) {
        return -ENOMEM;
    }
    const uint64_t before = kvs_huge_round((uintptr_t)start) - (uintptr_t)start;
    if (before > 0) {
        munmap(start, before);
    }
    if (before < KVS_HUGE_PAGE_BYTES) {
        munmap(start + before + bytes, KVS_HUGE_PAGE_BYTES - before);
    }
    *out = start + before;
    return 0;
}

int kvs_huge_alloc(uint64_t bytes, void **out, enum kvs_page_kind *kind)
{
    const uint64_t rounded = kvs_huge_round(bytes);
    if (bytes == 0) {
        return -EINVAL;
    }
    if (rounded == 0 || rounded > (uint64_t)1 << 46) {
        return -ENOMEM;
    }
    if (map_hugetlb(rounded, out) == 0) {
        *kind = KVS_PAGES_HUGETLB;
        return 0;
    }
    void *base = NULL;
    if (!is_available(rounded) || map_aligned(rounded, &base) != 0) {
        return -ENOMEM;
    }
    const int advised = madvise(base, rounded, MADV_HUGEPAGE) == 0;
    if (fault_in(base, rounded) != 0) {
        munmap(base, rounded);
        return -ENOMEM;
    }
    const int collapsed = madvise(base, rounded, MADV_COLLAPSE) == 0;
    const int huge = (advised && collapsed) || kvs_huge_coverage(base, rounded) > 0.0;
    *kind = huge ? KVS_PAGES_TRANSPARENT_HUGE : KVS_PAGES_SMALL;
    *out = base;
    return 0;
}

void kvs_huge_free(void *address, uint64_t bytes)
{
    if (address != NULL) {
        munmap(address, kvs_huge_round(bytes));
    }
}

void kvs_huge_make_private(void *base, uint64_t bytes)
{
    char name[48];
    snprintf(name, sizeof name, "kvstore pool %" PRIxPTR, (uintptr_t)base);
    madvise(base, bytes, MADV_DONTFORK);
    /* Neighbouring mappings with different names do not merge, so smaps counts exactly ours. */
    prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, base, bytes, name);
}

/* A mapping of which only `overlap` of `size` bytes are ours counts in proportion. */
double kvs_huge_coverage(const void *base, uint64_t bytes)
{
    const uint64_t first = (uintptr_t)base;
    double huge_bytes = 0.0;
    double ours = 0.0; /* share of the mapping being read */
    char line[512], buffer[1 << 15];
    FILE *file = fopen("/proc/self/smaps", "re");
    if (file == NULL) {
        return 0.0;
    }
    /* A process has thousands of lines there, and only the mappings' begin with a small letter or a
     * digit. They come in order of address. */
    uint64_t start = 0;
    setvbuf(file, buffer, _IOFBF, sizeof buffer);
    while (start < first + bytes && fgets(line, sizeof line, file) != NULL) {
        uint64_t end = 0;
        uint64_t kib = 0;
        if (!isupper((unsigned char)line[0]) &&
            sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &start, &end) == 2 && start < end) {
            const uint64_t low = start > first ? start : first;
            const uint64_t high = end < first + bytes ? end : first + bytes;
            ours = low < high ? (double)(high - low) / (double)(end - start) : 0.0;
        } else if (ours > 0.0 && sscanf(line, "AnonHugePages: %" SCNu64, &kib) == 1) {
            huge_bytes += ours * (double)kib * 1024.0;
        }
    }
    fclose(file);
    const double share = huge_bytes / (double)bytes;
    return share < 1.0 ? share : 1.0;
}
