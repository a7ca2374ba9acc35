/*
 * namespace.c: one namespace per layout fingerprint, its geometry and its names on disk.
 *
 * Pure but for its list in the store. Invariant: a namespace is never freed before the store is, so
 * extents and leases may point at it without counting.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store.h"
#include "xxh3.h"

static void hex_of(const uint8_t *bytes, uint32_t count, char *out)
{
    static const char digits[] = "0123456789abcdef";
    for (uint32_t i = 0; i < count; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[2 * count] = 0;
}

void kvs_bucket_of(const struct kvs_namespace *ns, const struct kvs_key *key, char *path,
                   uint32_t *bucket)
{
    *bucket = (uint32_t)key->bytes[0] << 4 | key->bytes[1] >> 4;
    snprintf(path, KVS_PATH_BYTES, "%s/%03x", ns->name, *bucket);
}

void kvs_path_of(const struct kvs_namespace *ns, const struct kvs_key *key, char *path)
{
    char hex[2 * KVS_KEY_BYTES + 1];
    hex_of(key->bytes, KVS_KEY_BYTES, hex);
    snprintf(path, KVS_PATH_BYTES, "%s/%.3s/%s.kv", ns->name, hex, hex);
}

struct kvs_namespace *kvs_namespace_find_locked(struct kvs_store *store, const char *name)
{
    for (uint32_t i = 0; i < store->namespace_count; i++) {
        if (strcmp(store->namespaces[i]->name, name) == 0) {
            return store->namespaces[i];
        }
    }
    return NULL;
}

int kvs_namespace_add_locked(struct kvs_store *store, const char *name, struct kvs_namespace **out)
{
    struct kvs_namespace **grown =
        realloc(store->namespaces, (store->namespace_count + 1) * sizeof(*grown));
    if (!grown) {
        return -ENOMEM;
    }
    store->namespaces = grown;
    struct kvs_namespace *ns = calloc(1, sizeof(*ns));
    if (!ns) {
        return -ENOMEM;
    }
    snprintf(ns->name, sizeof(ns->name), "%s", name);
    ns->mix = kvs_xxh3(name, strlen(name));
    grown[store->namespace_count++] = ns;
    *out = ns;
    return 0;
}

uint32_t kvs_cells_next(const struct kvs_namespace *ns, uint32_t layer)
{
    while (layer < ns->layer_count && ns->cell_bytes[layer] == 0) {
        layer++;
    }
    return layer;
}

void kvs_namespace_free(struct kvs_namespace *ns)
{
    for (uint32_t i = 0; i < KVS_ROOTS_MAX; i++) {
        free(ns->seen[i]);
    }
    free(ns->cell_bytes);
    free(ns->part_counts);
    free(ns->part_first);
    free(ns->part_bytes);
    free(ns->description);
    free(ns);
}

static int layout_check(const struct kvs_layout *layout)
{
    if (layout->layer_count == 0 || layout->layer_count > KVS_LAYERS_MAX ||
        layout->block_tokens == 0) {
        return -EINVAL;
    }
    uint32_t blocks = layout->extent_blocks;
    if (blocks != 1 && (blocks == 0 || blocks % 16 != 0 || blocks > KVS_EXTENT_BLOCKS_MAX)) {
        return -EINVAL;
    }
    return 0;
}

static int parts_copy(struct kvs_namespace *ns, const struct kvs_layout *layout)
{
    uint32_t part = 0;
    for (uint32_t layer = 0; layer < layout->layer_count; layer++) {
        uint64_t cell = 0;
        if (layout->part_counts[layer] > KVS_PARTS_MAX) {
            return -EINVAL;
        }
        ns->part_counts[layer] = layout->part_counts[layer];
        ns->part_first[layer] = part;
        for (uint32_t i = 0; i < layout->part_counts[layer]; i++, part++) {
            ns->part_bytes[part] = layout->part_bytes[part];
            cell += layout->part_bytes[part];
        }
        if (cell > KVS_IO_MAX_BYTES) {
            return -EINVAL;
        }
        ns->cell_bytes[layer] = (uint32_t)cell;
        ns->block_bytes += cell;
        ns->largest_cell = cell > ns->largest_cell ? cell : ns->largest_cell;
    }
    return ns->block_bytes > 0 ? 0 : -EINVAL;
}

/* Fills a namespace that was so far only seen on disk (or is new) with its layout. */
static int layout_take(struct kvs_namespace *ns, const struct kvs_layout *layout)
{
    uint32_t total = 0;
    for (uint32_t layer = 0; layer < layout->layer_count; layer++) {
        total += layout->part_counts[layer];
    }
    ns->layer_count = layout->layer_count;
    ns->block_tokens = layout->block_tokens;
    ns->extent_blocks = layout->extent_blocks;
    ns->part_total = total;
    ns->block_bytes = 0;
    memcpy(ns->fingerprint, layout->fingerprint, sizeof(ns->fingerprint));
    ns->cell_bytes = calloc(layout->layer_count, sizeof(*ns->cell_bytes));
    ns->part_counts = calloc(layout->layer_count, sizeof(*ns->part_counts));
    ns->part_first = calloc(layout->layer_count, sizeof(*ns->part_first));
    ns->part_bytes = calloc(total + 1, sizeof(*ns->part_bytes));
    ns->description = strdup(layout->description ? layout->description : "{}\n");
    int error = -ENOMEM;
    if (ns->cell_bytes && ns->part_counts && ns->part_first && ns->part_bytes && ns->description) {
        error = parts_copy(ns, layout);
    }
    if (error) {
        free(ns->cell_bytes);
        free(ns->part_counts);
        free(ns->part_first);
        free(ns->part_bytes);
        free(ns->description);
        ns->cell_bytes = ns->part_counts = ns->part_first = ns->part_bytes = NULL;
        ns->description = NULL;
        return error;
    }
    ns->has_layout = 1;
    return 0;
}

/* <namespace>/layout.json says to people what the fingerprint stands for; nothing reads it back. */
static void description_write_job(struct kvs_root *root, void *argument)
{
    struct kvs_namespace *ns = argument;
    struct kvs_fs *fs = root->store->fs;
    char path[KVS_PATH_BYTES];
    struct kvs_fs_temp temp;
    snprintf(path, sizeof(path), "%s/tmp", ns->name);
    struct kvs_fs_stat stat;
    char target[KVS_PATH_BYTES];
    snprintf(target, sizeof(target), "%s/layout.json", ns->name);
    if (fs->calls->stat_path(fs, root->fd, target, &stat) == 0 ||
        fs->calls->make_directory(fs, root->fd, ns->name) < 0 ||
        fs->calls->open_temp(fs, root->fd, ns->name, path, &temp) < 0) {
        return;
    }
    size_t bytes = strlen(ns->description);
    size_t padded = (bytes + 4095) / 4096 * 4096;
    char *text = malloc(padded);
    if (text) {
        /* Blanks, not zeros: the file stays valid JSON at a length O_DIRECT accepts. */
        memset(text, ' ', padded);
        memcpy(text, ns->description, bytes);
        text[padded - 1] = '\n';
        if (fs->calls->write_at(fs, temp.fd, text, (uint32_t)padded, 0) < 0 ||
            fs->calls->link(fs, root->fd, &temp, target) < 0) {
            if (temp.name[0]) {
                fs->calls->unlink(fs, root->fd, temp.name);
            }
        }
        free(text);
    }
    fs->calls->close(fs, temp.fd);
}

int kvs_cache_open(struct kvs_store *store, const struct kvs_layout *layout, struct kvs_cache **out)
{
    int error = kvs_store_check(store);
    if (!error) {
        error = layout_check(layout);
    }
    if (error) {
        return error;
    }
    struct kvs_cache *cache = calloc(1, sizeof(*cache));
    if (!cache) {
        return -ENOMEM;
    }
    char name[KVS_NAMESPACE_NAME_BYTES];
    hex_of(layout->fingerprint, 16, name);
    kvs_lock(store);
    struct kvs_namespace *ns = kvs_namespace_find_locked(store, name);
    error = store->closing ? -ESHUTDOWN : 0; /* no worker may be left to do a job */
    if (!error && !ns) {
        error = kvs_namespace_add_locked(store, name, &ns);
    }
    if (!error && !ns->has_layout) {
        error = layout_take(ns, layout);
        for (uint32_t i = 0; !error && i < store->root_count; i++) {
            kvs_job_add_locked(&store->roots[i], description_write_job, ns, 0);
        }
    } else if (!error && memcmp(ns->fingerprint, layout->fingerprint, 32) != 0) {
        error = -EEXIST;
    }
    kvs_unlock(store);
    if (error) {
        free(cache);
        return error;
    }
    kvs_store_hold(store);
    cache->store = store;
    cache->ns = ns;
    *out = cache;
    return 0;
}

void kvs_cache_close(struct kvs_cache *cache)
{
    struct kvs_store *store = cache->store;
    free(cache);
    kvs_store_drop(store);
}
