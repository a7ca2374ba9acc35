/*
 * root_files.c: reads names of extents, root.json and removed.ring, see root_files.h.
 *
 * Invariant: nothing outside the given bytes is read, whatever they hold, and what is accepted is
 * spelt exactly as we would write it.
 */
#include "root_files.h"

#include <errno.h>
#include <string.h>

#include "xxh3.h"

static int hex_value(char digit)
{
    if (digit >= '0' && digit <= '9') {
        return digit - '0';
    }
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* 2 * count digits. */
static int hex_read(const char *digits, uint32_t count, uint8_t *out)
{
    for (uint32_t i = 0; i < count; i++) {
        int high = hex_value(digits[2 * i]);
        int low = hex_value(digits[2 * i + 1]);
        if (high < 0 || low < 0) {
            return -EINVAL;
        }
        out[i] = (uint8_t)(high << 4 | low);
    }
    return 0;
}

int kvs_key_from_name(const char *name, struct kvs_key *out)
{
    if (strlen(name) != 2 * KVS_KEY_BYTES + 3 || strcmp(name + 2 * KVS_KEY_BYTES, ".kv") != 0) {
        return -EINVAL;
    }
    return hex_read(name, KVS_KEY_BYTES, out->bytes);
}

int kvs_uuid_from_text(const char *text, size_t bytes, uint8_t uuid[KVS_UUID_BYTES])
{
    static const char before[] = "\"uuid\": \"";
    const size_t lead = sizeof(before) - 1, all = lead + 2 * KVS_UUID_BYTES + 1;
    uint8_t found[KVS_UUID_BYTES];
    for (size_t at = 0; at + all <= bytes; at++) {
        if (memcmp(text + at, before, lead) == 0) {
            if (text[at + all - 1] != '"' || hex_read(text + at + lead, KVS_UUID_BYTES, found)) {
                return -EINVAL;
            }
            memcpy(uuid, found, sizeof(found));
            return 0;
        }
    }
    return -EINVAL;
}

int kvs_ring_is_whole(const struct kvs_ring *ring)
{
    return memcmp(ring->magic, KVS_RING_MAGIC, sizeof(ring->magic)) == 0 &&
           ring->count <= KVS_RING_MAX &&
           ring->xxh3 == kvs_xxh3(ring->entries, ring->count * sizeof(ring->entries[0]));
}
