/*
 * hf_tokenizer.c -- reads tokenizers from Hugging Face's files.
 *
 * tokenizer.json is a pipeline of named stages: normalizer, pre_tokenizer, model, decoder.  We have
 * the combinations of byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM2, StarCoder) and of
 * SentencePiece's BPE (Llama 2, Mistral, TinyLlama), and refuse any other stage or option by its
 * name.  The post-processor only adds special tokens around a text; whoever formats the text does
 * that.
 */
#include "io/hf_tokenizer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/text.h"
#include "io/hf_tokenizer_folder.h"
#include "io/json.h"

enum { STAGES_MOST = 8, FILE_MOST = 1 << 28 };

struct reader {
    const char *where; /* the file */
    struct tokenizer_spec spec;
    const char *begin; /* the token that is put before a text; NULL or "": none */
    struct tokenizer *t;
    struct snug_error *err;
};

static enum snug_status refuse(const struct reader *r, const char *stage, const char *what)
{
    return snug_fail(r->err, SNUG_UNSUPPORTED,
                     "%s: %s %s is not supported; snug reads the tokenizers of GPT-2, Llama, "
                     "Mistral, Qwen, SmolLM and StarCoder",
                     r->where, stage, what);
}

static const char *string_of(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value == NULL ? "" : value;
}

static bool is_on(const json_t *object, const char *key, bool otherwise)
{
    const json_t *value = json_object_get(object, key);
    return json_is_boolean(value) ? json_is_true(value) : otherwise;
}

static bool is_absent(const json_t *value)
{
    return value == NULL || json_is_null(value);
}

static bool is_type(const json_t *stage, const char *type)
{
    return strcmp(string_of(stage, "type"), type) == 0;
}

/* The stages of a Sequence, or the stage itself: *n of them, at most `most`. */
static enum snug_status stages_of(const struct reader *r, const json_t *stage, const char *name,
                                  const char *list, int most, const json_t **stages, int *n)
{
    *n = 0;
    if (is_absent(stage))
        return SNUG_OK;
    if (!json_is_object(stage))
        return snug_fail(r->err, SNUG_BAD_FILE, "%s: \"%s\" is not an object", r->where, name);
    if (!is_type(stage, "Sequence")) {
        stages[(*n)++] = stage;
        return SNUG_OK;
    }
    const json_t *array = json_object_get(stage, list);
    if (!json_is_array(array))
        return snug_fail(r->err, SNUG_BAD_FILE, "%s: the Sequence of \"%s\" has no array \"%s\"",
                         r->where, name, list);
    if (json_array_size(array) > (size_t)most)
        return refuse(r, name, "of so many stages");
    for (size_t i = 0; i < json_array_size(array); i++)
        stages[(*n)++] = json_array_get(array, i);
    return SNUG_OK;
}

/* ---- normalizer ----------------------------------------------------------------------------- */

/* Is this { "type": "Replace", "pattern": { "String": from }, "content": to }? */
static bool is_replace(const json_t *stage, const char *from, const char *to)
{
    return is_type(stage, "Replace") &&
           strcmp(string_of(json_object_get(stage, "pattern"), "String"), from) == 0 &&
           strcmp(string_of(stage, "content"), to) == 0;
}

static enum snug_status read_normalizer(struct reader *r, const json_t *root)
{
    const json_t *stages[STAGES_MOST];
    int n;
    TRY(stages_of(r, json_object_get(root, "normalizer"), "normalizer", "normalizers", STAGES_MOST,
                  stages, &n));
    for (int i = 0; i < n; i++) {
        if (is_type(stages[i], "NFC") && !r->spec.metaspace)
            r->spec.nfc = true;
        else if (is_type(stages[i], "Prepend") && !r->spec.nfc && r->spec.prefix == PREFIX_never &&
                 strcmp(string_of(stages[i], "prepend"), METASPACE) == 0)
            r->spec.prefix = PREFIX_in_any_case;
        else if (is_replace(stages[i], " ", METASPACE) && !r->spec.nfc)
            r->spec.metaspace = r->spec.metaspace_normalizes = true;
        else
            return refuse(r, "normalizer", string_of(stages[i], "type"));
    }
    if (r->spec.prefix != PREFIX_never && !r->spec.metaspace)
        return refuse(r, "normalizer", "Prepend without Replace");
    return SNUG_OK;
}

/* ---- pre_tokenizer -------------------------------------------------------------------------- */

static enum snug_status read_byte_level(struct reader *r, const json_t *stage, bool is_alone)
{
    bool use_regex = is_on(stage, "use_regex", true);
    r->spec.byte_level = true;
    r->spec.space_prefix = is_on(stage, "add_prefix_space", true);
    if (r->spec.space_prefix && !is_alone)
        return refuse(r, "pre_tokenizer", "ByteLevel with add_prefix_space after another");
    if (!use_regex)
        return r->spec.split == SPLIT_none || r->spec.split == SPLIT_gpt2_digits
                   ? refuse(r, "pre_tokenizer", "ByteLevel without a regex")
                   : SNUG_OK;
    if (r->spec.split != SPLIT_none && r->spec.split != SPLIT_gpt2_digits)
        return refuse(r, "pre_tokenizer", "ByteLevel with use_regex after Split");
    if (r->spec.split == SPLIT_none)
        r->spec.split = SPLIT_gpt2;
    return SNUG_OK;
}

static enum snug_status read_metaspace(struct reader *r, const json_t *stage)
{
    const char *scheme = string_of(stage, "prepend_scheme");
    if (strcmp(string_of(stage, "replacement"), METASPACE) != 0)
        return refuse(r, "pre_tokenizer", "Metaspace with another replacement");
    if (r->spec.metaspace || r->spec.nfc)
        return refuse(r, "pre_tokenizer", "Metaspace after a normalizer");
    r->spec.metaspace = true;
    if (strcmp(scheme, "first") == 0)
        r->spec.prefix = PREFIX_first;
    else if (strcmp(scheme, "always") == 0 ||
             (scheme[0] == '\0' && is_on(stage, "add_prefix_space", true)))
        r->spec.prefix = PREFIX_each;
    else if (scheme[0] != '\0' && strcmp(scheme, "never") != 0)
        return refuse(r, "pre_tokenizer", "Metaspace with another prepend_scheme");
    if (is_on(stage, "split", true))
        r->spec.split = SPLIT_metaspace;
    return SNUG_OK;
}

static enum snug_status read_split(struct reader *r, const json_t *stage)
{
    const char *pattern = string_of(json_object_get(stage, "pattern"), "Regex");
    r->spec.split = split_rule_of(pattern);
    if (r->spec.split != SPLIT_none && strcmp(string_of(stage, "behavior"), "Isolated") == 0 &&
        !is_on(stage, "invert", false))
        return SNUG_OK;
    struct text what = {0};
    text_add(&what, "Split of \"");
    text_add_shown(&what, pattern);
    text_add(&what, "\"");
    enum snug_status status = refuse(r, "pre_tokenizer", what.data == NULL ? "Split" : what.data);
    text_free(&what);
    return status;
}

static enum snug_status read_pre_tokenizer(struct reader *r, const json_t *root)
{
    const json_t *stages[STAGES_MOST];
    int n;
    TRY(stages_of(r, json_object_get(root, "pre_tokenizer"), "pre_tokenizer", "pretokenizers",
                  STAGES_MOST, stages, &n));
    for (int i = 0; i < n; i++) {
        if (is_type(stages[i], "ByteLevel") && i == n - 1 && !r->spec.metaspace)
            TRY(read_byte_level(r, stages[i], n == 1));
        else if (is_type(stages[i], "Metaspace") && n == 1)
            TRY(read_metaspace(r, stages[i]));
        else if (is_type(stages[i], "Split") && i == 0 && n == 2)
            TRY(read_split(r, stages[i]));
        else if (is_type(stages[i], "Digits") && i == 0 && n == 2 &&
                 is_on(stages[i], "individual_digits", false))
            r->spec.split = SPLIT_gpt2_digits;
        else
            return refuse(r, "pre_tokenizer", string_of(stages[i], "type"));
    }
    if (!r->spec.byte_level && !r->spec.metaspace)
        return refuse(r, "pre_tokenizer", "that is neither ByteLevel nor Metaspace");
    return SNUG_OK;
}

/* ---- decoder, post_processor ---------------------------------------------------------------- */

static enum snug_status read_decoder(struct reader *r, const json_t *root)
{
    const json_t *stages[STAGES_MOST];
    int n;
    TRY(stages_of(r, json_object_get(root, "decoder"), "decoder", "decoders", STAGES_MOST, stages,
                  &n));
    for (int i = 0; i < n; i++) {
        const json_t *stage = stages[i];
        bool fits = false;
        if (r->spec.byte_level) {
            fits = is_type(stage, "ByteLevel");
        } else if (is_type(stage, "Metaspace")) {
            const char *scheme = string_of(stage, "prepend_scheme");
            fits = strcmp(string_of(stage, "replacement"), METASPACE) == 0;
            r->spec.strips_space = scheme[0] == '\0' ? is_on(stage, "add_prefix_space", true)
                                                     : strcmp(scheme, "never") != 0;
        } else if (is_type(stage, "Strip")) {
            fits = strcmp(string_of(stage, "content"), " ") == 0 &&
                   json_integer_value(json_object_get(stage, "start")) <= 1 &&
                   json_integer_value(json_object_get(stage, "stop")) == 0;
            r->spec.strips_space = json_integer_value(json_object_get(stage, "start")) == 1;
        } else {
            fits = is_replace(stage, METASPACE, " ") || is_type(stage, "ByteFallback") ||
                   is_type(stage, "Fuse");
        }
        if (!fits)
            return refuse(r, "decoder", string_of(stage, "type"));
    }
    return SNUG_OK;
}

/* "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}, ...] */
static const char *first_of_template(const json_t *stage)
{
    const json_t *first = json_array_get(json_object_get(stage, "single"), 0);
    return string_of(json_object_get(first, "SpecialToken"), "id");
}

static enum snug_status read_post_processor(struct reader *r, const json_t *root)
{
    static const char *const known[] = {"ByteLevel", "TemplateProcessing", "RobertaProcessing",
                                        "BertProcessing"};
    const json_t *stages[STAGES_MOST];
    int n;
    TRY(stages_of(r, json_object_get(root, "post_processor"), "post_processor", "processors",
                  STAGES_MOST, stages, &n));
    for (int i = 0; i < n; i++) {
        bool is_known = false;
        if (is_type(stages[i], "TemplateProcessing"))
            r->begin = first_of_template(stages[i]);
        for (size_t k = 0; k < sizeof known / sizeof *known; k++)
            is_known |= is_type(stages[i], known[k]);
        if (!is_known)
            return refuse(r, "post_processor", string_of(stages[i], "type"));
    }
    return SNUG_OK;
}

/* ---- model ---------------------------------------------------------------------------------- */

/* Adds the pieces of { text: id, ... } in the order of their ids. */
static enum snug_status add_vocabulary(struct reader *r, json_t *vocabulary)
{
    size_t n = json_object_size(vocabulary), n_slots = 4 * n + 65536;
    if (!json_is_object(vocabulary) || n == 0)
        return snug_fail(r->err, SNUG_BAD_FILE, "%s: the vocabulary is missing or empty", r->where);
    const char **by_id = calloc(n_slots, sizeof *by_id);
    enum snug_status status =
        by_id != NULL ? SNUG_OK
                      : snug_fail(r->err, SNUG_NO_MEMORY, "out of memory for a vocabulary");
    const char *text;
    json_t *id;
    json_object_foreach(vocabulary, text, id)
    {
        int64_t value = json_is_integer(id) ? json_integer_value(id) : -1;
        if (status != SNUG_OK)
            break;
        if (value < 0 || value >= (int64_t)n_slots)
            status =
                snug_fail(r->err, SNUG_BAD_FILE, "%s: the id of \"%s\" is not an integer in 0..%zu",
                          r->where, text, n_slots - 1);
        else if (by_id[value] != NULL)
            status = snug_fail(r->err, SNUG_BAD_FILE, "%s: \"%s\" and \"%s\" have the same id %lld",
                               r->where, by_id[value], text, (long long)value);
        else
            by_id[value] = text;
    }
    for (size_t i = 0; i < n_slots && status == SNUG_OK; i++)
        if (by_id[i] != NULL)
            status =
                tokenizer_add_piece(r->t, r->where, (int64_t)i, by_id[i], strlen(by_id[i]), r->err);
    free((void *)by_id);
    return status;
}

/* "left right" */
static enum snug_status add_merge_text(struct reader *r, const char *text, size_t n)
{
    const char *space = n < 2 ? NULL : memchr(text + 1, ' ', n - 1);
    if (space == NULL || space + 1 == text + n)
        return snug_fail(r->err, SNUG_BAD_FILE,
                         "%s: merge %zu is not two pieces with a space between", r->where,
                         r->t->bpe.n_merges + 1);
    return tokenizer_add_merge(r->t, r->where, text, (size_t)(space - text), space + 1,
                               (size_t)(text + n - space - 1), r->err);
}

static enum snug_status add_merges(struct reader *r, const json_t *merges)
{
    if (!json_is_array(merges))
        return snug_fail(r->err, SNUG_BAD_FILE, "%s: the model has no array \"merges\"", r->where);
    for (size_t i = 0; i < json_array_size(merges); i++) {
        const json_t *merge = json_array_get(merges, i);
        const char *left = json_string_value(json_array_get(merge, 0));
        const char *right = json_string_value(json_array_get(merge, 1));
        if (left != NULL && right != NULL && json_array_size(merge) == 2)
            TRY(tokenizer_add_merge(r->t, r->where, left, strlen(left), right, strlen(right),
                                    r->err));
        else
            TRY(add_merge_text(r, json_string_value(merge) == NULL ? "" : json_string_value(merge),
                               json_string_length(merge)));
    }
    return SNUG_OK;
}

static enum snug_status check_model(struct reader *r, const json_t *model)
{
    if (!json_is_object(model))
        return snug_fail(r->err, SNUG_BAD_FILE, "%s has no \"model\": it is not a tokenizer",
                         r->where);
    if (string_of(model, "type")[0] != '\0' ? !is_type(model, "BPE")
                                            : !json_is_array(json_object_get(model, "merges")))
        return refuse(r, "model", string_of(model, "type"));
    if (!is_absent(json_object_get(model, "dropout")) &&
        json_number_value(json_object_get(model, "dropout")) != 0)
        return refuse(r, "model", "with dropout");
    if (string_of(model, "continuing_subword_prefix")[0] != '\0')
        return refuse(r, "model", "with continuing_subword_prefix");
    if (string_of(model, "end_of_word_suffix")[0] != '\0')
        return refuse(r, "model", "with end_of_word_suffix");
    r->spec.byte_fallback = is_on(model, "byte_fallback", false);
    r->spec.fuse_unknown = is_on(model, "fuse_unk", false);
    r->spec.ignore_merges = is_on(model, "ignore_merges", false);
    return SNUG_OK;
}

static enum snug_status add_added_tokens(struct reader *r, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        const char *content = json_string_value(json_object_get(item, "content"));
        int64_t id;
        if (content == NULL)
            return snug_fail(r->err, SNUG_BAD_FILE, "%s: added token %zu has no \"content\"",
                             r->where, i + 1);
        TRY(json_get_integer(item, r->where, "id", 0, INT32_MAX, &id, r->err));
        struct added_token token = {.content = (char *)(uintptr_t)content,
                                    .n = strlen(content),
                                    .id = (int32_t)id,
                                    .single_word = is_on(item, "single_word", false),
                                    .lstrip = is_on(item, "lstrip", false),
                                    .rstrip = is_on(item, "rstrip", false),
                                    .special = is_on(item, "special", false)};
        token.normalized = is_on(item, "normalized", !token.special);
        TRY(tokenizer_add_token(r->t, r->where, &token, r->err));
    }
    return SNUG_OK;
}

/* Keys whose values must have a type, wherever they are.  Null is as good as nothing. */
static enum snug_status check_types(const struct reader *r, const char *key, const json_t *value)
{
    static const char *const bools[] = {"single_word",   "lstrip",   "rstrip",
                                        "normalized",    "special",  "ignore_merges",
                                        "byte_fallback", "fuse_unk", "add_prefix_space",
                                        "use_regex",     "invert",   "individual_digits"};
    static const char *const texts[] = {"type",
                                        "content",
                                        "unk_token",
                                        "continuing_subword_prefix",
                                        "end_of_word_suffix",
                                        "behavior",
                                        "prepend_scheme",
                                        "replacement",
                                        "prepend"};
    const char *member;
    json_t *item;
    bool wrong = false;
    for (size_t i = 0; i < sizeof bools / sizeof *bools && !is_absent(value); i++)
        wrong |= strcmp(bools[i], key) == 0 && !json_is_boolean(value);
    for (size_t i = 0; i < sizeof texts / sizeof *texts && !is_absent(value); i++)
        wrong |= strcmp(texts[i], key) == 0 && !json_is_string(value);
    wrong |= strcmp(key, "added_tokens") == 0 && !is_absent(value) && !json_is_array(value);
    wrong |= strcmp(key, "dropout") == 0 && !is_absent(value) && !json_is_number(value);
    if (wrong)
        return snug_fail(r->err, SNUG_BAD_FILE, "%s: \"%s\" has a value of the wrong type",
                         r->where, key);
    bool is_large = strcmp(key, "vocab") == 0 || strcmp(key, "merges") == 0;
    json_object_foreach((json_t *)(uintptr_t)value, member, item) if (!is_large)
        TRY(check_types(r, member, item));
    for (size_t i = 0; i < json_array_size(value) && !is_large; i++)
        TRY(check_types(r, "", json_array_get(value, i)));
    return SNUG_OK;
}

static enum snug_status read_all(struct reader *r, json_t *root)
{
    TRY(check_types(r, "", root));
    json_t *model = json_object_get(root, "model");
    TRY(check_model(r, model));
    TRY(read_normalizer(r, root));
    TRY(read_pre_tokenizer(r, root));
    TRY(read_decoder(r, root));
    TRY(read_post_processor(r, root));
    TRY(tokenizer_new(&r->spec, &r->t, r->err));
    TRY(add_vocabulary(r, json_object_get(model, "vocab")));
    TRY(add_merges(r, json_object_get(model, "merges")));
    if (string_of(model, "unk_token")[0] != '\0')
        TRY(tokenizer_set_unknown(r->t, r->where, string_of(model, "unk_token"), r->err));
    TRY(add_added_tokens(r, json_object_get(root, "added_tokens")));
    if (r->begin != NULL && r->begin[0] != '\0')
        TRY(tokenizer_set_begin(r->t, r->where, r->begin, r->err));
    return tokenizer_finish(r->t, r->err);
}

static enum snug_status open_json(const char *path, struct tokenizer **tokenizer,
                                  struct snug_error *err)
{
    struct reader r = {.where = path, .err = err};
    json_t *root = NULL;
    enum snug_status status = json_read_object(path, &root, err);
    if (status == SNUG_OK)
        status = read_all(&r, root);
    json_decref(root);
    if (status == SNUG_OK)
        *tokenizer = r.t;
    else
        tokenizer_free(r.t);
    return status;
}

/* ---- GPT-2's two files ---------------------------------------------------------------------- */

/* Lines "left right"; the first may be a version. */
static enum snug_status add_merge_lines(struct reader *r, const char *text, size_t n)
{
    for (size_t at = 0, end; at < n; at = end + 1) {
        const char *newline = memchr(text + at, '\n', n - at);
        end = newline == NULL ? n : (size_t)(newline - text);
        size_t length = end - at;
        if (length > 0 && text[at + length - 1] == '\r')
            length--;
        bool is_version = at == 0 && length >= 8 && memcmp(text, "#version", 8) == 0;
        if (length > 0 && !is_version)
            TRY(add_merge_text(r, text + at, length));
    }
    return SNUG_OK;
}

static enum snug_status read_gpt2(struct reader *r, const char *vocabulary_path,
                                  const char *merges_path)
{
    static const char end_of_text[] = "<|endoftext|>";
    json_t *vocabulary = NULL;
    char *merges = NULL;
    size_t n = 0;
    r->spec = (struct tokenizer_spec){.byte_level = true, .split = SPLIT_gpt2};
    r->where = vocabulary_path;
    enum snug_status status = json_read_object(vocabulary_path, &vocabulary, r->err);
    if (status == SNUG_OK)
        status = tokenizer_new(&r->spec, &r->t, r->err);
    if (status == SNUG_OK)
        status = add_vocabulary(r, vocabulary);
    r->where = merges_path;
    if (status == SNUG_OK)
        status = file_read_all(merges_path, FILE_MOST, &merges, &n, r->err);
    if (status == SNUG_OK)
        status = add_merge_lines(r, merges, n);
    const json_t *id = json_object_get(vocabulary, end_of_text);
    if (status == SNUG_OK && id != NULL) {
        struct added_token token = {.content = (char *)(uintptr_t)end_of_text,
                                    .n = sizeof end_of_text - 1,
                                    .id = (int32_t)json_integer_value(id),
                                    .special = true};
        status = tokenizer_add_token(r->t, vocabulary_path, &token, r->err);
    }
    if (status == SNUG_OK)
        status = tokenizer_finish(r->t, r->err);
    free(merges);
    json_decref(vocabulary);
    return status;
}

/* ---- opening --------------------------------------------------------------------------------- */

enum snug_status hf_tokenizer_open(const char *path, struct tokenizer **tokenizer,
                                   struct snug_error *err)
{
    char file[HF_PATH_MAX], merges[HF_PATH_MAX];
    struct stat status;
    *tokenizer = NULL;
    if (stat(path, &status) != 0)
        return snug_fail(err, SNUG_BAD_FILE, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(status.st_mode))
        return open_json(path, tokenizer, err);
    if (hf_find_file(path, "tokenizer.json", "tokenizer.json", file, sizeof file))
        return open_json(file, tokenizer, err);
    if (hf_find_file(path, "vocab.json", "encoder.json", file, sizeof file) &&
        hf_find_file(path, "merges.txt", "vocab.bpe", merges, sizeof merges)) {
        struct reader r = {.err = err};
        enum snug_status result = read_gpt2(&r, file, merges);
        if (result == SNUG_OK)
            *tokenizer = r.t;
        else
            tokenizer_free(r.t);
        return result;
    }
    bool is_sentencepiece =
        hf_find_file(path, "tokenizer.model", "spiece.model", file, sizeof file);
    return snug_fail(err, SNUG_BAD_FILE, "%s has no tokenizer.json%s", path,
                     is_sentencepiece ? ", only a tokenizer.model: save it once with transformers "
                                        "(AutoTokenizer.from_pretrained(...).save_pretrained(...))"
                                      : ", nor the two files of GPT-2 (vocab.json and merges.txt)");
}
