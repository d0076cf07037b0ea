/*
 * test_thread_count.c -- `threads` limits everything a run does: with one, no thread is started.
 *
 * OpenMP creates its threads with pthread_create, which this program replaces by a version that
 * counts.  OpenMP's default is set to four, so that a parallel region that does not set its number
 * of threads starts three, even on a machine with one core.  Tested separately: initial weights,
 * steps, saving, resuming, evaluating, sampling and the search of fit.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#if defined(SNUG_OPENMP)
#include <omp.h>
#endif

#include "support/files.h"
#include "support/training.h"

#define LM "custom-lm"

static atomic_int n_started;

typedef int create_fn(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

__attribute__((visibility("default"))) /* libraries call it too */
int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg)
{
    union {
        void *found;
        create_fn *call;
    } real = {dlsym(RTLD_NEXT, "pthread_create")};
    n_started++;
    return real.call(thread, attr, start, arg);
}

/* Fails if the call has started threads. */
#define ALONE(call)                                                                      \
    do {                                                                                 \
        int before = n_started;                                                          \
        call;                                                                            \
        if (n_started != before)                                                         \
            fail_msg("%s with threads=1 started %d threads", #call, n_started - before); \
    } while (0)

enum { SIDE = 8, N_TRAIN = 64, N_TEST = 32 };

static void write_idx(const char *dir, const char *name, unsigned char n, bool is_images)
{
    unsigned char bytes[16 + N_TRAIN * SIDE * SIDE] = {0, 0, 8, is_images ? 3 : 1, 0, 0, 0, n};
    size_t header = is_images ? 16 : 8;
    bytes[11] = bytes[15] = is_images ? SIDE : 0;
    for (size_t i = 0; i < (size_t)n * (is_images ? SIDE * SIDE : 1); i++)
        bytes[header + i] = (unsigned char)(i % (is_images ? 251 : 10));
    files_write(dir, name, bytes, header + (size_t)n * (is_images ? SIDE * SIDE : 1));
}

static void write_images(const char *dir)
{
    write_idx(dir, "train-images-idx3-ubyte", N_TRAIN, true);
    write_idx(dir, "train-labels-idx1-ubyte", N_TRAIN, false);
    write_idx(dir, "t10k-images-idx3-ubyte", N_TEST, true);
    write_idx(dir, "t10k-labels-idx1-ubyte", N_TEST, false);
}

static void write_text(const char *dir)
{
    char text[20000];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + i * i % 23);
    files_write(dir, "text", text, sizeof text);
}

/* A language model small enough for a second, with a table that is several pieces long. */
static void write_model(const char *dir)
{
    files_make_subdir(dir, LM);
    files_write_text(files_path(dir, LM), "config.json",
                     "{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_head\": 2, \"n_embd\": 64,"
                     "\"n_positions\": 64, \"vocab_size\": 256}");
}

static void train(const char *model_spec, const char *keys, struct snug_train_options options)
{
    struct snug_error err = {0};
    snug_model *model = model_of(model_spec);
    snug_recipe *recipe = recipe_of(keys);
    snug_trainer *trainer;
    struct snug_summary summary;
    ALONE(must(snug_trainer_open(model, recipe, &options, &trainer, &err), &err));
    ALONE(must(snug_trainer_run(trainer, NULL, NULL, &err), &err));
    snug_trainer_summary(trainer, &summary);
    assert_true(summary.steps > 0);
    snug_trainer_free(trainer);
    snug_recipe_free(recipe);
    snug_model_free(model);
}

static int ignore_text(const char *text, size_t length, void *user)
{
    (void)text;
    *(size_t *)user += length;
    return 0;
}

/* Init, steps, evaluation, saving and loading of a language model, then what reads the run. */
static void test_language_model(void **state)
{
    char dir[FILES_PATH_MAX], text[FILES_PATH_MAX + 8], run[FILES_PATH_MAX + 8];
    char model[FILES_PATH_MAX + 16];
    struct snug_error err = {0};
    (void)state;
    files_make_dir(dir);
    write_text(dir);
    write_model(dir);
    strcpy(text, files_path(dir, "text"));
    strcpy(run, files_path(dir, "run"));
    strcpy(model, files_path(dir, LM));
    train(model, "threads=1 batch=4 precision=bf16 optimizer=schedule-free-adamw",
          (struct snug_train_options){.data = text, .out = run, .steps = 2, .save_every = 1});
    train(model, "threads=1", (struct snug_train_options){.out = run, .steps = 3, .resume = 1});
    snug_recipe *recipe = recipe_of("threads=1");
    struct snug_eval_result result;
    size_t n_chars = 0;
    struct snug_generate_options options = {.prompt = "a", .n_tokens = 3, .temperature = 1};
    ALONE(must(snug_eval(run, NULL, recipe, &result, &err), &err));
    ALONE(must(snug_generate(run, &options, recipe, ignore_text, &n_chars, &err), &err));
    assert_true(result.n > 0 && n_chars == 3);
    snug_recipe_free(recipe);
    files_remove_dir(dir);
}

static void test_adapters(void **state)
{
    char dir[FILES_PATH_MAX], text[FILES_PATH_MAX + 8], run[FILES_PATH_MAX + 8];
    char model[FILES_PATH_MAX + 16], base[FILES_PATH_MAX + 8];
    struct snug_error err = {0};
    struct snug_eval_result result;
    (void)state;
    files_make_dir(dir);
    write_text(dir);
    write_model(dir);
    strcpy(text, files_path(dir, "text"));
    strcpy(base, files_path(dir, "base"));
    strcpy(run, files_path(dir, "run"));
    strcpy(model, files_path(dir, LM));
    train(model, "threads=1 batch=4",
          (struct snug_train_options){.data = text, .out = base, .steps = 1});
    train(base, "threads=1 batch=4 lora=2",
          (struct snug_train_options){.data = text, .out = run, .steps = 1});
    snug_recipe *recipe = recipe_of("threads=1");
    must(snug_recipe_set(recipe, "lora-from", files_path(run, "adapter"), &err), &err);
    ALONE(must(snug_eval(base, NULL, recipe, &result, &err), &err));
    snug_recipe_free(recipe);
    files_remove_dir(dir);
}

/* Images are read from their files by several threads, at other times. */
static void test_images(void **state)
{
    char dir[FILES_PATH_MAX];
    (void)state;
    files_make_dir(dir);
    write_images(dir);
    train("cnn", "threads=1 batch=32 augment=flip",
          (struct snug_train_options){.data = dir, .steps = 2});
    files_remove_dir(dir);
}

static void test_fit(void **state)
{
    struct snug_error err = {0};
    snug_model *model = model_of("gpt-nano");
    snug_recipe *recipe = recipe_of("threads=1 memory=2G batch=8");
    snug_fit *fit;
    (void)state;
    ALONE(must(snug_fit_make(model, recipe, NULL, &fit, &err), &err));
    ALONE(must(snug_fit_sweep(fit, &err), &err));
    assert_true(snug_fit_n_points(fit) > 0);
    snug_fit_free(fit);
    snug_recipe_free(recipe);
    snug_model_free(model);
}

/* That the count above would notice. */
static void test_two_threads_are_counted(void **state)
{
    (void)state;
#if defined(SNUG_OPENMP)
    int before = n_started;
    snug_model *model = model_of("mlp");
    snug_recipe *recipe = recipe_of("threads=2 batch=64");
    struct snug_error err = {0};
    struct snug_train_options options = {.steps = 1};
    snug_trainer *trainer;
    must(snug_trainer_open(model, recipe, &options, &trainer, &err), &err);
    must(snug_trainer_run(trainer, NULL, NULL, &err), &err);
    snug_trainer_free(trainer);
    snug_recipe_free(recipe);
    snug_model_free(model);
    assert_int_equal(n_started - before, 1);
#else
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_language_model),
        cmocka_unit_test(test_adapters),
        cmocka_unit_test(test_images),
        cmocka_unit_test(test_fit),
        cmocka_unit_test(test_two_threads_are_counted),
    };
#if defined(SNUG_OPENMP)
    omp_set_dynamic(0);
    omp_set_num_threads(4);
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
