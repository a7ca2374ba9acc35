/*
 * checks.h: what must hold of any bytes that are read as an extent's header or as a small file of a
 * root. The fuzzers call it with what they make up, tests/c/test_corpus.c with the corpus.
 *
 * An input of a header is the beginning of a file; trailing zeros may be left out, and up to a
 * whole page they are put back (the checks run a second time). An input of a small file is one byte
 * that says which (its value modulo 3: a name, root.json, removed.ring) and the file.
 */
#ifndef KVS_FUZZ_CHECKS_H
#define KVS_FUZZ_CHECKS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                    \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                        \
        }                                                                   \
    } while (0)

enum root_file { FILE_NAME, FILE_ROOT_JSON, FILE_REMOVED_RING, ROOT_FILES };

/* 1: it was accepted. */
int check_header_input(const uint8_t *data, size_t size);
int check_root_file_input(const uint8_t *data, size_t size);

/* Make the checksums fit again, so that what lies behind them is reached. At most max bytes long
 * afterwards; the new size. */
size_t seal_header(uint8_t *data, size_t size, size_t max);
size_t seal_root_file(uint8_t *data, size_t size, size_t max);

#endif
