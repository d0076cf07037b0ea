/*
 * test_stop.c -- the end of a run: it is saved before the last evaluation, an evaluation can be
 * abandoned at any point, and neither changes a bit of what is trained or logged.  Data that goes
 * bad during a run ends it after a save.
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

#include "support/files.h"
#include "support/training.h"

enum { N_STEPS = 6 };

/* What a run told, and where it is asked to stop. */
struct watched {
    const char *dir;
    int64_t stop_step,
        stop_done;     /* in the evaluation after this step, once so much is done; 0: never */
    int64_t stop_call; /* in the Nth call of all evaluations; 0: never */
    int64_t n_calls, n_evaluated; /* calls during evaluations; their samples */
    int64_t last_saved;           /* as the last evaluation said */
    int n_saves, n_steps, n_validations;
    bool saved_first;    /* the files of the last step were there in its evaluation */
    bool logged_between; /* its line was in the log already */
    double val_loss;
};

static bool log_has(const char *dir, const char *words)
{
    size_t n;
    char *text = files_read(files_path(dir, "metrics.jsonl"), &n);
    bool has = strstr(text, words) != NULL;
    free(text);
    return has;
}

static int count_lines(const char *dir)
{
    size_t n;
    int lines = 0;
    char *text = files_read(files_path(dir, "metrics.jsonl"), &n);
    for (size_t i = 0; i < n; i++)
        lines += text[i] == '\n';
    free(text);
    return lines;
}

static int64_t saved_step(const char *dir)
{
    size_t n;
    if (access(files_path(dir, "state.json"), F_OK) != 0)
        return -1;
    char *text = files_read(files_path(dir, "state.json"), &n);
    long long step = atoll(strstr(text, "\"step\":") + strlen("\"step\":"));
    free(text);
    return step;
}

static int watch(const struct snug_doing *doing, void *user)
{
    struct watched *w = user;
    w->n_steps += doing->activity == SNUG_STEP;
    w->n_saves += doing->activity == SNUG_SAVE;
    if (doing->activity != SNUG_EVALUATION)
        return 0;
    w->n_calls++;
    w->n_evaluated = doing->done;
    w->last_saved = doing->saved_step;
    assert_true(doing->done >= 0 && doing->done < doing->total);
    if (w->dir != NULL && doing->step == doing->n_steps) {
        w->saved_first = saved_step(w->dir) == doing->n_steps;
        w->logged_between = count_lines(w->dir) == (int)doing->n_steps;
    }
    return (w->stop_step > 0 && doing->step == w->stop_step && doing->done >= w->stop_done) ||
           (w->stop_call > 0 && w->n_calls >= w->stop_call);
}

static int count(const struct snug_metrics *metrics, void *user)
{
    struct watched *w = user;
    w->n_validations += metrics->has_validation;
    w->val_loss = metrics->has_validation ? metrics->val_loss : w->val_loss;
    return 0;
}

static enum snug_status train(struct watched *w, const struct snug_train_options *how)
{
    struct snug_error err = {0};
    struct snug_train_options options = *how;
    snug_recipe *recipe = recipe_of("batch=8 threads=1 lr=1e-2");
    snug_model *model = model_of("mlp:16-32-10");
    snug_trainer *trainer;
    options.out = w->dir;
    options.steps = N_STEPS;
    must(snug_trainer_open(model, recipe, &options, &trainer, &err), &err);
    snug_trainer_watch(trainer, watch, w);
    enum snug_status status = snug_trainer_run(trainer, count, w, &err);
    assert_true(status == SNUG_OK || status == SNUG_INTERRUPTED);
    snug_trainer_free(trainer);
    snug_model_free(model);
    snug_recipe_free(recipe);
    return status;
}

static void assert_same_file(const char *a, const char *b, const char *name)
{
    size_t n_a, n_b;
    char *of_a = files_read(files_path(a, name), &n_a),
         *of_b = files_read(files_path(b, name), &n_b);
    assert_int_equal(n_a, n_b);
    assert_memory_equal(of_a, of_b, n_a);
    free(of_a);
    free(of_b);
}

static void test_saved_before_the_last_evaluation(void **state)
{
    char dir[FILES_PATH_MAX];
    (void)state;
    files_make_dir(dir);
    struct watched w = {.dir = dir};
    assert_int_equal(train(&w, &(struct snug_train_options){0}), SNUG_OK);
    assert_int_equal(w.n_steps, N_STEPS);
    assert_int_equal(w.n_saves, 1);
    assert_int_equal(w.n_validations, 1);
    assert_true(w.saved_first);
    assert_false(w.logged_between); /* the line is written once, when it is complete */
    assert_int_equal(w.last_saved, N_STEPS);
    assert_int_equal(count_lines(dir), N_STEPS);
    assert_true(log_has(dir, "\"val_loss\": "));
    assert_int_not_equal(access(files_path(dir, "metrics.jsonl.held"), F_OK), 0);
    files_remove_dir(dir);
}

/* Wherever the last evaluation is abandoned, the run is complete, without a validation loss. */
static void test_abandoned_at_the_end(void **state)
{
    char whole[FILES_PATH_MAX];
    (void)state;
    files_make_dir(whole);
    struct watched all = {.dir = whole};
    assert_int_equal(train(&all, &(struct snug_train_options){0}), SNUG_OK);
    assert_true(all.n_calls > 100); /* op by op, not batch by batch */
    for (int64_t call = 1; call < all.n_calls; call += 37) {
        char dir[FILES_PATH_MAX];
        files_make_dir(dir);
        struct watched w = {.dir = dir, .stop_call = call};
        assert_int_equal(train(&w, &(struct snug_train_options){0}), SNUG_INTERRUPTED);
        assert_int_equal(w.n_calls, call); /* at once */
        assert_int_equal(w.n_validations, 0);
        assert_int_equal(w.n_saves, 1);
        assert_int_equal(saved_step(dir), N_STEPS);
        assert_int_equal(count_lines(dir), N_STEPS);
        assert_false(log_has(dir, "val_loss"));
        assert_int_not_equal(access(files_path(dir, "metrics.jsonl.held"), F_OK), 0);
        assert_same_file(whole, dir, "model.safetensors");
        assert_same_file(whole, dir, "optimizer.safetensors");
        files_remove_dir(dir);
    }
    files_remove_dir(whole);
}

/* In the middle: the step is saved, and the rest of the run is as if nothing had happened. */
static void test_abandoned_on_the_way(void **state)
{
    char whole[FILES_PATH_MAX], dir[FILES_PATH_MAX];
    (void)state;
    files_make_dir(whole);
    struct watched all = {.dir = whole};
    assert_int_equal(train(&all, &(struct snug_train_options){.eval_every = 2}), SNUG_OK);
    assert_int_equal(all.n_validations, 3);
    for (int save_every = 0; save_every <= 2; save_every += 2) {
        files_make_dir(dir);
        struct watched w = {.dir = dir, .stop_step = 4, .stop_done = 100};
        struct snug_train_options how = {.eval_every = 2, .save_every = save_every};
        assert_int_equal(train(&w, &how), SNUG_INTERRUPTED);
        assert_true(w.n_evaluated >= 100 && w.n_evaluated < 120);
        assert_int_equal(w.n_steps, 4);
        assert_int_equal(w.n_validations, 1);
        assert_int_equal(w.last_saved, save_every > 0 ? 4 : -1);
        assert_int_equal(w.n_saves, save_every > 0 ? 2 : 1);
        assert_int_equal(saved_step(dir), 4);
        assert_int_equal(count_lines(dir), 4);
        struct watched rest = {.dir = dir};
        how.resume = 1;
        assert_int_equal(train(&rest, &how), SNUG_OK);
        assert_int_equal(count_lines(dir), N_STEPS);
        assert_true(rest.val_loss == all.val_loss);
        assert_same_file(whole, dir, "model.safetensors");
        assert_same_file(whole, dir, "optimizer.safetensors");
        files_remove_dir(dir);
    }
    files_remove_dir(whole);
}

static void test_eval_can_be_abandoned(void **state)
{
    char dir[FILES_PATH_MAX];
    struct snug_error err = {0};
    struct snug_eval_result result, watched_result;
    (void)state;
    files_make_dir(dir);
    struct watched w = {.dir = dir}, none = {0}, stop = {.stop_call = 50};
    assert_int_equal(train(&w, &(struct snug_train_options){0}), SNUG_OK);
    snug_recipe *recipe = recipe_of("batch=8 threads=1");
    must(snug_eval(dir, NULL, recipe, &result, &err), &err);
    must(snug_eval_watched(dir, NULL, recipe, watch, &none, &watched_result, &err), &err);
    assert_true(result.loss == watched_result.loss && none.n_calls > 50);
    assert_int_equal(snug_eval_watched(dir, NULL, recipe, watch, &stop, &watched_result, &err),
                     SNUG_INTERRUPTED);
    assert_int_equal(stop.n_calls, 50);
    assert_non_null(strstr(err.message, "the evaluation was canceled after "));
    snug_recipe_free(recipe);
    files_remove_dir(dir);
}

/* ---- data that goes bad ---------------------------------------------------------------------- */

enum { TEXT_BYTES = 2000, GOOD_STEPS = 3 };

static void write_text(const char *dir, int byte)
{
    char text[TEXT_BYTES];
    memset(text, byte, sizeof text);
    files_write(dir, "text.txt", text, sizeof text);
}

static int spoil_text(const struct snug_metrics *metrics, void *user)
{
    if (metrics->step == GOOD_STEPS)
        write_text(user, 0xff); /* above the vocabulary */
    return 0;
}

static enum snug_status train_on_text(const char *dir, const char *out, int resume, bool spoil,
                                      struct snug_error *err)
{
    char text[FILES_PATH_MAX + 16], config[FILES_PATH_MAX + 16];
    snug_trainer *trainer = NULL;
    snprintf(text, sizeof text, "%s/text.txt", dir);
    snprintf(config, sizeof config, "%s/config.json", dir);
    snug_recipe *recipe = recipe_of("batch=4 threads=1");
    snug_model *model = model_of(config);
    struct snug_train_options options = {
        .data = text, .out = out, .steps = N_STEPS, .resume = resume, .eval_every = -1};
    enum snug_status status = snug_trainer_open(model, recipe, &options, &trainer, err);
    if (status == SNUG_OK)
        status = snug_trainer_run(trainer, spoil ? spoil_text : NULL, (char *)dir, err);
    snug_trainer_free(trainer);
    snug_model_free(model);
    snug_recipe_free(recipe);
    return status;
}

/* Ids that are there at the start are found before a folder is made; later ones after a save. */
static void test_saved_before_bad_data(void **state)
{
    char dir[FILES_PATH_MAX], out[FILES_PATH_MAX + 16], whole[FILES_PATH_MAX + 16];
    struct snug_error err = {0};
    (void)state;
    files_make_dir(dir);
    snprintf(out, sizeof out, "%s/run", dir);
    snprintf(whole, sizeof whole, "%s/whole", dir);
    files_write_text(dir, "config.json",
                     "{\"model_type\": \"gpt2\", \"vocab_size\": 128, \"n_positions\": 16, "
                     "\"n_embd\": 8, \"n_layer\": 1, \"n_head\": 2}");
    write_text(dir, 0xff);
    assert_int_equal(train_on_text(dir, out, 0, false, &err), SNUG_MISMATCH);
    assert_non_null(strstr(err.message, "text.txt: token id 255 at position 1800, but"));
    assert_int_not_equal(access(out, F_OK), 0);
    write_text(dir, 'a');
    must(train_on_text(dir, whole, 0, false, &err), &err);
    assert_int_equal(train_on_text(dir, NULL, 0, true, &err), SNUG_MISMATCH);
    assert_null(strstr(err.message, "--resume"));
    write_text(dir, 'a');
    assert_int_equal(train_on_text(dir, out, 0, true, &err), SNUG_MISMATCH);
    assert_non_null(strstr(err.message, "step 4: "));
    assert_non_null(strstr(err.message, "token id 255 at position "));
    assert_non_null(strstr(err.message, "run holds step 3: continue with --resume"));
    assert_int_equal(saved_step(out), GOOD_STEPS);
    write_text(dir, 'a');
    must(train_on_text(dir, out, 1, false, &err), &err);
    assert_same_file(whole, out, "model.safetensors");
    files_remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_saved_before_the_last_evaluation),
        cmocka_unit_test(test_abandoned_at_the_end),
        cmocka_unit_test(test_abandoned_on_the_way),
        cmocka_unit_test(test_eval_can_be_abandoned),
        cmocka_unit_test(test_saved_before_bad_data),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
