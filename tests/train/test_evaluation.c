/*
 * test_evaluation.c -- every held-out window of a language model is scored once, whatever the
 * micro-batch.
 *
 * The expected value is the loss of each window alone: a data set whose held-out file has only that
 * window.  For held-out files with 1 to 31 windows, and some tokens that do not fill one,
 * `snug_eval` and the validation of a run must find the mean over the first windows.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/files.h"
#include "support/training.h"

enum { SEQ = 8, MOST = 31, N_TOKENS = MOST * SEQ + 1 };
static const double max_error = 1e-6; /* relative; sums of fp32 losses in another order */

static const int counts[] = {1, 7, 15, 17, 31}, micro_batches[] = {1, 2, 3, 4, 7, 8, 12, 16, 64};
#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

struct world {
    char dir[FILES_PATH_MAX], run[FILES_PATH_MAX + 8];
    uint16_t tokens[N_TOKENS];
    double loss[MOST]; /* of each window alone */
};

/* A set with a held-out file of `n` tokens from `first` on. */
static const char *write_set(struct world *w, int first, int n)
{
    static char set[FILES_PATH_MAX + 8];
    strcpy(set, files_path(w->dir, "set"));
    files_write(set, "train.bin", w->tokens, sizeof w->tokens);
    files_write(set, "val.bin", w->tokens + first, (size_t)n * sizeof *w->tokens);
    return set;
}

static struct snug_eval_result evaluate(const struct world *w, const char *set, int micro_batch)
{
    char keys[64];
    struct snug_error err = {0};
    struct snug_eval_result result;
    snprintf(keys, sizeof keys, "threads=1 batch=%d", micro_batch);
    snug_recipe *recipe = recipe_of(keys);
    must(snug_eval(w->run, set, recipe, &result, &err), &err);
    snug_recipe_free(recipe);
    return result;
}

static double mean_of_first(const struct world *w, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += w->loss[i];
    return sum / n;
}

static int keep_last(const struct snug_metrics *metrics, void *user)
{
    *(struct snug_metrics *)user = *metrics;
    return 0;
}

/* Two steps; with `out` they are saved. */
static struct snug_metrics train(const char *spec, const char *keys,
                                 struct snug_train_options options)
{
    struct snug_error err = {0};
    struct snug_metrics last = {0};
    snug_model *model = model_of(spec);
    snug_recipe *recipe = recipe_of(keys);
    snug_trainer *trainer;
    options.steps = 2;
    must(snug_trainer_open(model, recipe, &options, &trainer, &err), &err);
    must(snug_trainer_run(trainer, keep_last, &last, &err), &err);
    snug_trainer_free(trainer);
    snug_recipe_free(recipe);
    snug_model_free(model);
    return last;
}

static int make_world(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    files_make_dir(w->dir);
    files_make_subdir(w->dir, "set");
    files_make_subdir(w->dir, "model");
    files_write_text(files_path(w->dir, "model"), "config.json",
                     "{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_head\": 2, \"n_embd\": 16,"
                     "\"n_positions\": 8, \"vocab_size\": 64}");
    for (int i = 0; i < N_TOKENS; i++)
        w->tokens[i] = (uint16_t)((i * i + i / 7) % 61);
    strcpy(w->run, files_path(w->dir, "run"));
    train(files_path(w->dir, "model"), "threads=1 batch=4 lr=0.05",
          (struct snug_train_options){
              .data = write_set(w, 0, N_TOKENS), .out = w->run, .eval_every = -1});
    for (int i = 0; i < MOST; i++) {
        struct snug_eval_result alone = evaluate(w, write_set(w, i * SEQ, SEQ + 1), 1);
        assert_int_equal(alone.n, SEQ);
        w->loss[i] = alone.loss;
    }
    *state = w;
    return 0;
}

static int free_world(void **state)
{
    struct world *w = *state;
    files_remove_dir(w->dir);
    free(w);
    return 0;
}

static void expect(double found, double truth, const char *what, int n, int micro_batch)
{
    if (!(fabs(found - truth) <= max_error * truth))
        fail_msg("%s of %d windows in micro-batches of %d: %.9g, window by window %.9g", what, n,
                 micro_batch, found, truth);
}

/* A tail of T tokens, one too few for a window, is not scored. */
static void test_eval_scores_every_window(void **state)
{
    struct world *w = *state;
    for (int c = 0; c < LENGTH(counts); c++)
        for (int tail = 0; tail < SEQ; tail += SEQ - 1) {
            int n = counts[c], n_tokens = n * SEQ + 1 + (n < MOST ? tail : 0);
            const char *set = write_set(w, 0, n_tokens);
            for (int m = 0; m < LENGTH(micro_batches); m++) {
                struct snug_eval_result result = evaluate(w, set, micro_batches[m]);
                assert_int_equal(result.n, n * SEQ);
                expect(result.loss, mean_of_first(w, n), "eval", n, micro_batches[m]);
            }
        }
}

/* In the arena of a run that changes nothing. */
static void test_validation_scores_every_window(void **state)
{
    struct world *w = *state;
    for (int c = 0; c < LENGTH(counts); c++)
        for (int micro = 1; micro <= 16; micro = 2 * micro + 1) {
            char keys[64];
            int n = counts[c];
            snprintf(keys, sizeof keys, "threads=1 batch=%d lr=0 optimizer=sgd", micro);
            struct snug_metrics last = train(
                w->run, keys, (struct snug_train_options){.data = write_set(w, 0, n * SEQ + 1)});
            assert_true(last.has_validation);
            expect(last.val_loss, mean_of_first(w, n), "validation", n, micro);
        }
}

static void test_eval_batches_says_how_many(void **state)
{
    struct world *w = *state;
    const char *set = write_set(w, 0, N_TOKENS);
    struct snug_metrics last = train(w->run, "threads=1 batch=9 micro-batch=3 lr=0 optimizer=sgd",
                                     (struct snug_train_options){.data = set, .eval_batches = 3});
    expect(last.val_loss, mean_of_first(w, 27), "validation", 27, 3);
    last = train(w->run, "threads=1 batch=5 lr=0 optimizer=sgd",
                 (struct snug_train_options){.data = set, .eval_batches = 3});
    expect(last.val_loss, mean_of_first(w, 15), "validation", 15, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_eval_scores_every_window),
        cmocka_unit_test(test_validation_scores_every_window),
        cmocka_unit_test(test_eval_batches_says_how_many),
    };
    return cmocka_run_group_tests(tests, make_world, free_world);
}
