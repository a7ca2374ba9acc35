/*
 * names.h: what a directory of a root lists, of one kind. Makes one call of fs.h, so file workers
 * only; takes no lock.
 */
#ifndef KVS_NAMES_H
#define KVS_NAMES_H

#include "store.h"

enum kvs_name_kind {
    KVS_NAME_NAMESPACE,
    KVS_NAME_BUCKET,
    KVS_NAME_EXTENT,
    KVS_NAME_TEMPORARY /* as FORMAT has them; a tmp/ may hold what is not ours to remove */
};

struct kvs_names {
    enum kvs_name_kind kind;
    char (*list)[KVS_PATH_BYTES]; /* free() it, also after an error */
    uint32_t count, room;
};

/* A directory that is not there has none. 0, or an error with what was listed before it. */
int kvs_names_of(struct kvs_root *root, const char *path, enum kvs_name_kind kind,
                 struct kvs_names *out);

#endif
