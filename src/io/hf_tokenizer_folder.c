/*
 * hf_tokenizer_folder.c -- what a model folder has beside its weights and config.json: the files of
 * its tokenizer, its templates, and the ids that end a text.
 */
#include "io/hf_tokenizer_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "io/file.h"
#include "io/json.h"

enum { FILE_MOST = 1 << 28 };

bool hf_find_file(const char *folder, const char *name, const char *other, char *path,
                  size_t path_bytes)
{
    struct stat status;
    const char *names[] = {name, other};
    for (int i = 0; i < 2; i++) {
        int n = snprintf(path, path_bytes, "%s/%s", folder, names[i]);
        if (n > 0 && (size_t)n < path_bytes && stat(path, &status) == 0)
            return true;
    }
    return false;
}

bool hf_tokenizer_exists(const char *folder)
{
    char file[HF_PATH_MAX];
    return hf_find_file(folder, "tokenizer.json", "tokenizer.json", file, sizeof file) ||
           (hf_find_file(folder, "vocab.json", "encoder.json", file, sizeof file) &&
            hf_find_file(folder, "merges.txt", "vocab.bpe", file, sizeof file));
}

enum snug_status hf_end_ids(const char *folder, int64_t ids[HF_END_IDS_MAX], int *n,
                            struct snug_error *err)
{
    static const char *const files[] = {"generation_config.json", "config.json"};
    *n = 0;
    for (size_t i = 0; i < sizeof files / sizeof *files && *n == 0; i++) {
        char path[HF_PATH_MAX];
        json_t *root;
        if (!hf_find_file(folder, files[i], files[i], path, sizeof path))
            continue;
        TRY(json_read_object(path, &root, err));
        const json_t *value = json_object_get(root, "eos_token_id");
        if (json_is_integer(value))
            ids[(*n)++] = json_integer_value(value);
        for (size_t k = 0; k < json_array_size(value) && *n < HF_END_IDS_MAX; k++)
            ids[(*n)++] = json_integer_value(json_array_get(value, k));
        json_decref(root);
    }
    return SNUG_OK;
}

/* ---- copying a tokenizer -------------------------------------------------------------------- */

static enum snug_status copy_file(const char *from, const char *folder, const char *name,
                                  struct snug_error *err)
{
    char target[HF_PATH_MAX];
    char *text;
    size_t n;
    int length = snprintf(target, sizeof target, "%s/%s", folder, name);
    if (length < 0 || (size_t)length >= sizeof target)
        return snug_fail(err, SNUG_IO_ERROR, "%s: the path is too long", folder);
    TRY(file_read_all(from, FILE_MOST, &text, &n, err));
    enum snug_status status = file_write_atomic(target, text, n, NULL, err);
    free(text);
    return status;
}

enum snug_status hf_tokenizer_copy(const char *from, const char *to, struct snug_error *err)
{
    static const struct {
        const char *name, *as; /* as: the name that transformers knows */
    } files[] = {{"tokenizer.json", NULL},
                 {"vocab.json", NULL},
                 {"merges.txt", NULL},
                 {"encoder.json", "vocab.json"},
                 {"vocab.bpe", "merges.txt"},
                 {"tokenizer_config.json", NULL},
                 {"special_tokens_map.json", NULL},
                 {"added_tokens.json", NULL},
                 {"chat_template.jinja", NULL},
                 {"generation_config.json", NULL},
                 {"tokenizer.model", NULL}};
    struct stat of_from, of_to;
    if (stat(from, &of_from) != 0 || stat(to, &of_to) != 0 ||
        (of_from.st_dev == of_to.st_dev && of_from.st_ino == of_to.st_ino))
        return SNUG_OK; /* the run goes on in its own folder */
    if (!S_ISDIR(of_from.st_mode))
        return copy_file(from, to, "tokenizer.json", err);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const char *name = files[i].name, *as = files[i].as == NULL ? name : files[i].as;
        char source[HF_PATH_MAX];
        if (hf_find_file(from, name, name, source, sizeof source))
            TRY(copy_file(source, to, as, err));
    }
    return SNUG_OK;
}
