/*
 * names.c: see names.h. Keeps only what is wanted: who else puts names into our directories costs
 * us no memory.
 */
#include "names.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "root_files.h"

static int is_hex(const char *text, size_t length)
{
    return strlen(text) == length && strspn(text, "0123456789abcdef") == length;
}

static int is_temporary(const char *name)
{
    size_t length = strlen(name);
    return length > 7 && strncmp(name, "kv-", 3) == 0 && strcmp(name + length - 4, ".tmp") == 0;
}

static int is_wanted(enum kvs_name_kind kind, const char *name, int is_directory)
{
    struct kvs_key key;
    switch (kind) {
    case KVS_NAME_NAMESPACE:
        return is_directory && is_hex(name, KVS_NAMESPACE_NAME_BYTES - 1);
    case KVS_NAME_BUCKET:
        return is_directory && is_hex(name, 3);
    case KVS_NAME_EXTENT:
        return !is_directory && kvs_key_from_name(name, &key) == 0;
    default:
        return !is_directory && is_temporary(name);
    }
}

static int name_add(void *argument, const char *name, uint8_t is_directory)
{
    struct kvs_names *names = argument;
    if (name[0] == '.' || strlen(name) >= KVS_PATH_BYTES ||
        !is_wanted(names->kind, name, is_directory)) {
        return 0;
    }
    if (names->count == names->room) {
        uint32_t room = names->room ? names->room * 2 : 64;
        void *grown = realloc(names->list, room * sizeof(*names->list));
        if (!grown) {
            return -ENOMEM;
        }
        names->list = grown;
        names->room = room;
    }
    strcpy(names->list[names->count++], name);
    return 0;
}

int kvs_names_of(struct kvs_root *root, const char *path, enum kvs_name_kind kind,
                 struct kvs_names *out)
{
    *out = (struct kvs_names){.kind = kind};
    int error = root->store->fs->calls->list(root->store->fs, root->fd, path, name_add, out);
    return error == -ENOENT ? 0 : error;
}
