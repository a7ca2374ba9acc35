/*
 * test_corpus.c: every input that the fuzzers keep, and each cut short, once through the same
 * checks: what was found once stays found where there is no fuzzer.
 *
 *   test_corpus [DIRECTORY]    with header/ and root_files/; default: tests/fuzz/corpus
 */
#include <dirent.h>
#include <string.h>

#include "../fuzz/checks.h"

enum { INPUT_MAX = 1 << 17, INPUTS_MIN = 10 };

static size_t read_input(const char *path, uint8_t *data)
{
    FILE *stream = fopen(path, "rb");
    CHECK(stream);
    size_t size = fread(data, 1, INPUT_MAX, stream);
    CHECK(size < INPUT_MAX && !ferror(stream));
    fclose(stream);
    return size;
}

static void run_all(const char *corpus, const char *kind, int (*check)(const uint8_t *, size_t),
                    size_t (*seal)(uint8_t *, size_t, size_t))
{
    static uint8_t data[INPUT_MAX];
    char directory[1024], path[2048];
    int inputs = 0, accepted = 0;
    snprintf(directory, sizeof(directory), "%s/%s", corpus, kind);
    DIR *open = opendir(directory);
    if (!open) {
        fprintf(stderr, "no %s: run from the repository's root, or name the corpus\n", directory);
        exit(1);
    }
    for (const struct dirent *entry = readdir(open); entry; entry = readdir(open)) {
        if (entry->d_name[0] == '.') {
            continue;
        }
        snprintf(path, sizeof(path), "%s/%s", directory, entry->d_name);
        size_t size = read_input(path, data);
        accepted += check(data, size);
        inputs++;
        for (size_t cut = size; cut > 0; cut = cut / 8 * 7) {
            check(data, cut - 1);
        }
        check(data, seal(data, size, INPUT_MAX));
    }
    closedir(open);
    CHECK(inputs >= INPUTS_MIN && accepted > 0 && accepted < inputs);
    printf("ok %s: %d inputs, %d accepted\n", kind, inputs, accepted);
}

int main(int argc, char **argv)
{
    const char *corpus = argc > 1 ? argv[1] : "tests/fuzz/corpus";
    run_all(corpus, "header", check_header_input, seal_header);
    run_all(corpus, "root_files", check_root_file_input, seal_root_file);
    return 0;
}
