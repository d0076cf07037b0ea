/*
 * test_idx.c -- IDX images, plain and gzip: values, order, and the messages of refused files.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#ifdef SNUG_ZLIB
#include <zlib.h>
#endif

#include "data/data.h"
#include "support/data_sets.h"
#include "support/files.h"

#define LENGTH(array) (sizeof(array) / sizeof *(array))
enum { N_TRAIN = 20, N_TEST = 7, ROWS = 2, COLUMNS = 3, PIXELS = ROWS * COLUMNS };

#define SMALL                                                                                    \
    {                                                                                            \
        .target = DATA_TARGET_CLASS, .sample_elems = PIXELS, .target_elems = 1, .n_classes = 10, \
        .seed = 1                                                                                \
    }
static const struct data_request small = SMALL;

/* Image i of a split is PIXELS bytes of 10 i + split, and its label i % 10. */
static size_t make_images(unsigned char *out, int n, int split)
{
    const unsigned char head[] = {0, 0, 8, 3,    0, 0, 0, (unsigned char)n,
                                  0, 0, 0, ROWS, 0, 0, 0, COLUMNS};
    memcpy(out, head, sizeof head);
    for (int i = 0; i < n * PIXELS; i++)
        out[sizeof head + (size_t)i] = (unsigned char)(10 * (i / PIXELS) + split);
    return sizeof head + (size_t)(n * PIXELS);
}

static size_t make_labels(unsigned char *out, int n)
{
    const unsigned char head[] = {0, 0, 8, 1, 0, 0, 0, (unsigned char)n};
    memcpy(out, head, sizeof head);
    for (int i = 0; i < n; i++)
        out[sizeof head + (size_t)i] = (unsigned char)(i % 10);
    return sizeof head + (size_t)n;
}

static void write_set(const char *dir)
{
    unsigned char bytes[256];
    files_write(dir, "train-images-idx3-ubyte", bytes, make_images(bytes, N_TRAIN, 0));
    files_write(dir, "train-labels-idx1-ubyte", bytes, make_labels(bytes, N_TRAIN));
    files_write(dir, "t10k-images-idx3-ubyte", bytes, make_images(bytes, N_TEST, 1));
    files_write(dir, "t10k-labels-idx1-ubyte", bytes, make_labels(bytes, N_TEST));
}

/* Every image once an epoch, with its own label, and in another order the next time. */
static void check_set(struct data *data)
{
    float image[PIXELS], first_epoch[N_TRAIN];
    int32_t label;
    struct snug_error err;
    bool differs = false;
    assert_string_equal(data_kind(data), "idx images");
    assert_int_equal(data_n_samples(data, DATA_TRAIN), N_TRAIN);
    assert_int_equal(data_n_samples(data, DATA_HELD_OUT), N_TEST);
    /* bytes 0, 10, ... 190: mean 95 / 255, deviation 57.6628 / 255, rounded to four places */
    const double mean = 0.3725, deviation = 0.2261;
    for (int epoch = 0; epoch < 2; epoch++) {
        int seen[N_TRAIN] = {0};
        for (int k = 0; k < N_TRAIN; k++) {
            assert_int_equal(
                data_fill(data, DATA_TRAIN, epoch * N_TRAIN + k, 1, image, &label, &err), SNUG_OK);
            double byte = (image[0] * deviation + mean) * 255;
            int index = (int)(byte / 10 + 0.5);
            assert_in_range(index, 0, N_TRAIN - 1);
            assert_true(image[PIXELS - 1] == (float)((10 * index / 255.0 - mean) / deviation));
            assert_int_equal(label, index % 10);
            seen[index]++;
            differs = differs || (epoch == 1 && first_epoch[k] != image[0]);
            if (epoch == 0)
                first_epoch[k] = image[0];
        }
        for (int i = 0; i < N_TRAIN; i++)
            assert_int_equal(seen[i], 1);
    }
    assert_true(differs);
    for (int k = 0; k < 2 * N_TEST; k++) {
        assert_int_equal(data_fill(data, DATA_HELD_OUT, k, 1, image, &label, &err), SNUG_OK);
        int index = k % N_TEST;
        assert_int_equal(label, index % 10);
        assert_true(image[0] == (float)(((10 * index + 1) / 255.0 - mean) / deviation));
    }
}

static void test_plain(void **state)
{
    char dir[FILES_PATH_MAX];
    (void)state;
    files_make_dir(dir);
    write_set(dir);
    struct data *data = open_data(dir, &small);
    check_set(data);
    data_close(data);
    files_remove_dir(dir);
}

#ifdef SNUG_ZLIB
static void compress_file(const char *dir, const char *name, const char *compressed_name)
{
    size_t n_bytes;
    char *bytes = files_read(files_path(dir, name), &n_bytes);
    gzFile gz = gzopen(files_path(dir, compressed_name), "wb");
    assert_non_null(gz);
    assert_int_equal(gzwrite(gz, bytes, (unsigned)n_bytes), n_bytes);
    assert_int_equal(gzclose(gz), Z_OK);
    assert_int_equal(unlink(files_path(dir, name)), 0);
    free(bytes);
}

static void test_gzip(void **state)
{
    static const char *const damages[] = {"cut", "flip", "plain"};
    static const char *const words[] = {"damaged or truncated", "damaged or truncated",
                                        "not a gzip file"};
    const char *name = "train-images-idx3-ubyte.gz";
    char dir[FILES_PATH_MAX];
    size_t n_bytes;
    (void)state;
    files_make_dir(dir);
    write_set(dir);
    compress_file(dir, "train-images-idx3-ubyte", name);
    compress_file(dir, "t10k-labels-idx1-ubyte", "t10k-labels-idx1-ubyte.gz");
    struct data *data = open_data(dir, &small);
    check_set(data);
    data_close(data);

    char *good = files_read(files_path(dir, name), &n_bytes);
    for (size_t i = 0; i < LENGTH(damages); i++) {
        struct data_request request = small;
        struct snug_error err = {0};
        char *bad = malloc(n_bytes);
        memcpy(bad, good, n_bytes);
        if (i == 1)
            bad[n_bytes - 6] ^= 1; /* in the checksum */
        if (i == 2)
            memset(bad, 'x', n_bytes);
        files_write(dir, name, bad, i == 0 ? n_bytes - 9 : n_bytes);
        free(bad);
        request.spec = dir;
        assert_int_equal(data_open(&request, &data, &err), SNUG_BAD_FILE);
        if (strstr(err.message, words[i]) == NULL || strstr(err.message, name) == NULL)
            fail_msg("%s: '%s'", damages[i], err.message);
    }
    free(good);
    files_remove_dir(dir);
}
#endif

/* ---- what is refused ---------------------------------------------------------------------- */

static const struct {
    const char *name, *file;
    int at;      /* which byte of the header is changed, or -1 */
    int value;   /* to what */
    int n_bytes; /* by how much the file grows */
    struct data_request request;
    enum snug_status status;
    const char *words;
} rows[] = {
    {"wrong magic", "train-images-idx3-ubyte", 0, 1, 0, SMALL, SNUG_BAD_FILE,
     "not an IDX file of bytes (it starts with 01000803)"},
    {"floats", "train-images-idx3-ubyte", 2, 13, 0, SMALL, SNUG_BAD_FILE,
     "not an IDX file of bytes"},
    {"wrong dimensions", "train-images-idx3-ubyte", 3, 1, 0, SMALL, SNUG_BAD_FILE,
     "declares 1 dimensions; IDX images have 3"},
    {"wrong label dimensions", "t10k-labels-idx1-ubyte", 3, 3, 0, SMALL, SNUG_BAD_FILE,
     "declares 3 dimensions; IDX labels have 1"},
    {"no rows", "train-images-idx3-ubyte", 11, 0, 0, SMALL, SNUG_BAD_FILE,
     "an image side of 0 pixels"},
    {"no images", "train-images-idx3-ubyte", 7, 0, 0, SMALL, SNUG_NO_DATA, "contains no images"},
    {"cut short", "train-images-idx3-ubyte", -1, 0, -1, SMALL, SNUG_BAD_FILE,
     "truncated: the header declares 20 images, 136 bytes, but the file has 135"},
    {"too long", "t10k-labels-idx1-ubyte", -1, 0, 2, SMALL, SNUG_BAD_FILE, "too long"},
    {"only a header", "train-images-idx3-ubyte", -1, 0, -130, SMALL, SNUG_BAD_FILE, "too short"},
    {"counts differ", "train-labels-idx1-ubyte", 7, 19, -1, SMALL, SNUG_BAD_FILE,
     "19 labels for the 20 images"},
    {"image size",
     "train-images-idx3-ubyte",
     -1,
     0,
     0,
     {.target = DATA_TARGET_CLASS,
      .sample_elems = 784,
      .target_elems = 1,
      .n_classes = 10,
      .seed = 1},
     SNUG_MISMATCH,
     "images are 2 x 3 = 6 elements, but the model takes 784"},
    {"label too large",
     "train-labels-idx1-ubyte",
     -1,
     0,
     0,
     {.target = DATA_TARGET_CLASS,
      .sample_elems = PIXELS,
      .target_elems = 1,
      .n_classes = 9,
      .seed = 1},
     SNUG_MISMATCH,
     "sample 9 has label 9, but the model has 9 classes, 0 to 8"},
    {"a language model",
     "",
     -1,
     0,
     0,
     {.target = DATA_TARGET_TOKENS,
      .sample_elems = PIXELS,
      .target_elems = PIXELS,
      .n_classes = 10,
      .seed = 1},
     SNUG_MISMATCH,
     "these are labeled images"},
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(rows); i++) {
        char dir[FILES_PATH_MAX], bytes[512] = {0};
        struct data *data;
        struct snug_error err = {0};
        size_t n_bytes;
        files_make_dir(dir);
        write_set(dir);
        if (*rows[i].file != '\0') {
            char *good = files_read(files_path(dir, rows[i].file), &n_bytes);
            memcpy(bytes, good, n_bytes);
            free(good);
            if (rows[i].at >= 0)
                bytes[rows[i].at] = (char)rows[i].value;
            files_write(dir, rows[i].file, bytes, (size_t)((int)n_bytes + rows[i].n_bytes));
        }
        struct data_request request = rows[i].request;
        request.spec = dir;
        enum snug_status status = data_open(&request, &data, &err);
        if (status != rows[i].status || strstr(err.message, rows[i].words) == NULL ||
            strstr(err.message, rows[i].file) == NULL)
            fail_msg("case '%s': status %d, '%s'", rows[i].name, status, err.message);
        files_remove_dir(dir);
    }
}

static void test_missing_part(void **state)
{
    char dir[FILES_PATH_MAX];
    struct data *data;
    struct snug_error err = {0};
    (void)state;
    files_make_dir(dir);
    write_set(dir);
    assert_int_equal(unlink(files_path(dir, "t10k-labels-idx1-ubyte")), 0);
    struct data_request request = small;
    request.spec = dir;
    assert_int_equal(data_open(&request, &data, &err), SNUG_BAD_FILE);
    assert_non_null(strstr(err.message, "t10k-labels-idx1-ubyte (or t10k-labels-idx1-ubyte.gz) is "
                                        "missing"));
    files_remove_dir(dir);
}

static void test_fashion_mnist(void **state)
{
    (void)state;
    if (getenv("SNUG_DATA") == NULL) {
        print_message("skip: fashion-mnist: $SNUG_DATA is not set\n");
        skip();
    }
    struct data_request request = {.target = DATA_TARGET_CLASS,
                                   .sample_elems = 784,
                                   .target_elems = 1,
                                   .n_classes = 10,
                                   .seed = 1};
    float image[784];
    int32_t label;
    struct snug_error err;
    struct data *data = open_data("fashion-mnist", &request);
    assert_int_equal(data_n_samples(data, DATA_TRAIN), 60000);
    assert_int_equal(data_n_samples(data, DATA_HELD_OUT), 10000);
    assert_int_equal(data_fill(data, DATA_HELD_OUT, 0, 1, image, &label, &err), SNUG_OK);
    assert_int_equal(label, 9); /* an ankle boot */
    assert_true(image[0] == (float)((0 - 0.2860) / 0.3530));
    data_close(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
#ifdef SNUG_ZLIB
        cmocka_unit_test(test_gzip),
#endif
        cmocka_unit_test(test_refused),       cmocka_unit_test(test_missing_part),
        cmocka_unit_test(test_fashion_mnist),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
