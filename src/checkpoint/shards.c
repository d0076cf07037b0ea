/*
 * shards.c -- split a large file of a checkpoint, and write the index; see shards.h.
 */
#include "checkpoint/shards.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "io/json.h"

enum { SHARDS_MAX = 99999 };

static enum snug_status no_memory(struct snug_error *err)
{
    return snug_fail(err, SNUG_NO_MEMORY, "out of memory while saving");
}

bool shards_has_name(const char *name)
{
    int end = 0, number, n;
    return sscanf(name, "model-%5d-of-%5d.safetensors%n", &number, &n, &end) == 2 && end > 0 &&
           name[end] == '\0';
}

/* The number of tensors from `from` on that fit in one file: at least one. */
static int count_fitting(const struct checkpoint_file *file, int from, int64_t most_bytes)
{
    int64_t sum = 0, n_bytes;
    for (int i = from; i < file->n; i++) {
        const struct st_entry *entry = &file->entries[i];
        int64_t width = (int64_t)dtype_bytes(entry->dtype);
        bool fits = safetensors_tensor_bytes(&entry->shape, width, &n_bytes) &&
                    !__builtin_add_overflow(sum, n_bytes, &sum) && sum <= most_bytes;
        if (!fits && i > from)
            return i - from;
    }
    return file->n - from;
}

static int count_shards(const struct checkpoint_file *file, int64_t most_bytes)
{
    int n = 0;
    if (strcmp(file->name, SAFETENSORS_MODEL) != 0)
        return 1;
    for (int at = 0; at < file->n; n++)
        at += count_fitting(file, at, most_bytes);
    return n > 1 ? n : 1;
}

static void split_file(const struct checkpoint_file *file, int64_t most_bytes, int n_shards,
                       struct shards *shards)
{
    for (int k = 0, at = 0; k < n_shards; k++) {
        struct checkpoint_file *shard = &shards->files[shards->n++];
        *shard = *file;
        if (n_shards == 1)
            return;
        char *name = shards->names[shards->n_names++];
        snprintf(name, sizeof *shards->names, "model-%05d-of-%05d.safetensors", k + 1, n_shards);
        shard->name = name;
        shard->entries = file->entries + at;
        shard->n = count_fitting(file, at, most_bytes);
        at += shard->n;
    }
}

enum snug_status shards_split(const struct checkpoint_file *files, int n_files, int64_t most_bytes,
                              struct shards *shards, struct snug_error *err)
{
    size_t n = 1; /* never asks calloc for nothing */
    *shards = (struct shards){0};
    for (int i = 0; i < n_files; i++) {
        int n_shards = count_shards(&files[i], most_bytes);
        if (n_shards > SHARDS_MAX)
            return snug_fail(err, SNUG_BAD_ARGUMENT, "%s: %d shards are too many", files[i].name,
                             n_shards);
        n += (size_t)n_shards;
    }
    shards->files = calloc(n, sizeof *shards->files);
    shards->names = calloc(n, sizeof *shards->names);
    if (shards->files == NULL || shards->names == NULL) {
        shards_free(shards);
        return no_memory(err);
    }
    for (int i = 0; i < n_files; i++)
        split_file(&files[i], most_bytes, count_shards(&files[i], most_bytes), shards);
    return SNUG_OK;
}

void shards_free(struct shards *shards)
{
    free(shards->files);
    free(shards->names);
    *shards = (struct shards){0};
}

static json_t *index_json(const struct safetensors *model)
{
    json_t *map = json_object(), *root = json_object();
    int64_t total = 0;
    for (int k = 0; k < safetensors_count(model); k++) {
        const struct st_entry *entry = safetensors_entry(model, k);
        const char *path = safetensors_path_of(model, entry), *slash = strrchr(path, '/');
        json_put(&map, entry->name, json_string(slash == NULL ? path : slash + 1));
        total += entry->n_bytes;
    }
    json_put(&root, "metadata", json_pack("{s:I}", "total_size", (json_int_t)total));
    json_put(&root, "weight_map", map);
    return root;
}

enum snug_status shards_write_index(const char *dir, const struct safetensors *model,
                                    struct file_faults *faults, struct snug_error *err)
{
    char *path = path_join(dir, SAFETENSORS_INDEX, "");
    char *replaced = path_join(dir, SAFETENSORS_MODEL, "");
    json_t *index = model != NULL ? index_json(model) : NULL;
    enum snug_status status = SNUG_OK;
    if (path == NULL || replaced == NULL || (model != NULL && index == NULL))
        status = no_memory(err);
    else if (model != NULL)
        status = json_write(path, index, faults, err);
    if (status == SNUG_OK)
        file_remove(model != NULL ? replaced : path, faults);
    json_decref(index);
    free(path);
    free(replaced);
    return status;
}
