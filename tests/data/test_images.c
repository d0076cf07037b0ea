/*
 * test_images.c -- CIFAR-10's files, IDX folders of other names, one-hot targets, and augmentation.
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
#include "support/data_sets.h"
#include "support/files.h"

enum { SIDE = 32, PLANE = SIDE * SIDE, ELEMS = 3 * PLANE, RECORD = ELEMS + 1 };
enum { N_TRAIN = 7, N_TEST = 3 };

static const struct data_request cifar = {.target = DATA_TARGET_CLASS,
                                          .sample_elems = ELEMS,
                                          .target_elems = 1,
                                          .n_classes = 10,
                                          .seed = 1};

/* Red is the sample's number, green the column, blue the row; labels count down from 9. */
static void write_batch(const char *dir, const char *name, int first, int n, int extra_bytes)
{
    unsigned char *bytes = calloc((size_t)(n + 1), RECORD);
    for (int s = 0; s < n; s++) {
        unsigned char *record = bytes + s * RECORD;
        record[0] = (unsigned char)(9 - first - s);
        for (int i = 0; i < PLANE; i++) {
            record[1 + i] = (unsigned char)(10 + first + s);
            record[1 + PLANE + i] = (unsigned char)(10 + i % SIDE);
            record[1 + 2 * PLANE + i] = (unsigned char)(10 + i / SIDE);
        }
    }
    files_write(dir, name, bytes, (size_t)(n * RECORD + extra_bytes));
    free(bytes);
}

static void write_cifar(const char *dir)
{
    write_batch(dir, "data_batch_1.bin", 0, 4, 0);
    write_batch(dir, "data_batch_2.bin", 4, 3, 0);
    write_batch(dir, "test_batch.bin", 7, N_TEST, 0);
}

static void fill(struct data *data, enum data_split split, int64_t at, float *image, void *target)
{
    struct snug_error err = {0};
    if (data_fill(data, split, at, 1, image, target, &err) != SNUG_OK)
        fail_msg("%s", err.message);
}

static void test_cifar(void **state)
{
    static const char *const homes[] = {".", "cifar-10-batches-bin"};
    (void)state;
    for (int h = 0; h < 2; h++) {
        char dir[FILES_PATH_MAX], home[2 * FILES_PATH_MAX];
        static float image[ELEMS];
        int32_t label;
        int seen = 0;
        files_make_dir(dir);
        if (h == 1)
            files_make_subdir(dir, homes[h]);
        snprintf(home, sizeof home, "%s/%s", dir, homes[h]);
        write_cifar(home);
        struct data *data = open_data(dir, &cifar);
        assert_string_equal(data_kind(data), "cifar-10 images");
        assert_int_equal(data_n_samples(data, DATA_TRAIN), N_TRAIN);
        assert_int_equal(data_n_samples(data, DATA_HELD_OUT), N_TEST);
        assert_true(data_has_classes(data));
        /* green and blue: bytes 10 to 41, mean 25.5 / 255, deviation 9.2331 / 255 */
        for (int k = 0; k < N_TRAIN; k++) {
            fill(data, DATA_TRAIN, k, image, &label);
            seen |= 1 << label;
            assert_true(image[PLANE] == (float)((10 / 255.0 - 0.1) / 0.0362));
            assert_true(image[PLANE + SIDE - 1] == (float)((41 / 255.0 - 0.1) / 0.0362));
            assert_true(image[2 * PLANE + SIDE - 1] == (float)((10 / 255.0 - 0.1) / 0.0362));
            assert_true(image[ELEMS - 1] == (float)((41 / 255.0 - 0.1) / 0.0362));
            /* red: bytes 10 to 16, mean 13 / 255, deviation 2 / 255; the label says which */
            assert_true(image[0] == (float)(((19 - label) / 255.0 - 0.051) / 0.0078));
        }
        assert_int_equal(seen, 0x3f8); /* 9 down to 3 */
        fill(data, DATA_HELD_OUT, 1, image, &label);
        assert_int_equal(label, 1);
        data_close(data);
        files_remove_dir(dir);
    }
}

static const struct {
    const char *name, *file;
    int n, first, extra;
    struct data_request wants; /* all 0: the usual */
    enum snug_status status;
    const char *words;
} bad_rows[] = {
    {"cut short",
     "data_batch_2.bin",
     3,
     4,
     -1,
     {0},
     SNUG_BAD_FILE,
     "data_batch_2.bin: truncated: 9218 bytes are not a multiple of 3073, the bytes of an image"},
    {"empty", "test_batch.bin", 0, 0, 0, {0}, SNUG_NO_DATA, "test_batch.bin: empty"},
    {"label",
     "data_batch_2.bin",
     3,
     -2,
     0,
     {0},
     SNUG_MISMATCH,
     "data_batch_2.bin: sample 0 has label 11, but the model has 10 classes, 0 to 9"},
    {"size",
     "data_batch_2.bin",
     3,
     4,
     0,
     {.target = DATA_TARGET_CLASS, .sample_elems = 784, .target_elems = 1, .n_classes = 10},
     SNUG_MISMATCH,
     "images are 3 x 32 x 32 = 3072 elements, but the model takes 784"},
    {"shape",
     "data_batch_2.bin",
     3,
     4,
     0,
     {.target = DATA_TARGET_CLASS,
      .sample_elems = ELEMS,
      .target_elems = 1,
      .n_classes = 10,
      .channels = 1,
      .height = 64,
      .width = 48},
     SNUG_MISMATCH,
     "images are 3 x 32 x 32 (channels, height, width), but the model takes 1 x 64 x 48"},
    {"tokens",
     "data_batch_2.bin",
     3,
     4,
     0,
     {.target = DATA_TARGET_TOKENS, .sample_elems = 8, .target_elems = 8, .n_classes = 256},
     SNUG_MISMATCH,
     "these are labeled images"},
};

static void test_bad_cifar(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_rows / sizeof *bad_rows; i++) {
        char dir[FILES_PATH_MAX];
        struct data *data;
        struct snug_error err = {0};
        struct data_request request =
            bad_rows[i].wants.sample_elems > 0 ? bad_rows[i].wants : cifar;
        files_make_dir(dir);
        write_cifar(dir);
        write_batch(dir, bad_rows[i].file, bad_rows[i].first, bad_rows[i].n, bad_rows[i].extra);
        request.spec = dir;
        if (data_open(&request, &data, &err) != bad_rows[i].status ||
            strstr(err.message, bad_rows[i].words) == NULL)
            fail_msg("%s: '%s'", bad_rows[i].name, err.message);
        files_remove_dir(dir);
    }
}

/* ---- IDX ---------------------------------------------------------------------------------- */

enum { ROWS = 5, COLUMNS = 6, PIXELS = ROWS * COLUMNS };

static const struct data_request idx = {.target = DATA_TARGET_CLASS,
                                        .sample_elems = PIXELS,
                                        .target_elems = 1,
                                        .n_classes = 4,
                                        .seed = 3};

/* Three images of bytes 1, 2, ... 30, then 31...; labels 0, 1, 2. */
static void write_part(const char *dir, const char *prefix)
{
    char name[64];
    unsigned char images[16 + 3 * PIXELS] = {0, 0, 8, 3,    0, 0, 0, 3,
                                             0, 0, 0, ROWS, 0, 0, 0, COLUMNS};
    const unsigned char labels[] = {0, 0, 8, 1, 0, 0, 0, 3, 0, 1, 2};
    for (int i = 0; i < 3 * PIXELS; i++)
        images[16 + i] = (unsigned char)(i + 1);
    snprintf(name, sizeof name, "%s-images-idx3-ubyte", prefix);
    files_write(dir, name, images, sizeof images);
    snprintf(name, sizeof name, "%s-labels-idx1-ubyte", prefix);
    files_write(dir, name, labels, sizeof labels);
}

static void test_idx_names(void **state)
{
    static const char *const names[][2] = {
        {"train", "t10k"}, {"train", "test"}, {"emnist-digits-train", "emnist-digits-test"}};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char dir[FILES_PATH_MAX];
        files_make_dir(dir);
        write_part(dir, names[i][0]);
        write_part(dir, names[i][1]);
        struct data *data = open_data(dir, &idx);
        assert_int_equal(data_n_samples(data, DATA_TRAIN), 3);
        data_close(data);
        if (i == 2) {
            struct data_request request = idx;
            struct snug_error err = {0};
            request.spec = dir;
            write_part(dir, "emnist-letters-train");
            assert_int_equal(data_open(&request, &data, &err), SNUG_BAD_FILE);
            assert_non_null(strstr(err.message, "belong to different data sets"));
        }
        files_remove_dir(dir);
    }
}

static void test_one_hot(void **state)
{
    char dir[FILES_PATH_MAX];
    float image[PIXELS], target[4];
    struct data_request request = idx;
    (void)state;
    files_make_dir(dir);
    write_part(dir, "train");
    write_part(dir, "test");
    request.target = DATA_TARGET_REAL;
    request.target_elems = 4;
    struct data *data = open_data(dir, &request);
    for (int k = 0; k < 3; k++) {
        fill(data, DATA_HELD_OUT, k, image, target);
        for (int i = 0; i < 4; i++)
            assert_true(target[i] == (i == k ? 1.0f : 0.0f));
    }
    data_close(data);
    files_remove_dir(dir);
}

/* ---- augmentation ------------------------------------------------------------------------- */

/* The image that `got` comes from by flipping and by a shift of (right, down); 0: none does so. */
static bool comes_from(const float *plain, float black, const float *got, bool flipped, int right,
                       int down)
{
    for (int y = 0; y < ROWS; y++)
        for (int x = 0; x < COLUMNS; x++) {
            int from_y = y - down, from_x = x - right;
            bool inside = from_y >= 0 && from_y < ROWS && from_x >= 0 && from_x < COLUMNS;
            int column = flipped ? COLUMNS - 1 - from_x : from_x;
            float right_value = inside ? plain[from_y * COLUMNS + column] : black;
            if (got[y * COLUMNS + x] != right_value)
                return false;
        }
    return true;
}

struct found {
    int n_flipped, n_moved, n_max, n_samples;
};

static void check_augmented(const char *dir, int augment, struct found *found)
{
    struct data_request request = idx;
    float plain[PIXELS], got[PIXELS], again[PIXELS];
    int32_t label, other;
    struct data *before = open_data(dir, &request);
    request.augment = augment;
    struct data *data = open_data(dir, &request), *second = open_data(dir, &request);
    /* byte v is (v / 255 - mean) / deviation: a straight line through bytes 1 and 2 */
    fill(before, DATA_HELD_OUT, 0, plain, &label);
    float black = 2 * plain[0] - plain[1];
    for (int k = 299; k >= 0; k--) {
        bool known = false;
        fill(before, DATA_TRAIN, k, plain, &label);
        fill(data, DATA_TRAIN, k, got, &other);
        assert_int_equal(label, other);
        for (int flipped = 0; flipped < 2; flipped++)
            for (int right = -4; right <= 4; right++)
                for (int down = -4; down <= 4; down++) {
                    float near_black = black;
                    for (int i = 0; i < PIXELS; i++) /* rounding of the line */
                        near_black =
                            got[i] < plain[0] && got[i] < black + 1e-3f && got[i] > black - 1e-3f
                                ? got[i]
                                : near_black;
                    if (known || !comes_from(plain, near_black, got, flipped, right, down))
                        continue;
                    known = true;
                    found->n_flipped += flipped;
                    found->n_moved += right != 0 || down != 0;
                    found->n_max += abs(right) == 4 || abs(down) == 4;
                }
        assert_true(known);
        found->n_samples++;
    }
    for (int k = 0; k < 300; k++) { /* in another order: the same */
        fill(data, DATA_TRAIN, k, got, &label);
        fill(second, DATA_TRAIN, k, again, &other);
        assert_memory_equal(got, again, sizeof got);
    }
    for (int k = 0; k < 3; k++) { /* held out: as they are */
        fill(before, DATA_HELD_OUT, k, plain, &label);
        fill(data, DATA_HELD_OUT, k, got, &other);
        assert_memory_equal(got, plain, sizeof got);
    }
    data_close(before);
    data_close(data);
    data_close(second);
}

static void test_augmentation(void **state)
{
    char dir[FILES_PATH_MAX];
    (void)state;
    files_make_dir(dir);
    write_part(dir, "train");
    write_part(dir, "test");
    for (int augment = 0; augment < 4; augment++) {
        struct found found = {0};
        check_augmented(dir, augment, &found);
        assert_int_equal(found.n_samples, 300);
        if (augment & DATA_AUGMENT_flip)
            assert_in_range(found.n_flipped, 100, 200);
        else
            assert_int_equal(found.n_flipped, 0);
        if (augment & DATA_AUGMENT_shift)
            assert_true(found.n_moved > 270 && found.n_max > 60);
        else
            assert_int_equal(found.n_moved, 0);
    }
    files_remove_dir(dir);
}

static void test_augmentation_is_for_images(void **state)
{
    struct data_request request = {.spec = "random",
                                   .target = DATA_TARGET_CLASS,
                                   .sample_elems = 4,
                                   .target_elems = 1,
                                   .n_classes = 2,
                                   .augment = DATA_AUGMENT_flip};
    struct data *data;
    struct snug_error err = {0};
    (void)state;
    assert_int_equal(data_open(&request, &data, &err), SNUG_BAD_ARGUMENT);
    assert_non_null(strstr(err.message, "--augment works on images only"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cifar),        cmocka_unit_test(test_bad_cifar),
        cmocka_unit_test(test_idx_names),    cmocka_unit_test(test_one_hot),
        cmocka_unit_test(test_augmentation), cmocka_unit_test(test_augmentation_is_for_images),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
