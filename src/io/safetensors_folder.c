/*
 * safetensors_folder.c -- open the weights of a folder: model.safetensors, or shards with an index.
 *
 *     model.safetensors.index.json
 *         {"metadata": {"total_size": 16060522496},
 *          "weight_map": {"model.embed_tokens.weight": "model-00001-of-00004.safetensors", ...}}
 *
 * The index may come from anywhere, so the names in it must be those of files in the same folder.
 * Index and files must agree about every tensor.
 */
#include "io/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "io/json.h"

struct shards {
    const char *folder, *path; /* path: the index */
    json_t *map;               /* tensor: file */
    json_t *numbers;           /* file: its place in `files` */
    struct safetensors **files;
    int n;
};

static enum snug_status no_memory(const struct shards *s, struct snug_error *err)
{
    return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory opening the weights", s->folder);
}

/* A plain file name: no path, nothing hidden, no ".". */
static bool is_shard_name(const char *name)
{
    static const char ending[] = ".safetensors";
    size_t n = strlen(name), m = sizeof ending - 1;
    return strchr(name, '/') == NULL && name[0] != '.' && n > m &&
           strcmp(name + n - m, ending) == 0;
}

/* Lists the files of the index, each once. */
static enum snug_status list_files(struct shards *s, struct snug_error *err)
{
    const char *tensor;
    json_t *value;
    json_object_foreach(s->map, tensor, value)
    {
        const char *name = json_string_value(value);
        if (name == NULL || !is_shard_name(name))
            return snug_fail(err, SNUG_BAD_FILE,
                             "%s: tensor \"%.100s\": \"%.100s\" is not the name of a safetensors "
                             "file in this folder",
                             s->path, tensor, name == NULL ? "" : name);
        if (json_object_get(s->numbers, name) == NULL &&
            json_object_set_new(s->numbers, name,
                                json_integer((json_int_t)json_object_size(s->numbers))) != 0)
            return no_memory(s, err);
    }
    return SNUG_OK;
}

static enum snug_status open_files(struct shards *s, struct snug_error *err)
{
    const char *name;
    json_t *number;
    s->files = calloc(json_object_size(s->numbers) + 1, sizeof(struct safetensors *));
    if (s->files == NULL)
        return no_memory(s, err);
    json_object_foreach(s->numbers, name, number)
    {
        bool exists;
        TRY(path_find(s->folder, name, &exists, err));
        if (!exists)
            return snug_fail(err, SNUG_BAD_FILE,
                             "%s: %.100s is missing from this folder: download it again", s->path,
                             name);
        char *path = path_join(s->folder, name, "");
        if (path == NULL)
            return no_memory(s, err);
        enum snug_status status = safetensors_open(path, &s->files[s->n], err);
        free(path);
        if (status != SNUG_OK)
            return status;
        json_integer_set(number, s->n++);
    }
    return SNUG_OK;
}

/* Is every tensor in the file that the index names, and every tensor in the index? */
static enum snug_status check_map(const struct shards *s, const struct safetensors *st,
                                  struct snug_error *err)
{
    const char *tensor;
    json_t *value;
    json_object_foreach(s->map, tensor, value)
    {
        const char *name = json_string_value(value);
        const struct st_entry *entry = safetensors_find(st, tensor);
        if (entry == NULL || entry->file != json_integer_value(json_object_get(s->numbers, name)))
            return snug_fail(err, SNUG_BAD_FILE,
                             "%s: tensor \"%.100s\" is not in %.100s, where the index has it",
                             s->path, tensor, name);
    }
    for (int k = 0; k < safetensors_count(st); k++) {
        const struct st_entry *entry = safetensors_entry(st, k);
        if (json_object_get(s->map, entry->name) == NULL)
            return snug_fail(err, SNUG_BAD_FILE, "%s: tensor \"%.100s\" of %s is not in the index",
                             s->path, entry->name, safetensors_path_of(st, entry));
    }
    return SNUG_OK;
}

static enum snug_status open_shards(struct shards *s, struct safetensors **out,
                                    struct snug_error *err)
{
    json_t *root = NULL;
    struct safetensors *st = NULL;
    s->numbers = json_object();
    enum snug_status status = s->numbers != NULL ? SNUG_OK : no_memory(s, err);
    if (status == SNUG_OK)
        status = json_read_object(s->path, &root, err);
    if (status == SNUG_OK)
        status = json_get_object(root, s->path, "weight_map", &s->map, err);
    if (status == SNUG_OK)
        status = list_files(s, err);
    if (status == SNUG_OK)
        status = open_files(s, err);
    if (status == SNUG_OK)
        status = safetensors_join(s->files, s->n, true, s->path, &st, err);
    for (int i = 0; i < s->n && st == NULL; i++)
        safetensors_close(s->files[i]);
    if (status == SNUG_OK)
        status = check_map(s, st, err);
    if (status == SNUG_OK)
        *out = st;
    else
        safetensors_close(st);
    free(s->files);
    json_decref(s->numbers);
    json_decref(root);
    return status;
}

enum snug_status safetensors_has_model(const char *folder, bool *found, struct snug_error *err)
{
    TRY(path_find(folder, SAFETENSORS_MODEL, found, err));
    return *found ? SNUG_OK : path_find(folder, SAFETENSORS_INDEX, found, err);
}

enum snug_status safetensors_open_folder(const char *folder, struct safetensors **out,
                                         struct snug_error *err)
{
    bool is_single, is_sharded;
    *out = NULL;
    TRY(path_find(folder, SAFETENSORS_MODEL, &is_single, err));
    TRY(path_find(folder, SAFETENSORS_INDEX, &is_sharded, err));
    bool has_index = !is_single && is_sharded;
    char *path = path_join(folder, has_index ? SAFETENSORS_INDEX : SAFETENSORS_MODEL, "");
    struct shards shards = {.folder = folder, .path = path};
    if (path == NULL)
        return no_memory(&shards, err);
    enum snug_status status =
        has_index ? open_shards(&shards, out, err) : safetensors_open(path, out, err);
    free(path);
    return status;
}
