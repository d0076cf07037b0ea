/*
 * test_recipe.c -- the effects of recipes on training: schedules by their formulas, dropout, which
 * does not affect evaluation and continues in a resumed run, the dropout of a config.json, label
 * smoothing, mean squared error.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/files.h"
#include "support/training.h"

/* ---- schedules ----------------------------------------------------------------------------- */

static double at(const snug_recipe *recipe, int64_t step, int64_t n_steps)
{
    return recipe_lr_at(recipe, 64, step, n_steps, (double)(step + 1));
}

static void assert_near(double got, double right)
{
    if (!(fabs(got - right) <= 1e-12 * fabs(right)))
        fail_msg("%.17g is not %.17g", got, right);
}

static double cosine(double done) /* from 1 to 0.1 */
{
    return 0.55 + 0.45 * cos(3.14159265358979323846 * done);
}

static void test_one_stretch(void **state)
{
    (void)state;
    snug_recipe *r = recipe_of("lr=2 warmup=4 schedule=constant");
    for (int step = 0; step < 20; step++)
        assert_near(at(r, step, 20), step < 4 ? 0.5 * (step + 1) : 2);
    snug_recipe_free(r);
    r = recipe_of("lr=2 warmup=4 schedule=linear");
    for (int step = 4; step < 20; step++)
        assert_near(at(r, step, 20), 2 * (1 - 0.9 * (step - 4) / 15.0));
    snug_recipe_free(r);
    r = recipe_of("lr=2 warmup=4 schedule=cosine");
    for (int step = 4; step < 20; step++)
        assert_near(at(r, step, 20), 2 * cosine((step - 4) / 15.0));
    snug_recipe_free(r);
}

static void test_cyclic(void **state)
{
    (void)state;
    snug_recipe *r = recipe_of("lr=2 warmup=2 schedule=cyclic cycles=3");
    for (int step = 0; step < 30; step++) {
        int inside = step % 10;
        assert_near(at(r, step, 30),
                    inside < 2 ? 1.0 * (inside + 1) : 2 * cosine((inside - 2) / 7.0));
    }
    /* 11 steps in cycles that begin at 0, 3 and 7 */
    static const int begins[] = {0, 3, 7, 11};
    for (int k = 0; k < 3; k++) {
        assert_near(at(r, begins[k], 11), 1);
        assert_near(at(r, begins[k + 1] - 1, 11), begins[k + 1] - begins[k] == 3 ? 2 : 0.2);
    }
    snug_recipe_free(r);
}

static void test_warmup_stable_decay(void **state)
{
    (void)state;
    snug_recipe *r = recipe_of("lr=2 warmup=2 schedule=wsd decay-from=0.6 lr-end=0");
    for (int step = 0; step < 10; step++)
        assert_near(at(r, step, 10), step < 2   ? 1.0 * (step + 1)
                                     : step < 6 ? 2
                                                : 2 * (1 - (step - 5) / 4.0));
    snug_recipe_free(r);
}

static void test_scaling_with_the_batch(void **state)
{
    (void)state;
    static const struct {
        const char *keys;
        double factor;
    } rows[] = {{"lr=0.5", 1},
                {"lr=0.5 scale-lr=linear base-batch=16", 4},
                {"lr=0.5 scale-lr=sqrt base-batch=16", 2},
                {"lr=0.5 scale-lr=linear base-batch=256", 0.25}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snug_recipe *r = recipe_of(rows[i].keys);
        assert_near(at(r, 3, 10), 0.5 * rows[i].factor);
        snug_recipe_free(r);
    }
}

static void test_nonsense_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *model, *keys, *words;
    } rows[] = {
        {"mlp:4-3", "scale-lr=linear", "--scale-lr needs --base-batch"},
        {"mlp:4-3", "base-batch=8", "--base-batch has no effect without --scale-lr"},
        {"mlp:4-3", "schedule=cyclic cycles=20", "--cycles 20 in 10 steps leaves no step"},
        {"mlp:4-3", "schedule=cyclic cycles=2 warmup=5", "leaves no step after --warmup 5"},
        {"mlp:4-3", "schedule=wsd warmup=9", "--warmup 9 of 10 steps ends after --decay-from 0.8"},
        {"mlp:4-3", "dropout=0.1", "has no layer to apply it to"},
        {"gpt-nano", "dropout=config", "--dropout config: gpt-nano has no config.json with"},
        {"mlp:4-3,loss=mse", "label-smoothing=0.1", "--label-smoothing needs a cross-entropy loss"},
        {"mlp:4-3", "label-smoothing=0.1 loss=mse", "--label-smoothing needs a cross-entropy loss"},
        {"gpt-nano", "loss=mse", "--loss mse is not supported for language models"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snug_recipe *recipe = recipe_of(rows[i].keys);
        snug_model *model = model_of(rows[i].model);
        struct snug_train_options options = {.steps = 10, .eval_every = -1};
        struct snug_error err = {0};
        snug_trainer *trainer;
        assert_int_not_equal(snug_trainer_open(model, recipe, &options, &trainer, &err), SNUG_OK);
        if (strstr(err.message, rows[i].words) == NULL)
            fail_msg("%s: %s", rows[i].keys, err.message);
        snug_model_free(model);
        snug_recipe_free(recipe);
    }
}

/* ---- runs ---------------------------------------------------------------------------------- */

enum { STEPS = 6 };

struct result {
    double loss[STEPS], val_loss;
    struct snug_eval_result eval;
};

static int keep(const struct snug_metrics *m, void *user)
{
    struct result *result = user;
    result->loss[m->step - 1] = m->loss;
    if (m->has_validation)
        result->val_loss = m->val_loss;
    return 0;
}

/* Trains on random data; `stop_at` above 0 ends there and goes on with another trainer and resumed_keys. */
static void train_in_parts(const char *model_spec, const char *keys, const char *resumed_keys,
                           int stop_at, struct result *result)
{
    char dir[FILES_PATH_MAX];
    struct snug_error err = {0};
    snug_recipe *recipe = recipe_of(keys), *resumed = recipe_of(resumed_keys);
    snug_model *model = model_of(model_spec);
    files_make_dir(dir);
    const char *out = files_path(dir, "run");
    for (int part = stop_at > 0 ? 0 : 1; part < 2; part++) {
        snug_trainer *trainer;
        struct snug_train_options options = {.out = out,
                                             .steps = part == 0 ? stop_at : STEPS,
                                             .eval_batches = 2,
                                             .resume = stop_at > 0 && part == 1};
        must(snug_trainer_open(model, options.resume ? resumed : recipe, &options, &trainer, &err),
             &err);
        must(snug_trainer_run(trainer, keep, result, &err), &err);
        snug_trainer_free(trainer);
    }
    snug_recipe *plain = recipe_of("batch=8");
    must(snug_eval(out, NULL, plain, &result->eval, &err), &err);
    snug_recipe_free(plain);
    snug_model_free(model);
    snug_recipe_free(recipe);
    snug_recipe_free(resumed);
    files_remove_dir(dir);
}

static void train(const char *model_spec, const char *keys, int stop_at, struct result *result)
{
    train_in_parts(model_spec, keys, keys, stop_at, result);
}

static void assert_same(const struct result *a, const struct result *b)
{
    for (int i = 0; i < STEPS; i++)
        if (a->loss[i] != b->loss[i])
            fail_msg("step %d: %.9g and %.9g", i + 1, a->loss[i], b->loss[i]);
    assert_true(a->val_loss == b->val_loss);
}

#define TINY "batch=4 seq=20 seed=3 lr=1e-3 "

/* Two layers, 101 tokens; random weights would do as well. */
static const char *tiny(void)
{
    const char *folder = getenv("SNUG_FIXTURES");
    return files_path(folder == NULL ? "tests/train/fixtures" : folder, "gpt2-tiny");
}

static void test_dropout_in_a_run(void **state)
{
    (void)state;
    struct result plain = {0}, zero = {0}, one = {0}, other = {0};
    train(tiny(), TINY "threads=1", 0, &plain);
    train(tiny(), TINY "threads=1 dropout=0", 0, &zero);
    assert_same(&plain, &zero);
    train(tiny(), TINY "threads=1 dropout=0.2", 0, &one);
    assert_true(one.loss[0] != plain.loss[0]);
    train(tiny(), TINY "threads=2 dropout=0.2", 0, &other);
    assert_same(&one, &other);
    train(tiny(), TINY "threads=1 dropout=0.2", 3, &other); /* resumed */
    assert_same(&one, &other);
    train(tiny(), TINY "threads=1 dropout=0.2 micro-batch=2", 0, &other);
    assert_true(other.loss[0] != one.loss[0]); /* micro-batches have masks of their own */
}

/* A model of one layer whose config.json has these rates. */
static const char *model_with(const char *dir, double embedding, double attention, double residual)
{
    char text[400];
    snprintf(text, sizeof text,
             "{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_head\": 2, \"n_embd\": 16, "
             "\"n_positions\": 20, \"vocab_size\": 101, \"embd_pdrop\": %g, \"attn_pdrop\": %g, "
             "\"resid_pdrop\": %g}",
             embedding, attention, residual);
    files_write_text(dir, "config.json", text);
    return dir;
}

static void test_dropout_of_config(void **state)
{
    (void)state;
    char dir[FILES_PATH_MAX];
    struct result plain = {0}, number = {0}, config = {0}, others[3];
    files_make_dir(dir);
    model_with(dir, 0.1, 0.1, 0.1);
    train(dir, TINY "threads=1", 0, &plain);
    train(dir, TINY "threads=1 dropout=0.1", 0, &number);
    train(dir, TINY "threads=1 dropout=config", 0, &config);
    assert_same(&number, &config);
    assert_true(plain.loss[0] != number.loss[0]); /* unless it is asked for, it is not there */
    train_in_parts(dir, TINY "threads=1 dropout=config", "threads=1", 3, &config);
    assert_same(&number, &config); /* a resumed run keeps it */
    for (int i = 0; i < 3; i++) {
        train(model_with(dir, i == 0 ? 0.1 : 0, i == 1 ? 0.1 : 0, i == 2 ? 0.1 : 0),
              TINY "threads=1 dropout=config", 0, &others[i]);
        assert_true(others[i].loss[0] != number.loss[0] && others[i].loss[0] != plain.loss[0]);
    }
    assert_true(others[0].loss[0] != others[1].loss[0] && others[1].loss[0] != others[2].loss[0]);
    train(model_with(dir, 0, 0, 0), TINY "threads=1 dropout=config", 0, &config);
    assert_same(&plain, &config);
    files_remove_dir(dir);
}

/* Each rate is where it belongs. */
static void test_dropout_of_config_by_place(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "embedding.dropout = dropout embedding, scalars {dropout=0.1}",
        "= attention h.0.attn.c_attn, _, _, _, _, scalars {heads=2, dropout=0.2, ",
        "h.0.attn.c_proj.dropout = dropout h.0.attn.c_proj, scalars {dropout=0.3, ",
        "h.0.mlp.c_proj.dropout = dropout h.0.mlp.c_proj, scalars {dropout=0.3, "};
    char dir[FILES_PATH_MAX];
    struct snug_error err = {0};
    files_make_dir(dir);
    snug_model *model = model_of(model_with(dir, 0.1, 0.2, 0.3));
    snug_recipe *recipe = recipe_of("dropout=config");
    char *text;
    must(snug_dump(model, recipe, "regularize", &text, &err), &err);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (strstr(text, lines[i]) == NULL)
            fail_msg("no \"%s\" in\n%s", lines[i], text);
    snug_free(text);
    snug_model_free(model);
    snug_recipe_free(recipe);
    files_remove_dir(dir);
}

/* Each line of the notes is a note, whatever the model is called. */
static void test_names_in_notes(void **state)
{
    (void)state;
    char dir[FILES_PATH_MAX];
    struct snug_error err = {0};
    struct snug_train_options options = {.steps = 1, .eval_every = -1};
    snug_trainer *trainer;
    files_make_dir(dir);
    files_make_subdir(dir, "a\nb\033[31m");
    model_with(files_path(dir, "a\nb\033[31m"), 0.1, 0.1, 0.1);
    snug_model *model = model_of(files_path(dir, "a\nb\033[31m"));
    snug_recipe *recipe = recipe_of(TINY "threads=1");
    must(snug_trainer_open(model, recipe, &options, &trainer, &err), &err);
    char *notes = snug_trainer_notes(trainer);
    assert_non_null(strstr(notes, "/a?b?[31m (embd_pdrop 0.1"));
    assert_ptr_equal(strchr(notes, '\n'), notes + strlen(notes) - 1);
    snug_free(notes);
    snug_trainer_free(trainer);
    snug_model_free(model);
    snug_recipe_free(recipe);
    files_remove_dir(dir);
}

/* With a learning rate of 0 nothing moves: validation sees neither dropout nor smoothing. */
static void test_evaluation_is_left_alone(void **state)
{
    (void)state;
    struct result plain = {0}, hard = {0};
    static const char frozen[] = "batch=4 seq=20 seed=3 lr=0 weight-decay=0";
    char keys[200];
    train(tiny(), frozen, 0, &plain);
    snprintf(keys, sizeof keys, "%s dropout=0.5 label-smoothing=0.3", frozen);
    train(tiny(), keys, 0, &hard);
    assert_true(hard.val_loss == plain.val_loss);
    assert_true(hard.eval.loss == plain.eval.loss);
    for (int i = 0; i < STEPS; i++)
        assert_true(hard.loss[i] != plain.loss[i]);
    snprintf(keys, sizeof keys, "%s label-smoothing=1", frozen);
    train(tiny(), keys, 0, &hard); /* uniform labels: at least log 101, whatever the logits */
    for (int i = 0; i < STEPS; i++)
        assert_true(hard.loss[i] >= log(101));
}

/* ---- mean squared error on classes ---------------------------------------------------------- */

/* Classes 0 and 1: the left half is bright, or the right one. */
static void write_halves(const char *dir)
{
    enum { N = 64, SIDE = 4 };
    static const char *const names[] = {"train", "t10k"};
    for (int split = 0; split < 2; split++) {
        unsigned char images[16 + N * SIDE * SIDE] = {0, 0, 8, 3,    0, 0, 0, N,
                                                      0, 0, 0, SIDE, 0, 0, 0, SIDE};
        unsigned char labels[8 + N] = {0, 0, 8, 1, 0, 0, 0, N};
        char name[64];
        for (int i = 0; i < N * SIDE * SIDE; i++)
            images[16 + i] = (unsigned char)((i % SIDE / 2 == i / (SIDE * SIDE) % 2 ? 200 : 20) +
                                             i * 7 % 31 + split);
        for (int i = 0; i < N; i++)
            labels[8 + i] = (unsigned char)(i % 2);
        snprintf(name, sizeof name, "%s-images-idx3-ubyte", names[split]);
        files_write(dir, name, images, sizeof images);
        snprintf(name, sizeof name, "%s-labels-idx1-ubyte", names[split]);
        files_write(dir, name, labels, sizeof labels);
    }
}

static void test_mean_squared_error_on_classes(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"mlp:16-8-2", "batch=16 lr=0.01 loss=mse"},
        {"mlp:16-8-2,loss=mse", "batch=16 lr=0.01"},
        {"mlp:16-8-2,loss=mse", "batch=16 lr=0.01 loss=cross-entropy"}};
    for (int i = 0; i < 3; i++) {
        char dir[FILES_PATH_MAX];
        struct snug_error err = {0};
        struct snug_eval_result result;
        snug_recipe *recipe = recipe_of(rows[i][1]), *plain = recipe_of("batch=16");
        snug_model *model = model_of(rows[i][0]);
        snug_trainer *trainer;
        files_make_dir(dir);
        write_halves(dir);
        const char *out = files_path(dir, "run");
        struct snug_train_options options = {.data = dir, .out = out, .steps = 60};
        must(snug_trainer_open(model, recipe, &options, &trainer, &err), &err);
        must(snug_trainer_run(trainer, NULL, NULL, &err), &err);
        snug_trainer_free(trainer);
        must(snug_eval(out, NULL, plain, &result, &err), &err);
        assert_true(result.has_accuracy);
        assert_true(result.accuracy == 1.0);
        assert_true(result.loss < 0.1); /* of its own kind: 0.25 is a guess, for either */
        snug_model_free(model);
        snug_recipe_free(recipe);
        snug_recipe_free(plain);
        files_remove_dir(dir);
    }
}

/* Numbers are written as they are typed, and are the same to the last bit when they are read again. */
static void test_reals_are_short_and_exact(void **state)
{
    (void)state;
    static const struct {
        const char *typed, *written;
    } reals[] = {
        {"0.1", "0.1"},       {"3e-4", "0.0003"}, {"0.3333333333333333", "0.3333333333333333"},
        {"1e-300", "1e-300"}, {"0", "0"},         {"0.1234567890123456789", NULL}};
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        struct snug_error err = {0};
        struct text out = {0};
        snug_recipe *recipe = snug_recipe_new(), *again = snug_recipe_new();
        must(snug_recipe_set(recipe, "lr", reals[i].typed, &err), &err);
        recipe_get(recipe, "lr", &out);
        if (reals[i].written != NULL)
            assert_string_equal(out.data, reals[i].written);
        must(snug_recipe_set(again, "lr", out.data, &err), &err);
        assert_memory_equal(&recipe->lr, &again->lr, sizeof recipe->lr);
        text_free(&out);
        snug_recipe_free(recipe);
        snug_recipe_free(again);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_stretch),
        cmocka_unit_test(test_cyclic),
        cmocka_unit_test(test_warmup_stable_decay),
        cmocka_unit_test(test_scaling_with_the_batch),
        cmocka_unit_test(test_nonsense_is_refused),
        cmocka_unit_test(test_dropout_in_a_run),
        cmocka_unit_test(test_dropout_of_config),
        cmocka_unit_test(test_dropout_of_config_by_place),
        cmocka_unit_test(test_names_in_notes),
        cmocka_unit_test(test_evaluation_is_left_alone),
        cmocka_unit_test(test_mean_squared_error_on_classes),
        cmocka_unit_test(test_reals_are_short_and_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
