/*
 * test_safetensors.c -- what is written reads back, from one file or several; every kind of damage
 * has its own message; random damage to a header never does harm.
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

#include "base/rng.h"
#include "io/hf_config.h"
#include "io/safetensors.h"
#include "support/files.h"

#define LENGTH(array) (sizeof(array) / sizeof *(array))

static float weights[6] = {1, 2, 3, 4, 5, 6};
static uint16_t halves[3] = {7, 8, 9};
static double wide[1] = {10};
static unsigned char bytes[5] = {1, 2, 3, 4, 5};

static const struct st_entry entries[] = {
    {.name = "b", .dtype = DTYPE_u8, .shape = {1, {5}}, .data = bytes},
    {.name = "h.0.w", .dtype = DTYPE_f32, .shape = {2, {2, 3}}, .data = weights},
    {.name = "transformer.ln_f.weight", .dtype = DTYPE_bf16, .shape = {1, {3}}, .data = halves},
    {.name = "scalar", .dtype = DTYPE_f64, .shape = {0}, .data = wide},
    {.name = "none \"quoted\" \xc3\xa9", .dtype = DTYPE_f32, .shape = {2, {0, 3}}, .data = NULL},
};

static uint32_t write_sample(const char *path)
{
    static const char *const metadata[] = {"format", "pt", NULL};
    struct snug_error err = {0};
    uint32_t crc;
    enum snug_status status =
        safetensors_write(path, entries, LENGTH(entries), metadata, NULL, &crc, NULL, &err);
    assert_string_equal(err.message, "");
    assert_int_equal(status, SNUG_OK);
    return crc;
}

static void test_round_trip(void **state)
{
    char dir[FILES_PATH_MAX];
    struct safetensors *st;
    struct snug_error err = {0};
    (void)state;
    files_make_dir(dir);
    const char *path = files_path(dir, "model.safetensors");
    uint32_t crc = write_sample(path), read_crc;
    size_t n_bytes;
    char *whole = files_read(path, &n_bytes);
    assert_int_equal(file_crc32(0, whole, n_bytes), crc);
    free(whole);

    for (int order = 0; order < 3; order++) { /* forward, backward, nothing read */
        assert_int_equal(safetensors_open(path, &st, &err), SNUG_OK);
        assert_int_equal(safetensors_count(st), LENGTH(entries));
        assert_int_equal(safetensors_file_bytes(st), n_bytes);
        assert_string_equal(safetensors_metadata(st, "format"), "pt");
        assert_int_equal(strlen(safetensors_metadata(st, SAFETENSORS_SAVE)), 8);
        assert_null(safetensors_metadata(st, "x"));
        assert_null(safetensors_find(st, "c"));
        for (int k = 0; k < safetensors_count(st) && order < 2; k++) {
            char buffer[64] = {0};
            int at = order == 0 ? k : safetensors_count(st) - 1 - k;
            const struct st_entry *entry = safetensors_entry(st, at);
            assert_int_equal(entry->offset_bytes % (int64_t)dtype_bytes(entry->dtype), 0);
            assert_int_equal(safetensors_read(st, entry, buffer, &err), SNUG_OK);
            for (size_t i = 0; i < LENGTH(entries); i++)
                if (strcmp(entries[i].name, entry->name) == 0) {
                    assert_int_equal(entry->dtype, entries[i].dtype);
                    assert_int_equal(entry->shape.n_dims, entries[i].shape.n_dims);
                    assert_ptr_equal(safetensors_find(st, entries[i].name), entry);
                    if (entry->n_bytes > 0)
                        assert_memory_equal(buffer, entries[i].data, (size_t)entry->n_bytes);
                }
        }
        assert_int_equal(safetensors_crc(st, &read_crc, &err), SNUG_OK);
        assert_int_equal(read_crc, crc);
        assert_non_null(hf_find_tensor(st, "ln_f.weight"));
        assert_non_null(hf_find_tensor(st, "transformer.ln_f.weight"));
        assert_non_null(hf_find_tensor(st, "transformer.h.0.w"));
        assert_null(hf_find_tensor(st, "model.h.0.x"));
        assert_null(hf_find_tensor(st, "h.1.w"));
        safetensors_close(st);
    }
    files_remove_dir(dir);
}

static void test_write_refuses(void **state)
{
    struct st_entry twice[] = {entries[0], entries[0]};
    struct st_entry huge = {.name = "h", .dtype = DTYPE_f32, .shape = {2, {INT64_MAX / 2, 4}}};
    struct snug_error err;
    char dir[FILES_PATH_MAX];
    (void)state;
    files_make_dir(dir);
    const char *path = files_path(dir, "x");
    assert_int_equal(safetensors_write(path, twice, 2, NULL, NULL, NULL, NULL, &err),
                     SNUG_BAD_ARGUMENT);
    assert_non_null(strstr(err.message, "two tensors have the same name"));
    assert_int_equal(safetensors_write(path, &huge, 1, NULL, NULL, NULL, NULL, &err),
                     SNUG_BAD_ARGUMENT);
    assert_int_equal(
        safetensors_write(files_path(dir, "no/x"), entries, 1, NULL, NULL, NULL, NULL, &err),
        SNUG_IO_ERROR);
    int n_injected = 0;
    for (int64_t n = 1;; n++) { /* a failed write leaves no file */
        struct file_faults faults = {.fail_at = n};
        struct safetensors *st;
        if (safetensors_write(path, entries, LENGTH(entries), NULL, NULL, NULL, &faults, &err) ==
            SNUG_OK)
            break;
        n_injected++;
        assert_int_equal(safetensors_open(path, &st, &err), SNUG_BAD_FILE);
    }
    assert_true(n_injected > 5);
    files_remove_dir(dir);
}

#define F32(name, shape, begin, end) \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static const struct {
    const char *name, *header;
    int data_bytes;
    enum snug_status status;
    const char *words;
} rows[] = {
    {"good", "{" F32("a", "[2]", 0, 8) "}", 8, SNUG_OK, ""},
    {"good, unordered names", "{" F32("b", "[1]", 4, 8) "," F32("a", "[1]", 0, 4) "}  ", 8, SNUG_OK,
     ""},
    {"good, nothing in it", "{}", 0, SNUG_OK, ""},
    {"good, only notes", "{\"__metadata__\":{\"a\":\"b\"}}", 0, SNUG_OK, ""},
    {"good, a foreign type", "{\"a\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8,
     SNUG_OK, ""},
    {"not JSON", "{\"a\":", 0, SNUG_BAD_FILE, "not valid JSON"},
    {"rubbish after it", "{} {}", 0, SNUG_BAD_FILE, "not valid JSON"},
    {"not an object", "[]", 0, SNUG_BAD_FILE, "not a JSON object"},
    {"twice", "{" F32("a", "[1]", 0, 4) "," F32("a", "[1]", 4, 8) "}", 8, SNUG_BAD_FILE,
     "duplicate key \"a\""},
    {"entry is a number", "{\"a\":1}", 0, SNUG_BAD_FILE, "tensor \"a\": its header entry"},
    {"notes are a list", "{\"__metadata__\":[]}", 0, SNUG_BAD_FILE, "__metadata__ is not"},
    {"notes with a number", "{\"__metadata__\":{\"a\":1}}", 0, SNUG_BAD_FILE,
     "\"a\" is not a string"},
    {"unknown type", "{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
     SNUG_BAD_FILE, "tensor \"a\": unknown dtype \"F33\""},
    {"no type", "{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, SNUG_BAD_FILE, "\"dtype\""},
    {"no shape", "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, SNUG_BAD_FILE,
     "\"shape\""},
    {"no offsets", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, SNUG_BAD_FILE, "data_offsets"},
    {"negative dimension", "{" F32("a", "[-1]", 0, 4) "}", 4, SNUG_BAD_FILE, "integer >= 0"},
    {"fractional dimension", "{" F32("a", "[1.5]", 0, 4) "}", 4, SNUG_BAD_FILE, "integer >= 0"},
    {"too many dimensions", "{" F32("a", "[1,1,1,1,1,1,1]", 0, 4) "}", 4, SNUG_BAD_FILE,
     "7 dimensions"},
    {"shape too large", "{" F32("a", "[3]", 0, 8) "}", 8, SNUG_BAD_FILE, "need 12 bytes"},
    {"shape overflows", "{" F32("a", "[4611686018427387904,4]", 0, 0) "}", 0, SNUG_BAD_FILE,
     "larger than any file"},
    {"number overflows", "{" F32("a", "[99999999999999999999]", 0, 0) "}", 0, SNUG_BAD_FILE,
     "not valid JSON"},
    {"end before begin", "{" F32("a", "[0]", 4, 0) "}", 4, SNUG_BAD_FILE, "offsets [4, 0]"},
    {"beyond the data", "{" F32("a", "[2]", 0, 8) "}", 4, SNUG_BAD_FILE, "are outside the 4"},
    {"negative offset", "{" F32("a", "[1]", -4, 0) "}", 4, SNUG_BAD_FILE, "offsets [-4, 0]"},
    {"overlap", "{" F32("a", "[2]", 0, 8) "," F32("b", "[2]", 4, 12) "}", 12, SNUG_BAD_FILE,
     "\"b\" overlaps \"a\""},
    {"hole", "{" F32("a", "[1]", 0, 4) "," F32("b", "[1]", 8, 12) "}", 12, SNUG_BAD_FILE,
     "a gap of 4 bytes before tensor \"b\""},
    {"hole at the beginning", "{" F32("a", "[1]", 4, 8) "}", 8, SNUG_BAD_FILE, "a gap of 4"},
    {"bytes after the last", "{" F32("a", "[1]", 0, 4) "}", 7, SNUG_BAD_FILE,
     "3 extra bytes after"},
};

static void write_file(const char *dir, uint64_t length, const char *header, size_t n, int n_data)
{
    char whole[1024] = {0};
    memcpy(whole, &length, 8);
    memcpy(whole + 8, header, n);
    files_write(dir, "t", whole, 8 + n + (size_t)n_data);
}

static void test_damage(void **state)
{
    char dir[FILES_PATH_MAX];
    (void)state;
    files_make_dir(dir);
    for (size_t i = 0; i < LENGTH(rows); i++) {
        struct safetensors *st;
        struct snug_error err = {0};
        size_t n = strlen(rows[i].header);
        write_file(dir, n, rows[i].header, n, rows[i].data_bytes);
        enum snug_status status = safetensors_open(files_path(dir, "t"), &st, &err);
        if (status != rows[i].status || strstr(err.message, rows[i].words) == NULL ||
            (status != SNUG_OK && strstr(err.message, "/t: ") == NULL))
            fail_msg("case '%s': status %d, '%s'", rows[i].name, status, err.message);
        safetensors_close(st);
    }
    files_remove_dir(dir);
}

static void test_bad_length(void **state)
{
    static const struct {
        uint64_t length;
        size_t n_bytes; /* of the file; 0: only the length and a header of 2 */
        const char *words;
    } lengths[] = {{3, 0, "a header of 3 bytes, but the file has 10"},
                   {UINT64_MAX, 0, "truncated"},
                   {(uint64_t)1 << 63, 0, "truncated"},
                   {0, 0, "not valid JSON"},
                   {2, 5, "5 bytes are too few"}};
    char dir[FILES_PATH_MAX];
    struct safetensors *st;
    struct snug_error err;
    (void)state;
    files_make_dir(dir);
    for (size_t i = 0; i < LENGTH(lengths); i++) {
        write_file(dir, lengths[i].length, "{}", 2, 0);
        if (lengths[i].n_bytes != 0)
            files_write(dir, "t", "12345", lengths[i].n_bytes);
        assert_int_equal(safetensors_open(files_path(dir, "t"), &st, &err), SNUG_BAD_FILE);
        if (strstr(err.message, lengths[i].words) == NULL)
            fail_msg("row %zu: %s", i, err.message);
    }
    write_file(dir, 100000001, "{}", 2, 0);
    assert_int_equal(truncate(files_path(dir, "t"), 100000100), 0); /* sparse: nothing is written */
    assert_int_equal(safetensors_open(files_path(dir, "t"), &st, &err), SNUG_BAD_FILE);
    assert_non_null(strstr(err.message, "at most 100000000 are allowed"));
    assert_int_equal(safetensors_open(files_path(dir, "no"), &st, &err), SNUG_BAD_FILE);
    assert_int_equal(safetensors_open(dir, &st, &err), SNUG_BAD_FILE);
    files_remove_dir(dir);
}

static void test_foreign_type_is_not_read(void **state)
{
    const char *header = "{\"a\":{\"dtype\":\"BOOL\",\"shape\":[4],\"data_offsets\":[0,4]}}";
    char dir[FILES_PATH_MAX], out[8];
    struct safetensors *st;
    struct snug_error err;
    uint32_t crc;
    (void)state;
    files_make_dir(dir);
    write_file(dir, strlen(header), header, strlen(header), 4);
    assert_int_equal(safetensors_open(files_path(dir, "t"), &st, &err), SNUG_OK);
    assert_int_equal(safetensors_read(st, safetensors_entry(st, 0), out, &err), SNUG_UNSUPPORTED);
    assert_non_null(strstr(err.message, "\"a\": dtype BOOL"));
    assert_int_equal(safetensors_crc(st, &crc, &err), SNUG_OK);
    safetensors_close(st);
    files_remove_dir(dir);
}

/* ---- shards ------------------------------------------------------------------------------- */

static const struct st_entry shard_1[] = {
    {.name = "a", .dtype = DTYPE_f32, .shape = {1, {3}}, .data = weights},
    {.name = "b", .dtype = DTYPE_bf16, .shape = {1, {2}}, .data = halves}};
static const struct st_entry shard_2[] = {
    {.name = "c", .dtype = DTYPE_f32, .shape = {1, {2}}, .data = weights + 3}};

#define ONE          "model-00001-of-00002.safetensors"
#define TWO          "model-00002-of-00002.safetensors"
#define INDEX        "model.safetensors.index.json"
#define MAP(a, b, c) "{\"weight_map\": {\"a\": \"" a "\", \"b\": \"" b "\", \"c\": \"" c "\"}}"

static void write_shards(const char *dir)
{
    struct snug_error err = {0};
    assert_int_equal(
        safetensors_write(files_path(dir, ONE), shard_1, 2, NULL, NULL, NULL, NULL, &err), SNUG_OK);
    assert_int_equal(
        safetensors_write(files_path(dir, TWO), shard_2, 1, NULL, NULL, NULL, NULL, &err), SNUG_OK);
}

static void test_shards(void **state)
{
    char dir[FILES_PATH_MAX];
    struct safetensors *st;
    struct snug_error err = {0};
    bool found;
    float c[2];
    uint16_t b[2];
    (void)state;
    files_make_dir(dir);
    assert_int_equal(safetensors_has_model(dir, &found, &err), SNUG_OK);
    assert_false(found);
    write_shards(dir);
    files_write_text(dir, INDEX, MAP(ONE, ONE, TWO));
    assert_int_equal(safetensors_has_model(dir, &found, &err), SNUG_OK);
    assert_true(found);
    assert_int_equal(safetensors_open_folder(dir, &st, &err), SNUG_OK);
    assert_int_equal(safetensors_count(st), 3);
    const struct st_entry *entry = safetensors_find(st, "c");
    assert_non_null(entry);
    assert_non_null(strstr(safetensors_path(st), INDEX));
    assert_non_null(strstr(safetensors_path_of(st, entry), TWO));
    assert_int_equal(safetensors_read(st, entry, c, &err), SNUG_OK);
    assert_memory_equal(c, weights + 3, sizeof c);
    assert_int_equal(safetensors_read(st, safetensors_find(st, "b"), b, &err), SNUG_OK);
    assert_memory_equal(b, halves, sizeof b);
    assert_null(safetensors_find(st, "d"));
    safetensors_close(st);

    write_sample(files_path(dir, "model.safetensors")); /* one file goes before shards */
    assert_int_equal(safetensors_open_folder(dir, &st, &err), SNUG_OK);
    assert_int_equal(safetensors_count(st), LENGTH(entries));
    safetensors_close(st);
    files_remove_dir(dir);
}

/* An index from elsewhere names only files of its own folder, and says where each tensor is. */
static void test_bad_index(void **state)
{
    static const struct {
        const char *name, *index, *words;
    } cases[] = {
        {"not JSON", "{", "not valid JSON"},
        {"a list", "[]", "must contain a JSON object"},
        {"no map", "{\"metadata\": {}}", "\"weight_map\" is missing"},
        {"map is a list", "{\"weight_map\": []}", "\"weight_map\" must be an object"},
        {"a number", "{\"weight_map\": {\"a\": 1}}", "tensor \"a\": \"\" is not the name"},
        {"parent folder", MAP("../" ONE, ONE, TWO), "\"../" ONE "\" is not the name"},
        {"absolute", MAP("/etc/x.safetensors", ONE, TWO), "\"/etc/x.safetensors\" is not the"},
        {"below", MAP("sub/x.safetensors", ONE, TWO), "\"sub/x.safetensors\" is not the name"},
        {"hidden", MAP("..safetensors", ONE, TWO), "\"..safetensors\" is not the name"},
        {"empty", MAP("", ONE, TWO), "\"\" is not the name"},
        {"another kind", MAP("config.json", ONE, TWO), "\"config.json\" is not the name"},
        {"no such shard", MAP(ONE, ONE, "model-3.safetensors"), "model-3.safetensors is missing"},
        {"wrong shard", MAP(ONE, TWO, TWO), "tensor \"b\" is not in " TWO},
        {"no such tensor", "{\"weight_map\": {\"a\": \"" ONE "\", \"d\": \"" ONE "\"}}",
         "tensor \"d\" is not in " ONE},
        {"a tensor too many", "{\"weight_map\": {\"a\": \"" ONE "\", \"c\": \"" TWO "\"}}",
         "tensor \"b\" of "},
        {"twice in the index", "{\"weight_map\": {\"a\": \"" ONE "\", \"a\": \"" TWO "\"}}",
         "duplicate"},
        {"in two shards", MAP(ONE, ONE, TWO), "tensor \"a\" is in two files, "},
    };
    char dir[FILES_PATH_MAX], inside[FILES_PATH_MAX];
    (void)state;
    files_make_dir(dir);
    files_make_subdir(dir, "inside");
    write_shards(dir);
    snprintf(inside, sizeof inside, "%s", files_path(dir, "inside"));
    write_shards(inside);
    for (size_t i = 0; i < LENGTH(cases); i++) {
        struct safetensors *st;
        struct snug_error err = {0};
        if (strcmp(cases[i].name, "in two shards") == 0)
            assert_int_equal(safetensors_write(files_path(inside, TWO),
                                               (struct st_entry[]){shard_1[0], shard_2[0]}, 2, NULL,
                                               NULL, NULL, NULL, &err),
                             SNUG_OK);
        files_write_text(inside, INDEX, cases[i].index);
        enum snug_status status = safetensors_open_folder(inside, &st, &err);
        if (status != SNUG_BAD_FILE || strstr(err.message, cases[i].words) == NULL || st != NULL)
            fail_msg("case '%s': status %d, '%s'", cases[i].name, status, err.message);
    }
    files_remove_dir(dir);
}

/* Opens a damaged copy and reads all that the index says is there. */
static bool survives(const char *path)
{
    struct safetensors *st;
    struct snug_error err;
    if (safetensors_open(path, &st, &err) != SNUG_OK) {
        assert_true(strlen(err.message) > strlen(path));
        return false;
    }
    for (int i = 0; i < safetensors_count(st); i++) {
        const struct st_entry *entry = safetensors_entry(st, i);
        void *out = malloc((size_t)entry->n_bytes + 1);
        assert_non_null(out);
        (void)safetensors_read(st, entry, out, &err);
        free(out);
    }
    safetensors_close(st);
    return true;
}

static void test_random_damage(void **state)
{
    enum { N_RUNS = 4000, SEED = 20 };
    static const char hostile[] = "0123456789-{}[],:\"eE.";
    char dir[FILES_PATH_MAX];
    size_t n_bytes;
    int n_survived = 0;
    (void)state;
    files_make_dir(dir);
    write_sample(files_path(dir, "good"));
    char *good = files_read(files_path(dir, "good"), &n_bytes);
    char *bad = malloc(n_bytes);
    for (uint64_t run = 0; run < N_RUNS; run++) {
        memcpy(bad, good, n_bytes);
        uint64_t n_changes = 1 + rng_u64(SEED, run, 0) % 4;
        for (uint64_t k = 0; k < n_changes; k++) {
            size_t at = (size_t)(rng_u64(SEED, run, 3 * k + 1) % n_bytes);
            uint64_t draw = rng_u64(SEED, run, 3 * k + 2);
            bad[at] =
                draw % 3 == 0 ? (char)(draw >> 32) : hostile[(draw >> 8) % (sizeof hostile - 1)];
        }
        size_t kept = run % 10 == 0 ? (size_t)(rng_u64(SEED, run, 99) % n_bytes) : n_bytes;
        files_write(dir, "bad", bad, kept);
        n_survived += survives(files_path(dir, "bad"));
    }
    /* damage to data, notes and names passes; both kinds must occur or nothing was tested */
    assert_in_range(n_survived, N_RUNS / 100, N_RUNS * 9 / 10);
    free(bad);
    free(good);
    files_remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_write_refuses),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_bad_length),
        cmocka_unit_test(test_foreign_type_is_not_read),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_bad_index),
        cmocka_unit_test(test_random_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
