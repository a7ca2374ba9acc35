/* What must hold of names, root.json and removed.ring, whatever the bytes; see checks.h. */
#include "checks.h"

#include <string.h>

#include "root_files.h"
#include "xxh3.h"

static char hex(uint8_t value)
{
    return (char)(value < 10 ? '0' + value : 'a' + value - 10);
}

static int spells(const char *digits, const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (digits[2 * i] != hex(bytes[i] >> 4) || digits[2 * i + 1] != hex(bytes[i] & 15)) {
            return 0;
        }
    }
    return 1;
}

/* A name that is accepted is the one we would give to this key. */
static int check_name(const uint8_t *data, size_t size)
{
    struct kvs_key key;
    char *name = malloc(size + 1);
    CHECK(name);
    memcpy(name, data, size);
    name[size] = 0;
    int good = kvs_key_from_name(name, &key) == 0;
    if (good) {
        CHECK(strlen(name) == 67 && spells(name, key.bytes, 32) && !strcmp(name + 64, ".kv"));
    }
    free(name);
    return good;
}

static int check_root_json(const uint8_t *data, size_t size)
{
    uint8_t uuid[KVS_UUID_BYTES], before[KVS_UUID_BYTES];
    char *text = malloc(size + !size);
    int spelt = 0;
    CHECK(text);
    memcpy(text, data, size);
    memset(uuid, 0xA5, sizeof(uuid));
    memcpy(before, uuid, sizeof(uuid));
    int good = kvs_uuid_from_text(text, size, uuid) == 0;
    for (size_t at = 0; good && at + 32 <= size; at++) {
        spelt |= spells(text + at, uuid, sizeof(uuid));
    }
    CHECK(good ? spelt : memcmp(uuid, before, sizeof(uuid)) == 0);
    free(text);
    return good;
}

static int check_ring(const uint8_t *data, size_t size)
{
    struct kvs_ring *ring = calloc(1, sizeof(*ring));
    CHECK(ring);
    memcpy(ring, data, size < sizeof(*ring) ? size : sizeof(*ring));
    int good = kvs_ring_is_whole(ring);
    if (good) {
        CHECK(ring->count <= KVS_RING_MAX && memcmp(ring->magic, "KVSREMOV", 8) == 0);
        uint64_t bits = 8 * (24 + ring->count * sizeof(ring->entries[0]));
        uint64_t bit = kvs_xxh3(data, size) % bits;
        ((uint8_t *)ring)[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK(!kvs_ring_is_whole(ring));
    }
    free(ring);
    return good;
}

int check_root_file_input(const uint8_t *data, size_t size)
{
    static int (*const checks[ROOT_FILES])(const uint8_t *, size_t) = {
        [FILE_NAME] = check_name,
        [FILE_ROOT_JSON] = check_root_json,
        [FILE_REMOVED_RING] = check_ring,
    };
    return size > 0 ? checks[data[0] % ROOT_FILES](data + 1, size - 1) : 0;
}

size_t seal_root_file(uint8_t *data, size_t size, size_t max)
{
    const size_t start = 1 + offsetof(struct kvs_ring, entries);
    if (size == 0 || data[0] % ROOT_FILES != FILE_REMOVED_RING || max < start) {
        return size;
    }
    if (size < start) {
        memset(data + size, 0, start - size);
        size = start;
    }
    uint64_t count, xxh3;
    memcpy(&count, data + 1 + offsetof(struct kvs_ring, count), sizeof(count));
    if (count > (size - start) / sizeof(struct kvs_removed)) {
        return size;
    }
    xxh3 = kvs_xxh3(data + start, count * sizeof(struct kvs_removed));
    memcpy(data + 1 + offsetof(struct kvs_ring, xxh3), &xxh3, sizeof(xxh3));
    return size;
}
