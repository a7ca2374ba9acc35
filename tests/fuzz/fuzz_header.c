/*
 * fuzz_header.c: libFuzzer on headers of extents. Half of what it makes up is given right
 * checksums, and half of its changes go to the fixed header, the section table or one section:
 * random bytes alone hardly ever get past the first comparison.
 */
#include <string.h>

#include "checks.h"
#include "format.h"

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WINDOW_MAX = 2048 };

/* Changes data[from..from + bytes), and nothing around it. */
static void mutate_window(uint8_t *data, size_t size, size_t from, size_t bytes)
{
    uint8_t window[WINDOW_MAX] = {0};
    if (from >= size) {
        return;
    }
    bytes = bytes < size - from ? bytes : size - from;
    bytes = bytes < WINDOW_MAX ? bytes : WINDOW_MAX;
    memcpy(window, data + from, bytes);
    if (bytes > 0) {
        LLVMFuzzerMutate(window, bytes, bytes);
    }
    memcpy(data + from, window, bytes);
}

static void mutate_section(uint8_t *data, size_t size, unsigned which)
{
    struct kvs_disk_header header;
    struct kvs_disk_section section;
    if (size < KVS_FORMAT_FIRST_SECTION) {
        return;
    }
    memcpy(&header, data, sizeof(header));
    uint32_t count = header.section_count < KVS_FORMAT_SECTIONS_MAX ? header.section_count
                                                                    : KVS_FORMAT_SECTIONS_MAX;
    if (count > 0) {
        memcpy(&section, data + sizeof(header) + which % count * sizeof(section), sizeof(section));
        mutate_window(data, size, section.offset, section.bytes);
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
    switch (seed / 2 % 4) {
    case 0:
        mutate_window(data, size, 0, sizeof(struct kvs_disk_header));
        break;
    case 1:
        mutate_window(data, size, sizeof(struct kvs_disk_header),
                      9 * sizeof(struct kvs_disk_section));
        break;
    case 2:
        mutate_section(data, size, seed / 8);
        break;
    default:
        size = LLVMFuzzerMutate(data, size, max);
    }
    return seed % 2 ? seal_header(data, size, max) : size;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check_header_input(data, size);
    return 0;
}
