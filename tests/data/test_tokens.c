/*
 * test_tokens.c -- random data, text and token shards: the contents of a sample, the position of
 * the splits, an order that depends only on seed and position, and the messages of refused files.
 * It is long because the refused files are many.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "data/data.h"
#include "support/files.h"

#define LENGTH(array) (sizeof(array) / sizeof *(array))
enum { T = 4 };

static struct data_request tokens_request(const char *spec, int64_t vocabulary)
{
    return (struct data_request){.spec = spec,
                                 .target = DATA_TARGET_TOKENS,
                                 .sample_elems = T,
                                 .target_elems = T,
                                 .n_classes = vocabulary,
                                 .seed = 7};
}

static struct data *open_good(const struct data_request *request)
{
    struct data *data;
    struct snug_error err = {0};
    if (data_open(request, &data, &err) != SNUG_OK)
        fail_msg("cannot open '%s': %s", request->spec, err.message);
    return data;
}

static void fill_good(struct data *data, enum data_split split, int64_t first, int64_t n,
                      void *input, void *target)
{
    struct snug_error err = {0};
    if (data_fill(data, split, first, n, input, target, &err) != SNUG_OK)
        fail_msg("cannot fill: %s", err.message);
}

/* n_tokens ids that count up from `from`, of 2 or 4 bytes.  Returns the size in bytes. */
static size_t count_up(void *to, int n_tokens, int from, int token_bytes)
{
    for (int i = 0; i < n_tokens; i++) {
        uint32_t id = (uint32_t)(from + i); /* the first bytes of a little-endian number */
        memcpy((char *)to + i * token_bytes, &id, (size_t)token_bytes);
    }
    return (size_t)(n_tokens * token_bytes);
}

/* llm.c's layout: of 16-bit ids, or of 32-bit ids as for Llama 3. */
static void write_llmc_of(const char *dir, const char *name, int n_tokens, int from,
                          int token_bytes)
{
    struct {
        int32_t head[256];
        uint32_t ids[1000];
    } file = {.head = {token_bytes == 2 ? 20240520 : 20240801, token_bytes == 2 ? 1 : 7, n_tokens}};
    files_write(dir, name, &file,
                sizeof file.head + count_up(file.ids, n_tokens, from, token_bytes));
}

static void write_llmc(const char *dir, const char *name, int n_tokens, int from)
{
    write_llmc_of(dir, name, n_tokens, from, 2);
}

static void write_raw_of(const char *dir, const char *name, int n_tokens, int from, int token_bytes)
{
    uint32_t ids[1000];
    files_write(dir, name, ids, count_up(ids, n_tokens, from, token_bytes));
}

static void write_raw(const char *dir, const char *name, int n_tokens, int from)
{
    write_raw_of(dir, name, n_tokens, from, 2);
}

/* ---- what a sample is --------------------------------------------------------------------- */

/* The stream counts up from `base`: each window must, and must stay in its split. */
static void check_counting(struct data *data, int base, int n_train, int n_total)
{
    int32_t input[3 * T], target[3 * T];
    int n_seen[1000] = {0};
    assert_int_equal(data_n_samples(data, DATA_TRAIN), (n_train - 1) / T);
    assert_int_equal(data_n_samples(data, DATA_HELD_OUT), (n_total - n_train - 1) / T);
    for (int64_t first = 0; first < 6 * n_train; first += 3) {
        fill_good(data, DATA_TRAIN, first, 3, input, target);
        for (int i = 0; i < 3 * T; i++) {
            assert_int_equal(target[i], input[i] + 1);
            assert_int_equal(input[i], input[i / T * T] + i % T);
            assert_in_range(input[i], base, base + n_train - 2);
            n_seen[input[i] - base]++;
        }
    }
    for (int i = 0; i < n_train - 1; i++) /* every place is drawn sooner or later */
        assert_true(n_seen[i] > 0);
    int64_t n_held_out = data_n_samples(data, DATA_HELD_OUT);
    for (int64_t k = 0; k < 2 * n_held_out; k++) { /* in order, and round again */
        fill_good(data, DATA_HELD_OUT, k, 1, input, target);
        for (int i = 0; i < T; i++) {
            assert_int_equal(input[i], base + n_train + k % n_held_out * T + i);
            assert_int_equal(target[i], input[i] + 1);
        }
    }
}

static void test_streams(void **state)
{
    static const struct {
        const char *spec, *kind;
        int base, n_train, n_total, vocabulary;
    } rows[] = {
        {"raw.bin", "token shards (nanoGPT)", 300, 90, 100, 65536},
        {"llmc.bin", "token shards (llm.c)", 1000, 45, 51, 65536},
        {"shards", "token shards (llm.c)", 0, 60, 90, 65536},
        {"mixed", "token shards (mixed)", 0, 54, 60, 65536},
        {"only_val", "token shards (nanoGPT)", 5, 90, 100, 65536},
        {"text", "text bytes", 'A', 43, 48, 65536},
        {"text/file.txt", "text bytes", 'A', 14, 16, 65536},
        {"wide.bin", "token shards (nanoGPT)", 151000, 90, 100, 151936},
        {"llama.bin", "token shards (llm.c)", 65500, 90, 100, 65600},
        {"narrow.bin", "token shards (llm.c)", 300, 90, 100, 151936},
        {"llama.bin", "token shards (llm.c)", 65500, 90, 100, 128256},
        {"widths", "token shards (llm.c)", 65440, 90, 100, 128256},
    };
    char dir[FILES_PATH_MAX], text[64];
    (void)state;
    files_make_dir(dir);
    write_raw(dir, "raw.bin", 100, 300);
    write_llmc(dir, "llmc.bin", 51, 1000);
    files_make_subdir(dir, "shards"); /* val sorts before train and yet comes after it */
    write_llmc(dir, "shards/a_val_0.bin", 30, 60);
    write_llmc(dir, "shards/b_train_0.bin", 30, 0);
    write_llmc(dir, "shards/b_train_1.bin", 30, 30);
    files_write_text(dir, "shards/notes.txt", "not tokens");
    files_make_subdir(dir, "mixed");
    write_llmc(dir, "mixed/a.bin", 30, 0);
    write_raw(dir, "mixed/b.bin", 30, 30);
    files_make_subdir(dir, "only_val");
    write_raw(dir, "only_val/val.bin", 100, 5);
    write_raw_of(dir, "wide.bin", 100, 151000, 4);
    write_llmc_of(dir, "llama.bin", 100, 65500, 4);
    write_llmc(dir, "narrow.bin", 100, 300);
    files_make_subdir(dir, "widths");
    write_llmc(dir, "widths/a.bin", 50, 65440);
    write_llmc_of(dir, "widths/b.bin", 50, 65490, 4);
    files_make_subdir(dir, "text"); /* "file.txt" < "sub/..." < "tail"; the rest is left out */
    files_make_subdir(dir, "text/sub");
    files_make_subdir(dir, "text/.git");
    for (int i = 0; i < 48; i++)
        text[i] = (char)('A' + i);
    files_write(dir, "text/file.txt", text, 16);
    files_write(dir, "text/sub/b", text + 16, 3);
    files_write(dir, "text/sub/c", text + 19, 1);
    files_write(dir, "text/sub/empty", text, 0);
    files_write(dir, "text/tail", text + 20, 28);
    files_write(dir, "text/.hidden", "x", 1);
    files_write(dir, "text/.git/x", "x", 1);
    files_write(dir, "text/picture", "x\0y", 3);
    assert_int_equal(symlink("file.txt", files_path(dir, "text/link")), 0);
    assert_int_equal(symlink("..", files_path(dir, "text/loop")), 0);

    for (size_t i = 0; i < LENGTH(rows); i++) {
        struct data_request request =
            tokens_request(files_path(dir, rows[i].spec), rows[i].vocabulary);
        request.bytes_as_tokens = true;
        struct data *data = open_good(&request);
        print_message("    %s\n", rows[i].spec);
        assert_string_equal(data_kind(data), rows[i].kind);
        check_counting(data, rows[i].base, rows[i].n_train, rows[i].n_total);
        data_close(data);
    }
    files_remove_dir(dir);
}

/* ---- order -------------------------------------------------------------------------------- */

static void check_order(const struct data_request *request)
{
    enum { N = 24 };
    int64_t in = request->sample_elems, out = request->target_elems;
    struct data *a = open_good(request), *b = open_good(request);
    struct data_request reseeded = *request;
    reseeded.seed++;
    struct data *c = open_good(&reseeded);
    int32_t *x = malloc((size_t)(3 * N * in) * 4), *y = malloc((size_t)(3 * N * out) * 4);
    fill_good(a, DATA_TRAIN, 0, N, x, y);
    for (int64_t k = N - 1; k >= 0; k--) /* one by one, from the end, in another object */
        fill_good(b, DATA_TRAIN, k, 1, x + (N + k) * in, y + (N + k) * out);
    fill_good(c, DATA_TRAIN, 0, N, x + 2 * N * in, y + 2 * N * out);
    assert_memory_equal(x, x + N * in, (size_t)(N * in) * 4);
    assert_memory_equal(y, y + N * out, (size_t)(N * out) * 4);
    assert_int_not_equal(memcmp(x, x + 2 * N * in, (size_t)(N * in) * 4), 0);
    assert_true(data_fingerprint(a) == data_fingerprint(c));
    free(x);
    free(y);
    data_close(a);
    data_close(b);
    data_close(c);
}

static void test_order(void **state)
{
    char dir[FILES_PATH_MAX];
    (void)state;
    files_make_dir(dir);
    write_raw(dir, "raw.bin", 900, 0);
    struct data_request raw = tokens_request(files_path(dir, "raw.bin"), 900);
    check_order(&raw);
    struct data_request random = tokens_request("random", 50257);
    check_order(&random);
    random = (struct data_request){.spec = NULL,
                                   .target = DATA_TARGET_CLASS,
                                   .sample_elems = 784,
                                   .target_elems = 1,
                                   .n_classes = 10,
                                   .seed = 3};
    check_order(&random);
    random = (struct data_request){.spec = "random",
                                   .target = DATA_TARGET_REAL,
                                   .sample_elems = 5,
                                   .target_elems = 3,
                                   .n_classes = 0,
                                   .seed = 3};
    check_order(&random);
    files_remove_dir(dir);
}

static void test_fingerprint(void **state)
{
    char dir[FILES_PATH_MAX];
    uint64_t prints[4];
    (void)state;
    files_make_dir(dir);
    write_raw(dir, "a.bin", 100, 0);
    write_raw(dir, "same.bin", 100, 0);
    write_raw(dir, "longer.bin", 101, 0);
    files_write_text(dir, "text", "0123456789012345678901234567890123456789");
    static const char *const names[] = {"a.bin", "same.bin", "longer.bin", "text"};
    for (size_t i = 0; i < 4; i++) {
        struct data_request request = tokens_request(files_path(dir, names[i]), 256);
        struct data *data = open_good(&request);
        prints[i] = data_fingerprint(data);
        data_close(data);
    }
    assert_true(prints[0] == prints[1]); /* a file may be moved */
    assert_true(prints[0] != prints[2] && prints[0] != prints[3] && prints[2] != prints[3]);
    files_remove_dir(dir);
}

static void test_random_values(void **state)
{
    enum { N = 200 };
    static float input[N * 784];
    static int32_t target[N];
    double sum = 0, squares = 0;
    int n_of_class[10] = {0};
    (void)state;
    struct data_request request = {.spec = "random",
                                   .target = DATA_TARGET_CLASS,
                                   .sample_elems = 784,
                                   .target_elems = 1,
                                   .n_classes = 10,
                                   .seed = 5};
    struct data *data = open_good(&request);
    fill_good(data, DATA_TRAIN, 1000, N, input, target);
    for (int i = 0; i < N * 784; i++) {
        sum += input[i];
        squares += (double)input[i] * input[i];
    }
    double n = N * 784;
    assert_true(sum / n > -0.02 && sum / n < 0.02);
    assert_true(squares / n > 0.98 && squares / n < 1.02);
    for (int i = 0; i < N; i++) {
        assert_in_range(target[i], 0, 9);
        n_of_class[target[i]]++;
    }
    for (int i = 0; i < 10; i++)
        assert_in_range(n_of_class[i], 5, 40);
    float held_out[784];
    fill_good(data, DATA_HELD_OUT, 1000, 1, held_out, target);
    assert_int_not_equal(memcmp(held_out, input, sizeof held_out), 0);
    assert_true(data_n_samples(data, DATA_HELD_OUT) > 0);
    data_close(data);
}

/* ---- what is refused ---------------------------------------------------------------------- */

static const struct {
    const char *name, *file;
    const void *bytes; /* NULL: no file is made */
    size_t n_bytes;
    enum snug_status status;
    const char *words;
} rows[] = {
    {"missing", "a/b.txt", NULL, 0, SNUG_BAD_FILE, "No such file"},
    {"empty text", "e.txt", "", 0, SNUG_NO_DATA, "the file is empty"},
    {"empty shard", "e.bin", "", 0, SNUG_NO_DATA, "the file is empty"},
    {"short text", "s.txt", "abcde", 5, SNUG_NO_DATA,
     "5 tokens, 4 of them for training, but one sequence needs 5"},
    {"short shard", "s.bin", "abcdef", 6, SNUG_NO_DATA, "3 tokens, 2 of them"},
    {"odd shard", "o.bin", "abcdefg", 7, SNUG_BAD_FILE,
     "7 bytes are not a whole number of 16-bit tokens"},
    {"not text", "n.txt", "abc\0efghijkl", 12, SNUG_BAD_FILE, "not text (byte 3 is NUL)"},
    {"llm.c model", "m.bin", (const uint32_t[8]){20240326, 3}, 32, SNUG_BAD_FILE, "an llm.c model"},
    {"llm.c other", "m.bin", (const uint32_t[8]){20241101, 3}, 32, SNUG_BAD_FILE,
     "of another kind"},
    {"llama header cut short", "m.bin", (const uint32_t[8]){20240801, 7}, 32, SNUG_BAD_FILE,
     "the header alone has 1024"},
    {"llama tokens cut short", "m.bin", (const uint32_t[258]){20240801, 7, 3}, 1032, SNUG_BAD_FILE,
     "declares 3 tokens, but the file has 2"},
    {"llama version", "m.bin", (const uint32_t[258]){20240801, 1, 2}, 1032, SNUG_BAD_FILE,
     "only version 7"},
    {"PyTorch", "m.bin", "PK\3\4PK\3\4PK\3\4", 12, SNUG_BAD_FILE, "a zip file"},
    {"header cut short", "c.bin", (const uint32_t[8]){20240520, 1, 9}, 32, SNUG_BAD_FILE,
     "the header alone has 1024"},
    {"tokens cut short", "c.bin", (const uint32_t[258]){20240520, 1, 9}, 1032, SNUG_BAD_FILE,
     "declares 9 tokens, but the file has 4"},
    {"tokens too many", "c.bin", (const uint32_t[258]){20240520, 1, 3}, 1032, SNUG_BAD_FILE,
     "2 extra bytes after the 3 tokens"},
    {"version", "c.bin", (const uint32_t[258]){20240520, 2, 4}, 1032, SNUG_BAD_FILE, "version 2"},
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(rows); i++) {
        char dir[FILES_PATH_MAX];
        struct data *data;
        struct snug_error err = {0};
        files_make_dir(dir);
        if (rows[i].bytes != NULL)
            files_write(dir, rows[i].file, rows[i].bytes, rows[i].n_bytes);
        struct data_request request = tokens_request(files_path(dir, rows[i].file), 256);
        enum snug_status status = data_open(&request, &data, &err);
        if (status != rows[i].status || strstr(err.message, rows[i].words) == NULL ||
            strstr(err.message, rows[i].file) == NULL)
            fail_msg("case '%s': status %d, '%s'", rows[i].name, status, err.message);
        assert_null(data);
        files_remove_dir(dir);
    }
}

static void expect_refusal(const struct data_request *request, enum snug_status wanted,
                           const char *words)
{
    struct data *data;
    struct snug_error err = {0};
    enum snug_status status = data_open(request, &data, &err);
    if (status != wanted || strstr(err.message, words) == NULL)
        fail_msg("'%s': status %d, '%s'", request->spec, status, err.message);
}

/* "The" is not the tokens 84, 104 and 101 of a model that has 50,257. */
static void test_text_without_a_tokenizer(void **state)
{
    static const char *const names[] = {"text.txt", "folder"};
    char dir[FILES_PATH_MAX];
    (void)state;
    files_make_dir(dir);
    files_write_text(dir, "text.txt", "long enough for a window or two");
    files_make_subdir(dir, "folder");
    files_write_text(dir, "folder/a.txt", "long enough for a window or two");
    write_llmc(dir, "shard.bin", 30, 0);
    for (size_t i = 0; i < LENGTH(names); i++) {
        struct data_request request = tokens_request(files_path(dir, names[i]), 257);
        expect_refusal(&request, SNUG_MISMATCH, "vocabulary of 257 tokens");
        expect_refusal(&request, SNUG_MISMATCH, "--tokenizer bytes");
        request.bytes_as_tokens = true;
        data_close(open_good(&request));
        request.bytes_as_tokens = false;
        request.n_classes = 256;
        data_close(open_good(&request));
    }
    struct data_request request = tokens_request(files_path(dir, "shard.bin"), 50257);
    data_close(open_good(&request)); /* tokens are tokens */
    files_remove_dir(dir);
}

static void test_json_lines(void **state)
{
    static const char *const names[] = {"a.jsonl",     "a.JSONL",     "a.jsonl.gz",
                                        "a.jsonl.zst", "a.ndjson.xz", "folder/sub/a.jsonl"};
    char dir[FILES_PATH_MAX];
    (void)state;
    files_make_dir(dir);
    files_make_subdir(dir, "folder");
    files_make_subdir(dir, "folder/sub");
    files_write_text(dir, "folder/a.txt", "long enough for a window or two");
    for (size_t i = 0; i < LENGTH(names); i++) {
        files_write_text(dir, names[i], "{\"text\": \"long enough for a window\"}\n");
        bool is_inside = strchr(names[i], '/') != NULL;
        for (int bytes = 0; bytes < 2; bytes++) { /* whatever the vocabulary */
            struct data_request request =
                tokens_request(files_path(dir, is_inside ? "folder" : names[i]), 256);
            request.bytes_as_tokens = bytes;
            expect_refusal(&request, SNUG_UNSUPPORTED, "JSONL is not supported yet");
            expect_refusal(&request, SNUG_UNSUPPORTED, names[i]);
        }
    }
    files_remove_dir(dir);
}

static void test_refused_otherwise(void **state)
{
    char dir[FILES_PATH_MAX];
    (void)state;
    files_make_dir(dir);
    struct data_request request = tokens_request(dir, 256);
    expect_refusal(&request, SNUG_NO_DATA, "the folder contains no text");
    files_write(dir, "x.bin", "", 0);
    expect_refusal(&request, SNUG_NO_DATA, "the folder contains no tokens");
    request.spec = "no-such-set";
    expect_refusal(&request, SNUG_BAD_FILE, "set SNUG_DATA");
    request.spec = "";
    expect_refusal(&request, SNUG_BAD_FILE, "data \"\"");
    request.spec = "/dev/null";
    expect_refusal(&request, SNUG_BAD_FILE, "not a regular file");
    request = (struct data_request){.spec = dir,
                                    .target = DATA_TARGET_CLASS,
                                    .sample_elems = 784,
                                    .target_elems = 1,
                                    .n_classes = 10,
                                    .seed = 1};
    expect_refusal(&request, SNUG_MISMATCH, "does not take tokens");
    request.n_classes = 0;
    expect_refusal(&request, SNUG_BAD_ARGUMENT, "and 0 classes");
    files_remove_dir(dir);
}

/* 16-bit ids without a header, for a vocabulary that needs 32 bits. */
static void test_raw_of_the_wrong_width(void **state)
{
    char dir[FILES_PATH_MAX];
    int32_t input[T], target[T];
    struct snug_error err = {0};
    (void)state;
    files_make_dir(dir);
    write_raw(dir, "raw.bin", 100, 1000);
    struct data_request request = tokens_request(files_path(dir, "raw.bin"), 151936);
    struct data *data = open_good(&request);
    assert_int_equal(data_fill(data, DATA_TRAIN, 0, 1, input, target, &err), SNUG_MISMATCH);
    assert_non_null(strstr(err.message, "read as 32-bit ids"));
    data_close(data);
    write_raw(dir, "raw.bin", 99, 1000);
    expect_refusal(&request, SNUG_BAD_FILE, "198 bytes are not a whole number of 32-bit tokens");

    /* the other way round: every second half of a small 32-bit id is 0 */
    write_raw_of(dir, "raw.bin", 100, 1000, 4);
    static const int64_t short_vocabularies[] = {1100, 50257, 65536};
    for (size_t i = 0; i < LENGTH(short_vocabularies); i++) {
        request.n_classes = short_vocabularies[i];
        expect_refusal(&request, SNUG_MISMATCH, "raw.bin: these are 32-bit ids");
        expect_refusal(&request, SNUG_MISMATCH, "with llm.c's header (20240801, version 7)");
    }
    request.n_classes = 65537;
    data_close(open_good(&request));
    uint16_t ids[200] = {0}; /* padding alone says nothing */
    files_write(dir, "raw.bin", ids, sizeof ids);
    request.n_classes = 50257;
    data_close(open_good(&request));
    ids[199] = 1;
    ids[100] = 7;
    files_write(dir, "raw.bin", ids, sizeof ids);
    data_close(open_good(&request));
    write_llmc_of(dir, "llama.bin", 100, 1000, 4); /* the header says it */
    request.spec = files_path(dir, "llama.bin");
    data_close(open_good(&request));
    files_remove_dir(dir);
}

/* The id 95 and others are beyond the vocabulary: a scan finds them, the held-out part first. */
static void test_scan(void **state)
{
    static const struct {
        const char *file;
        int64_t vocabulary, most;
        const char *words; /* NULL: none is found */
    } scans[] = {
        {"raw.bin", 100, 1000, NULL},
        {"raw.bin", 95, 1000, "raw.bin: token id 95 at position 95, but"},
        {"raw.bin", 95, 6, "token id 95 at position 95"},
        {"raw.bin", 95, 5, NULL},
        {"raw.bin", 60, 10, "token id 90 at position 90"},
        {"folder", 95, 1000, "b.bin: token id 95 at position 45"},
        {"folder", 45, 5, "b.bin: token id 90 at position 40"},
        {"folder", 95, 5, NULL},
        {"late", 95, 10, NULL}, /* held out are 0..9 */
        {"late", 95, 104, NULL},
        {"late", 95, 106, "b.bin: token id 95 at position 95"},
        {"short", 95, 1000, NULL},
    };
    char dir[FILES_PATH_MAX];
    (void)state;
    files_make_dir(dir);
    write_raw(dir, "raw.bin", 100, 0);
    files_make_subdir(dir, "folder");
    write_raw(dir, "folder/a.bin", 50, 0);
    write_raw(dir, "folder/b.bin", 50, 50);
    files_make_subdir(dir, "late");
    write_raw(dir, "late/b.bin", 100, 0);
    write_raw(dir, "late/val.bin", 10, 0);
    files_make_subdir(dir, "short");
    write_raw(dir, "short/a.bin", 95, 0);
    for (size_t i = 0; i < LENGTH(scans); i++) {
        struct data_request request =
            tokens_request(files_path(dir, scans[i].file), scans[i].vocabulary);
        struct snug_error err = {0};
        struct data *data = open_good(&request);
        enum snug_status status = data_scan(data, scans[i].most, &err);
        if (status != (scans[i].words == NULL ? SNUG_OK : SNUG_MISMATCH) ||
            (scans[i].words != NULL && strstr(err.message, scans[i].words) == NULL))
            fail_msg("row %zu: status %d, '%s'", i, status, err.message);
        data_close(data);
    }
    /* data_check fails where data_fill does */
    struct data_request request = tokens_request(files_path(dir, "raw.bin"), 95);
    struct data *data = open_good(&request);
    assert_int_equal(data_check(data, DATA_HELD_OUT, 0, 1, NULL), SNUG_OK);
    assert_int_equal(data_check(data, DATA_HELD_OUT, 0, 2, NULL), SNUG_MISMATCH);
    data_close(data);
    request = tokens_request("random", 95);
    data = open_good(&request);
    assert_int_equal(data_scan(data, 1000, NULL), SNUG_OK);
    assert_int_equal(data_check(data, DATA_TRAIN, 0, 1000, NULL), SNUG_OK);
    data_close(data);
    files_remove_dir(dir);
}

static void test_refused_while_reading(void **state)
{
    char dir[FILES_PATH_MAX];
    int32_t input[T], target[T];
    struct snug_error err = {0};
    (void)state;
    files_make_dir(dir);
    write_raw(dir, "raw.bin", 100, 0);
    struct data_request request = tokens_request(files_path(dir, "raw.bin"), 95);
    struct data *data = open_good(&request);
    fill_good(data, DATA_HELD_OUT, 0, 1, input, target); /* 90..94 */
    assert_int_equal(data_fill(data, DATA_HELD_OUT, 1, 1, input, target, &err), SNUG_MISMATCH);
    assert_non_null(strstr(err.message, "raw.bin: token id 95 at position 95, but the model's "
                                        "vocabulary has 95 tokens"));
    assert_int_equal(truncate(files_path(dir, "raw.bin"), 20), 0);
    assert_int_equal(data_fill(data, DATA_HELD_OUT, 0, 1, input, target, &err), SNUG_BAD_FILE);
    assert_non_null(strstr(err.message, "truncated: it ends at byte"));
    data_close(data);

    write_raw(dir, "raw.bin", 100, 0);
    data = open_good(&request);
    assert_int_equal(truncate(files_path(dir, "raw.bin"), 199), 0);
    assert_int_equal(data_fill(data, DATA_HELD_OUT, 0, 1, input, target, &err), SNUG_BAD_FILE);
    assert_non_null(strstr(err.message, "has shrunk from 200 to 199 bytes"));
    assert_int_equal(unlink(files_path(dir, "raw.bin")), 0);
    assert_int_equal(data_fill(data, DATA_HELD_OUT, 0, 1, input, target, &err), SNUG_BAD_FILE);
    data_close(data);

    files_write_text(dir, "few", "0123456789"); /* one byte is held out: not a window */
    request = tokens_request(files_path(dir, "few"), 256);
    data = open_good(&request);
    assert_int_equal(data_n_samples(data, DATA_HELD_OUT), 0);
    assert_int_equal(data_fill(data, DATA_HELD_OUT, 0, 1, input, target, &err), SNUG_BAD_FILE);
    assert_non_null(strstr(err.message, "held-out split is shorter"));
    assert_int_equal(data_fill(data, DATA_TRAIN, -1, 1, input, target, &err), SNUG_BAD_ARGUMENT);
    data_close(data);
    files_remove_dir(dir);
}

/* ---- names -------------------------------------------------------------------------------- */

static void test_named_sets(void **state)
{
    char dir[FILES_PATH_MAX];
    (void)state;
    files_make_dir(dir);
    files_make_subdir(dir, "snug");
    files_make_subdir(dir, "snug/my-set");
    files_write_text(dir, "snug/my-set/x", "0123456789");
    struct data_request request = tokens_request("my-set", 256);
    setenv("XDG_CACHE_HOME", dir, 1);
    char *data_folder = getenv("SNUG_DATA") == NULL ? NULL : strdup(getenv("SNUG_DATA"));
    unsetenv("SNUG_DATA");
    data_close(open_good(&request)); /* in the cache */
    setenv("SNUG_DATA", files_path(dir, "snug"), 1);
    setenv("XDG_CACHE_HOME", "/nowhere", 1);
    data_close(open_good(&request));
    setenv("SNUG_DATA", "/nowhere", 1);
    expect_refusal(&request, SNUG_BAD_FILE, "my-set");
    if (data_folder == NULL)
        unsetenv("SNUG_DATA");
    else
        setenv("SNUG_DATA", data_folder, 1);
    free(data_folder);
    files_remove_dir(dir);
}

static void test_tiny_shakespeare(void **state)
{
    (void)state;
    const char *spec = "tinyshakespeare";
    if (getenv("SNUG_DATA") == NULL) {
        print_message("skip: tinyshakespeare: $SNUG_DATA is not set\n");
        skip();
    }
    struct data_request request = {.spec = spec,
                                   .target = DATA_TARGET_TOKENS,
                                   .sample_elems = 256,
                                   .target_elems = 256,
                                   .n_classes = 256,
                                   .seed = 1};
    int32_t input[256], target[256];
    struct data *data = open_good(&request);
    assert_string_equal(data_kind(data), "text bytes");
    assert_int_equal(data_n_samples(data, DATA_TRAIN), (1003854 - 1) / 256);
    assert_int_equal(data_n_samples(data, DATA_HELD_OUT), (111540 - 1) / 256);
    fill_good(data, DATA_HELD_OUT, 0, 1, input, target);
    assert_int_equal(input[0], '?');
    fill_good(data, DATA_TRAIN, 123456789, 1, input, target);
    data_close(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_fingerprint),
        cmocka_unit_test(test_random_values),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_text_without_a_tokenizer),
        cmocka_unit_test(test_json_lines),
        cmocka_unit_test(test_refused_otherwise),
        cmocka_unit_test(test_raw_of_the_wrong_width),
        cmocka_unit_test(test_scan),
        cmocka_unit_test(test_refused_while_reading),
        cmocka_unit_test(test_named_sets),
        cmocka_unit_test(test_tiny_shakespeare),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
