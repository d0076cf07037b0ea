/*
 * test_formats.c -- runs of an older format continue by the rules they began with, and a newer
 * format is refused by name.
 *
 * fixtures/format-N/NAME is a run that a program before format N + 1 saved after 3 steps;
 * NAME.safetensors has its weights after that program resumed it to step 6 (make.sh).
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/files.h"
#include "support/training.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

static const char fixtures[] = "tests/train/fixtures";

static void copy_run(const char *name, const char *out)
{
    static const char *const files[] = {"config.json",       "metrics.jsonl",
                                        "plan.json",         "state.json",
                                        "model.safetensors", "optimizer.safetensors"};
    for (int i = 0; i < LENGTH(files); i++) {
        size_t n_bytes;
        char *bytes = files_read(files_path(files_path(fixtures, name), files[i]), &n_bytes);
        files_write(out, files[i], bytes, n_bytes);
        free(bytes);
    }
}

/* Steps 4 to 6 of the run in `out`. */
static enum snug_status resume(const char *out, const char *keys, struct snug_error *err)
{
    snug_trainer *trainer = NULL;
    snug_model *model = model_of("mlp:4-3-2");
    snug_recipe *recipe = recipe_of(keys);
    struct snug_train_options options = {.steps = 6, .out = out, .resume = 1, .eval_every = -1};
    enum snug_status status = snug_trainer_open(model, recipe, &options, &trainer, err);
    if (status == SNUG_OK)
        status = snug_trainer_run(trainer, NULL, NULL, err);
    snug_trainer_free(trainer);
    snug_recipe_free(recipe);
    snug_model_free(model);
    return status;
}

/* How far the weights are from those of the old program, relative to what three steps changed. */
static double error_of(const char *name, const char *out)
{
    char file[64];
    struct snug_error err;
    struct safetensors *now, *then, *before;
    double n_off = 0, n_moved = 0;
    snprintf(file, sizeof file, "%s.safetensors", name);
    must(safetensors_open(files_path(out, "model.safetensors"), &now, &err), &err);
    must(safetensors_open(files_path(fixtures, file), &then, &err), &err);
    must(safetensors_open(files_path(files_path(fixtures, name), "model.safetensors"), &before,
                          &err),
         &err);
    assert_int_equal(safetensors_count(then), 4);
    for (int i = 0; i < safetensors_count(then); i++) {
        const struct st_entry *entry = safetensors_entry(then, i);
        int64_t n = shape_elems(&entry->shape);
        float a[16], b[16], c[16];
        assert_in_range(n, 1, LENGTH(a));
        read_raw(now, entry->name, a, (size_t)n * sizeof *a);
        read_raw(then, entry->name, b, (size_t)n * sizeof *b);
        read_raw(before, entry->name, c, (size_t)n * sizeof *c);
        for (int64_t k = 0; k < n; k++) {
            n_off += pow((double)a[k] - (double)b[k], 2);
            n_moved += pow((double)b[k] - (double)c[k], 2);
        }
    }
    safetensors_close(now);
    safetensors_close(then);
    safetensors_close(before);
    return sqrt(n_off / n_moved);
}

static void expect_in_state(const char *out, const char *words)
{
    size_t n_bytes;
    char *state = files_read(files_path(out, "state.json"), &n_bytes);
    if (strstr(state, words) == NULL)
        fail_msg("state.json has no %s: %s", words, state);
    free(state);
}

static const struct {
    const char *name, *keys; /* keys: given when it is resumed */
    bool is_same;            /* as the old program's */
    const char *saved;       /* in the state.json of now */
} runs[] = {
    {"format-1/adam", "", true, "eps=1e-08,decoupled=1\""},
    {"format-1/adam", "opt=beta1=0.9", true,
     "eps=1e-08,decoupled=1\""}, /* what is not named stays */
    {"format-1/adam", "opt=decoupled=0", false, "decoupled=0\""},
    {"format-1/amsgrad", "", true, "eps=1e-08,decoupled=1\""},
    {"format-1/amsgrad", "opt=decoupled=0", false, "decoupled=0\""},
    {"format-1/adafactor", "", true,
     "\"schedule\": \"constant\""}, /* these ignored a flag that was saved */
    {"format-1/adafactor", "schedule=cosine", false, "\"schedule\": \"cosine\""},
    {"format-1/amos", "", true, "\"weight-decay\": \"0\""},
    {"format-1/cyclic-lr", "", true, "\"schedule\": \"constant\""},
    {"format-2/adamw", "", true, "\"deterministic\": \"no\""},
    {"format-2/adamw", "deterministic=yes", true, "\"deterministic\": \"yes\""},
    {"format-2/adamw", "order=fixed", true, "\"deterministic\": \"yes\""},
};

static void test_runs_of_older_formats_keep_their_rules(void **state)
{
    (void)state;
    for (int i = 0; i < LENGTH(runs); i++) {
        char dir[FILES_PATH_MAX];
        struct snug_error err;
        files_make_dir(dir);
        copy_run(runs[i].name, dir);
        must(resume(dir, runs[i].keys, &err), &err);
        double error = error_of(runs[i].name, dir);
        if (runs[i].is_same ? !(error < 1e-6) : !(error > 1e-2))
            fail_msg("%s \"%s\": %.3g away from the old program", runs[i].name, runs[i].keys,
                     error);
        print_message("# %s \"%s\": %.1e\n", runs[i].name, runs[i].keys, error);
        expect_in_state(dir, "\"format\": 3");
        expect_in_state(dir, runs[i].saved);
        files_remove_dir(dir);
    }
}

static void test_a_newer_format_is_refused_by_name(void **state)
{
    (void)state;
    char dir[FILES_PATH_MAX];
    struct snug_error err;
    size_t n_bytes;
    files_make_dir(dir);
    copy_run("format-1/adam", dir);
    char *text = files_read(files_path(dir, "state.json"), &n_bytes);
    char *format = strstr(text, "\"format\": 1");
    assert_non_null(format);
    format[strlen("\"format\": ")] = '4';
    files_write(dir, "state.json", text, n_bytes);
    free(text);
    assert_int_equal(resume(dir, "", &err), SNUG_BAD_FILE);
    if (strstr(err.message, "format 4") == NULL || strstr(err.message, "up to 3") == NULL)
        fail_msg("%s", err.message);
    files_remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs_of_older_formats_keep_their_rules),
        cmocka_unit_test(test_a_newer_format_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
