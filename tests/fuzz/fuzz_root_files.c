/* fuzz_root_files.c: libFuzzer on names, root.json and removed.ring, half with right checksums. */
#include "checks.h"

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
    size = LLVMFuzzerMutate(data, size, max);
    return seed % 2 ? seal_root_file(data, size, max) : size;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check_root_file_input(data, size);
    return 0;
}
