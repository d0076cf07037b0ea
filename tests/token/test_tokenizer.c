/*
 * test_tokenizer.c -- the ids are those of Hugging Face's tokenizers, and bytes come back.
 *
 * tests/token/fixtures has small tokenizers of every pipeline, and texts with the ids that
 * tokenizers gives them (tools/check-tokenizers.py --fixtures).  tools/check-tokenizers.py compares
 * far more.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "io/hf_tokenizer.h"
#include "io/json.h"
#include "support/files.h"
#include "token/encoder.h"

#define LENGTH(array) (sizeof(array) / sizeof *(array))
#define FIXTURES      "tests/token/fixtures/"

struct rng {
    uint64_t seed, n;
};

static struct rng rng_make(uint64_t seed, uint64_t n)
{
    return (struct rng){seed, n};
}

static uint64_t rng_below(struct rng *rng, uint64_t n)
{
    return rng_u64(rng->seed, 1, rng->n++) % n;
}

static const char *const names[] = {
    "gpt2",
    "llama3",
    "qwen2",
    "smollm2",
    "prefix",
    "added",
    "sentencepiece",
    "sentencepiece-spaces",
    "metaspace-first",
    "metaspace-always",
    "metaspace-unknown",
};

static struct tokenizer *open_named(const char *name)
{
    char path[128];
    struct snug_error err = {0};
    struct tokenizer *t;
    snprintf(path, sizeof path, FIXTURES "%s.json", name);
    if (hf_tokenizer_open(path, &t, &err) != SNUG_OK)
        fail_msg("%s", err.message);
    return t;
}

static void encode(const struct tokenizer *t, const struct token_text *texts, int n, bool specials,
                   int threads, struct token_ids *ids, size_t *ends)
{
    struct encoder *encoder;
    struct snug_error err = {0};
    assert_int_equal(encoder_new(t, threads, &encoder, &err), SNUG_OK);
    ids->n = 0;
    assert_int_equal(encoder_encode(encoder, texts, n, specials, ids, ends, &err), SNUG_OK);
    encoder_free(encoder);
}

static void encode_one(const struct tokenizer *t, const char *text, size_t n, bool specials,
                       struct token_ids *ids)
{
    size_t end;
    encode(t, &(struct token_text){.data = text, .n = n}, 1, specials, 1, ids, &end);
    assert_int_equal(end, ids->n);
}

/* ---- the ids of tokenizers ------------------------------------------------------------------ */

struct vectors {
    json_t **lines; /* [text, [ids]] */
    struct token_text *texts;
    size_t *ends;
    int n;
};

static struct vectors read_vectors(const char *path)
{
    struct vectors v = {.lines = calloc(4096, sizeof *v.lines),
                        .texts = calloc(4096, sizeof *v.texts),
                        .ends = calloc(4096, sizeof *v.ends)};
    size_t n_bytes;
    char *file = files_read(path, &n_bytes);
    for (char *line = file, *end; *line != '\0'; line = end + (*end == '\n')) {
        struct snug_error err = {0};
        end = line + strcspn(line, "\n");
        assert_int_equal(json_parse(line, (size_t)(end - line), path, &v.lines[v.n], &err),
                         SNUG_OK);
        const json_t *text = json_array_get(v.lines[v.n], 0);
        v.texts[v.n++] =
            (struct token_text){.data = json_string_value(text), .n = json_string_length(text)};
        assert_true(v.n < 4096);
    }
    free(file);
    return v;
}

static void free_vectors(struct vectors *v)
{
    for (int i = 0; i < v->n; i++)
        json_decref(v->lines[i]);
    free(v->lines);
    free(v->texts);
    free(v->ends);
}

static void compare(const char *name, const struct vectors *v, const struct token_ids *ids)
{
    size_t at = 0;
    for (int i = 0; i < v->n; i++) {
        const json_t *expected = json_array_get(v->lines[i], 1);
        size_t n = v->ends[i] - at;
        bool same = n == json_array_size(expected);
        for (size_t k = 0; k < n && same; k++)
            same = ids->data[at + k] == json_integer_value(json_array_get(expected, k));
        if (!same)
            fail_msg("%s: other ids for text %d, \"%.100s\"", name, i + 1, v->texts[i].data);
        at = v->ends[i];
    }
}

static void test_ids_of_tokenizers(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(names); i++) {
        char path[128];
        snprintf(path, sizeof path, FIXTURES "%s.ids", names[i]);
        struct vectors v = read_vectors(path);
        struct tokenizer *t = open_named(names[i]);
        struct token_ids ids = {0};
        assert_true(v.n > 50);
        for (int threads = 1; threads <= 3; threads += 2) {
            encode(t, v.texts, v.n, true, threads, &ids, v.ends);
            compare(names[i], &v, &ids);
        }
        free(ids.data);
        tokenizer_free(t);
        free_vectors(&v);
    }
}

/* ---- there and back ------------------------------------------------------------------------- */

/* Bytes of all kinds: any, letters, spaces, pieces of UTF-8. */
static void fill_random(struct rng *rng, char *text, size_t n)
{
    static const char *const some[] = {" ",    "\n",       "the",      "\xC3\xA9", "\xE2\x96\x81",
                                       "'s",   "12",       "\xF0\x9F", "\x80",     "<s>",
                                       "\r\n", "e\xCC\x81"};
    for (size_t at = 0; at < n;) {
        uint64_t kind = rng_below(rng, 3), which = rng_below(rng, LENGTH(some));
        if (kind == 0 && at + strlen(some[which]) <= n) {
            memcpy(text + at, some[which], strlen(some[which]));
            at += strlen(some[which]);
        } else {
            text[at++] = (char)(kind == 1 ? 'a' + rng_below(rng, 26) : rng_below(rng, 256));
        }
    }
}

static void test_bytes_come_back(void **state)
{
    (void)state;
    /* qwen2 normalizes, prefix adds a space, metaspace tokenizers have no id for every byte */
    static const char *const exact[] = {"gpt2", "llama3", "smollm2", "sentencepiece",
                                        "sentencepiece-spaces"};
    struct rng rng = rng_make(7, 1);
    for (size_t i = 0; i < LENGTH(exact); i++) {
        struct tokenizer *t = open_named(exact[i]);
        struct token_ids ids = {0};
        struct buffer text = {0};
        for (int k = 0; k < 300; k++) {
            char bytes[300];
            size_t n = (size_t)rng_below(&rng, sizeof bytes);
            struct snug_error err = {0};
            fill_random(&rng, bytes, n);
            encode_one(t, bytes, n, false, &ids);
            text.n = 0;
            assert_int_equal(tokenizer_decode(t, ids.data, ids.n, &text, &err), SNUG_OK);
            /* decoding turns U+2581 into a space */
            if (t->spec.metaspace && memmem(bytes, n, "\xE2\x96\x81", 3) != NULL)
                continue;
            assert_int_equal(text.n, n);
            assert_true(n == 0 || memcmp(text.data, bytes, n) == 0);
        }
        free(ids.data);
        free(text.data);
        tokenizer_free(t);
    }
}

static void test_special_tokens_as_text(void **state)
{
    (void)state;
    struct tokenizer *t = open_named("qwen2");
    static const char text[] = "<|im_start|>user";
    struct token_ids ids = {0};
    struct buffer back = {0};
    struct snug_error err = {0};
    size_t n;
    encode_one(t, text, strlen(text), true, &ids);
    assert_memory_equal(vocabulary_piece(&t->vocabulary, ids.data[0], &n), "<|im_start|>", 12);
    assert_true(t->is_special[ids.data[0]]);
    encode_one(t, text, strlen(text), false, &ids);
    for (size_t i = 0; i < ids.n; i++)
        assert_false(t->is_special[ids.data[i]]);
    assert_int_equal(tokenizer_decode(t, ids.data, ids.n, &back, &err), SNUG_OK);
    assert_memory_equal(back.data, text, back.n);
    int32_t beyond = tokenizer_size(t);
    assert_int_equal(tokenizer_decode(t, &beyond, 1, &back, &err), SNUG_BAD_ARGUMENT);
    assert_non_null(strstr(err.message, "is not an id of the tokenizer"));
    free(ids.data);
    free(back.data);
    tokenizer_free(t);
}

/* ---- long texts ----------------------------------------------------------------------------- */

/* A long text is cut into jobs: the same ids as without cuts, however many threads. */
static void test_cuts(void **state)
{
    (void)state;
    enum { N = 700000 };
    static const char *const parts[] = {"The quick fox", " ",   "\n\n",  "\n\n",     "  a",
                                        "12 ",           "\n3", "x",     "\xC3\xA9", "e\xCC\x81",
                                        "\n\nEnd",       " of", "it's ", "\t",       "<s>"};
    char *text = malloc(N);
    int n_cut = 0;
    struct rng rng = rng_make(3, 1);
    for (size_t at = 0; at < N;) {
        const char *part = parts[rng_below(&rng, LENGTH(parts))];
        size_t n = strlen(part) < N - at ? strlen(part) : N - at;
        memcpy(text + at, part, n);
        at += n;
    }
    for (size_t i = 0; i < LENGTH(names); i++) {
        struct tokenizer *t = open_named(names[i]);
        struct token_ids cut = {0}, whole = {0}, many = {0};
        size_t end;
        n_cut += t->can_cut;
        encode_one(t, text, N, true, &cut);
        encode(t, &(struct token_text){.data = text, .n = N}, 1, true, 4, &many, &end);
        t->can_cut = false;
        encode_one(t, text, N, true, &whole);
        assert_int_equal(cut.n, whole.n);
        assert_int_equal(many.n, whole.n);
        assert_memory_equal(cut.data, whole.data, whole.n * sizeof *whole.data);
        assert_memory_equal(many.data, whole.data, whole.n * sizeof *whole.data);
        free(cut.data);
        free(whole.data);
        free(many.data);
        tokenizer_free(t);
    }
    assert_int_equal(n_cut, 7); /* not: a prefix, tokens with flags, merges across spaces */
    free(text);
}

/* ---- hostile files -------------------------------------------------------------------------- */

/* Pieces merged from <unk> or from byte pieces have fewer symbols than characters. */
static void test_symbols_that_are_no_characters(void **state)
{
    (void)state;
    static const char file[] =
        "{\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": "
        "\"\\u2581\"}, \"pre_tokenizer\": null, \"model\": {\"type\": \"BPE\", \"unk_token\": "
        "\"<unk>\", \"vocab\": {\"<unk>\": 0, \"a\": 1, \"<unk>a\": 2, \"<unk>a<unk>a\": 3, "
        "\"\\u2581\": 4}, \"merges\": [\"<unk> a\", \"<unk>a <unk>a\"]}}";
    char dir[FILES_PATH_MAX], text[4 * 60];
    struct tokenizer *t;
    struct snug_error err = {0};
    struct token_ids ids = {0};
    files_make_dir(dir);
    files_write_text(dir, "tokenizer.json", file);
    if (hf_tokenizer_open(dir, &t, &err) != SNUG_OK)
        fail_msg("%s", err.message);
    for (int i = 0; i < 60; i++)
        memcpy(text + 4 * (ptrdiff_t)i,
               "\xE4\xB8\x80"
               "a",
               4);
    encode_one(t, text, sizeof text, true, &ids);
    assert_int_equal(ids.n, 30);
    for (size_t i = 0; i < ids.n; i++)
        assert_int_equal(ids.data[i], 3);
    free(ids.data);
    tokenizer_free(t);
    files_remove_dir(dir);
}

/* ---- NFC ------------------------------------------------------------------------------------ */

static void test_nfc(void **state)
{
    (void)state;
    static const struct {
        const char *text, *nfc;
    } rows[] = {
        {"plain \xC3\xA9", "plain \xC3\xA9"},
        {"e\xCC\x81", "\xC3\xA9"},
        {"\xE2\x84\xAB", "\xC3\x85"},                             /* Angstrom sign */
        {"q\xCC\x87\xCC\xA3", "q\xCC\xA3\xCC\x87"},               /* sorted */
        {"a\xCC\x87\xCC\xA3", "\xE1\xBA\xA1\xCC\x87"},            /* sorted, composed */
        {"\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", "\xEA\xB0\x81"}, /* Hangul */
        {"\xEA\xB0\x80\xE1\x86\xA8", "\xEA\xB0\x81"},
        {"\xE0\xA5\x98", "\xE0\xA4\x95\xE0\xA4\xBC"}, /* never composed */
        {"\xCD\x84", "\xCC\x88\xCC\x81"},
        {"e\xCC\x81\xFF\xCC\x81 e\x80", "\xC3\xA9\xFF\xCC\x81 e\x80"}, /* not UTF-8 */
    };
    struct unicode *u = unicode_new();
    struct buffer out = {0};
    assert_non_null(u);
    for (size_t i = 0; i < LENGTH(rows); i++) {
        out.n = 0;
        assert_true(unicode_nfc(u, rows[i].text, strlen(rows[i].text), &out));
        assert_int_equal(out.n, strlen(rows[i].nfc));
        assert_memory_equal(out.data, rows[i].nfc, out.n);
    }
    /* a text that is said to be NFC does not change; NFC of NFC is the same */
    struct rng rng = rng_make(5, 1);
    for (int k = 0; k < 20000; k++) {
        char text[64];
        size_t n = 0;
        struct buffer once = {0}, twice = {0};
        for (int i = 0; i < 8; i++) {
            uint32_t code = (uint32_t)rng_below(&rng, i % 2 == 0 ? 0x400 : 0x3100);
            n += (size_t)unicode_encode(code < 0x80 ? 'a' + code % 26 : code, text + n);
        }
        assert_true(unicode_nfc(u, text, n, &once));
        assert_true(unicode_nfc(u, once.data, once.n, &twice));
        assert_int_equal(once.n, twice.n);
        assert_memory_equal(once.data, twice.data, once.n);
        if (unicode_is_nfc(u, text, n))
            assert_int_equal(once.n, n);
        free(once.data);
        free(twice.data);
    }
    free(out.data);
    free(u);
}

/* ---- files that are refused ----------------------------------------------------------------- */

#define MODEL \
    "\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, \"merges\": "
#define LEVEL "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, "

static const struct {
    const char *text, *words;
} refused[] = {
    {"{}", "has no \"model\""},
    {"{" LEVEL "\"model\": {\"type\": \"WordPiece\"}}", "model WordPiece is not supported"},
    {"{" LEVEL "\"model\": {\"type\": \"Unigram\"}}", "model Unigram is not supported"},
    {"{" LEVEL MODEL "[\"a b\"], \"dropout\": 0.1}}", "with dropout"},
    {"{" LEVEL MODEL "[\"a b\"], \"end_of_word_suffix\": \"</w>\"}}", "end_of_word_suffix"},
    {"{" LEVEL MODEL "[\"a b\"], \"continuing_subword_prefix\": \"##\"}}", "continuing_subword"},
    {"{\"normalizer\": {\"type\": \"Lowercase\"}, " LEVEL MODEL "[\"a b\"]}}",
     "normalizer Lowercase is not supported"},
    {"{\"pre_tokenizer\": {\"type\": \"Whitespace\"}, " MODEL "[\"a b\"]}}",
     "pre_tokenizer Whitespace is not supported"},
    {"{\"pre_tokenizer\": null, " MODEL "[\"a b\"]}}", "neither ByteLevel nor Metaspace"},
    {"{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", "
     "\"pattern\": {\"Regex\": \"[a-z]+\"}, \"behavior\": \"Isolated\"}, {\"type\": \"ByteLevel\", "
     "\"use_regex\": false, \"add_prefix_space\": false}]}, " MODEL "[\"a b\"]}}",
     "Split of \"[a-z]+\" is not supported"},
    {"{" LEVEL "\"post_processor\": {\"type\": \"Other\"}, " MODEL "[\"a b\"]}}",
     "post_processor Other"},
    {"{" LEVEL "\"decoder\": {\"type\": \"CTC\"}, " MODEL "[\"a b\"]}}", "decoder CTC"},
    {"{" LEVEL MODEL "[\"ab\"]}}", "merge 1 is not two pieces"},
    {"{" LEVEL MODEL "[\"a b\", [\"b\", \"b\"]]}}", "merge 2 makes \"bb\""},
    {"{" LEVEL MODEL "7}}", "no array \"merges\""},
    {"{" LEVEL MODEL "[\"a b\"], \"unk_token\": \"?\"}}", "unk_token \"?\" is not in"},
    {"{" LEVEL "\"model\": {\"type\": \"BPE\", \"vocab\": {}, \"merges\": []}}", "vocabulary"},
    {"{" LEVEL "\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 0}, \"merges\": []}}",
     "the same id 0"},
    {"{" LEVEL "\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": -1}, \"merges\": []}}",
     "the id of \"a\""},
    {"{" LEVEL "\"added_tokens\": [{\"id\": 2, \"content\": \"x\"}], " MODEL "[\"a b\"]}}",
     "\"x\" cannot have the id 2"},
    {"{" LEVEL "\"added_tokens\": [{\"id\": 3, \"content\": \"a\"}], " MODEL "[\"a b\"]}}",
     "\"a\" cannot have the id 3"},
    {"{" LEVEL "\"added_tokens\": [{\"id\": 4, \"content\": \"x\"}], " MODEL "[\"a b\"]}}",
     "ids before it are missing"},
    {"{" LEVEL "\"added_tokens\": [{\"id\": 268435455, \"content\": \"x\"}], " MODEL "[\"a b\"]}}",
     "cannot have the id"},
    {"{" LEVEL "\"added_tokens\": [{\"id\": 3, \"content\": \"x\", \"lstrip\": 1}], " MODEL
     "[\"a b\"]}}",
     "\"lstrip\" has a value of the wrong type"},
    {"{" LEVEL "\"added_tokens\": {}, " MODEL "[\"a b\"]}}", "\"added_tokens\" has a value"},
    {"{" LEVEL MODEL "[\"a b\"], \"unk_token\": 7}}", "\"unk_token\" has a value"},
    {"{" LEVEL "\"added_tokens\": [{\"id\": 3}], " MODEL "[\"a b\"]}}", "has no \"content\""},
    {"{" LEVEL "\"added_tokens\": [{\"content\": \"x\"}], " MODEL "[\"a b\"]}}", "\"id\""},
    {"{" LEVEL MODEL "[\"a b\"]}", ""}, /* not JSON */
};

/* An added token of spaces beside the piece of as many spaces: one is found before words, one in them. */
static void test_added_spaces(void **state)
{
    (void)state;
    static const char file[] =
        "{" LEVEL "\"added_tokens\": [{\"id\": 4, \"content\": \"   \"}], \"model\": {\"type\": "
        "\"BPE\", \"vocab\": {\"a\": 0, \"\\u0120\": 1, \"\\u0120\\u0120\": 2, "
        "\"\\u0120\\u0120\\u0120\": 3}, \"merges\": [\"\\u0120 \\u0120\", "
        "\"\\u0120\\u0120 \\u0120\"]}}";
    char dir[FILES_PATH_MAX];
    struct tokenizer *t;
    struct snug_error err = {0};
    struct token_ids ids = {0};
    files_make_dir(dir);
    files_write_text(dir, "tokenizer.json", file);
    if (hf_tokenizer_open(dir, &t, &err) != SNUG_OK)
        fail_msg("%s", err.message);
    encode_one(t, "   ", 3, true, &ids);
    assert_int_equal(ids.n, 1);
    assert_int_equal(ids.data[0], 4);
    encode_one(t, "a  ", 3, true, &ids);
    assert_int_equal(ids.n, 2);
    assert_int_equal(ids.data[1], 2);
    free(ids.data);
    tokenizer_free(t);
    files_remove_dir(dir);
}

static void test_refused(void **state)
{
    (void)state;
    char dir[FILES_PATH_MAX];
    files_make_dir(dir);
    for (size_t i = 0; i < LENGTH(refused); i++) {
        struct tokenizer *t = NULL;
        struct snug_error err = {0};
        files_write_text(dir, "tokenizer.json", refused[i].text);
        enum snug_status status = hf_tokenizer_open(dir, &t, &err);
        if (status == SNUG_OK || t != NULL || strstr(err.message, refused[i].words) == NULL ||
            strstr(err.message, "tokenizer.json") == NULL)
            fail_msg("%s: %d, \"%s\"", refused[i].text, (int)status, err.message);
    }
    struct tokenizer *t = NULL;
    struct snug_error err = {0};
    files_write_text(dir, "tokenizer.json", "{" LEVEL MODEL "[\"a b\"]}}");
    assert_int_equal(hf_tokenizer_open(dir, &t, &err), SNUG_OK);
    tokenizer_free(t);
    files_remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids_of_tokenizers),
        cmocka_unit_test(test_bytes_come_back),
        cmocka_unit_test(test_special_tokens_as_text),
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_symbols_that_are_no_characters),
        cmocka_unit_test(test_nfc),
        cmocka_unit_test(test_added_spaces),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
