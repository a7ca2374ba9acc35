/*
 * io_choose.h: which engine serves a directory. Found out by trying, best first, never by version.
 */
#ifndef KVS_IO_CHOOSE_H
#define KVS_IO_CHOOSE_H

#include "kvs.h"

enum { KVS_ENGINE_WHY_BYTES = 256 };

struct kvs_io_wish {
    enum kvs_engine_choice engine; /* AUTO: the best that works; else this one and no other */
    unsigned depth;
    const char *file_system; /* as struct kvs_fs_space has it */
    int direct;              /* transfers go round the page cache */
};

/* 0 and *out, or the negative errno of the last one tried. `why` gets what better engines said, or
 * would be no use for; "" when there was none. */
int kvs_io_choose(const struct kvs_io_wish *wish, struct kvs_io_engine **out,
                  char why[KVS_ENGINE_WHY_BYTES]);

#endif
