/*
 * test_optimizers.c -- every optimizer by name: the bytes of its states, saved runs that continue
 * as if never stopped, the same bits with any number of threads, and the errors of --opt and of a
 * resume that does not match.
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
#include "compile/compile.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

/* ---- bytes of states ------------------------------------------------------------------------- */

static const struct {
    const char *keys;
    double bytes; /* a parameter */
} state_rows[] = {
    {"optimizer=sgd", 0},
    {"optimizer=momentum", 4},
    {"optimizer=adagrad", 4},
    {"optimizer=rmsprop", 4},
    {"optimizer=adadelta", 8},
    {"optimizer=adam", 8},
    {"optimizer=amsgrad", 12},
    {"optimizer=adamw", 8},
    {"optimizer=nadamw", 8},
    {"optimizer=generalized-adam", 8},
    {"optimizer=nadamp", 8},
    {"optimizer=cyclic-lr", 8},
    {"optimizer=lion", 4},
    {"optimizer=adafactor", 4}, /* a vector: see below */
    {"optimizer=schedule-free-adamw", 8},
    {"optimizer=schedule-free-prodigy", 16},
    {"optimizer=lawa-ema", 12},
    {"optimizer=lawa-queue", 8 + 4 * 10},
    {"optimizer=lawa-queue opt=k=3 precision=bf16", 12 + 2 * 3},
    {"optimizer=schedule-free-adamw state-bits=8", 5 + 4 / 256.0},
    {"optimizer=adam-8bit", 2 + 2 * 4 / 256.0},
    {"optimizer=adam-4bit", 1 + 2 * 4 / 128.0},
    {"optimizer=adamw state-bits=8", 2 + 2 * 4 / 256.0},
    {"optimizer=lion state-bits=4", 0.5 + 4 / 128.0},
    {"optimizer=amsgrad state-bits=16", 6},
    {"optimizer=adam-8bit state-bits=32", 8},
    {"optimizer=adamw precision=bf16", 12},
    {"optimizer=adamw precision=bf16 master=none", 8},
    {"optimizer=adam-8bit precision=bf16 master=none", 2 + 2 * 4 / 256.0},
};

static int64_t bytes_of_states(snug_model *model, const char *keys)
{
    struct snug_error err;
    struct compiled_step compiled;
    struct snug_ledger ledger;
    snug_recipe *recipe = recipe_of(keys);
    struct compile_request q = {.model = model, .recipe = recipe, .train = true};
    must(compile_step(&q, &compiled, &err), &err);
    compiled_step_ledger(&compiled, recipe, &ledger);
    compiled_step_free(&compiled);
    snug_recipe_free(recipe);
    return ledger.optimizer;
}

static void test_bytes_of_states(void **state)
{
    (void)state;
    static const double n_parameters = 1e9; /* of blocks that are whole */
    snug_model *model = model_of("psi:1e9");
    for (int i = 0; i < LENGTH(state_rows); i++) {
        int64_t bytes = bytes_of_states(model, state_rows[i].keys);
        if (bytes != (int64_t)(state_rows[i].bytes * n_parameters))
            fail_msg("%s: %lld bytes of states", state_rows[i].keys, (long long)bytes);
    }
    snug_model_free(model);
}

/* Of weights 160 x 128 and, the head, 10 x 160, with biases: 22,080 numbers in matrices, 170 others. */
static const struct {
    const char *keys;
    int64_t bytes;
} matrix_rows[] = {
    {"optimizer=muon", 4 * 20480 + 8 * (1600 + 170)},
    {"optimizer=muon precision=bf16", 4 * 20480 + 8 * (1600 + 170) + 4 * 22250},
    /* blocks of 64: 3 x 2 and 1 x 3; squares of their rows, then of their columns */
    {"optimizer=shampoo opt=block=64", 8 * 22250 + 8 * (18432 + 300 + 24576 + 9216)},
    {"optimizer=caspr opt=block=64", 8 * 22250 + 12 * (18432 + 300) + 8 * (24576 + 9216)},
    {"optimizer=soap", 8 * 22250 + 8 * (25600 + 16384 + 100 + 25600)},
    {"optimizer=soap opt=max-dim=150", 8 * 22250 + 8 * (16384 + 100)},
};

static void test_bytes_of_matrix_states(void **state)
{
    (void)state;
    snug_model *model = model_of("mlp:128-160-10");
    for (int i = 0; i < LENGTH(matrix_rows); i++) {
        int64_t bytes = bytes_of_states(model, matrix_rows[i].keys);
        if (bytes != matrix_rows[i].bytes)
            fail_msg("%s: %lld bytes of states", matrix_rows[i].keys, (long long)bytes);
    }
    snug_model_free(model);
}

/* The parts of an n x m matrix: a weight of 4096 x 1024 and as many biases as it has rows. */
enum { ROWS = 4096, COLUMNS = 1024, WEIGHTS = ROWS * COLUMNS };

static const struct {
    const char *keys;
    int64_t numbers;
} factored_rows[] = {
    {"optimizer=adafactor", ROWS + COLUMNS + ROWS},
    {"optimizer=adafactor opt=beta1=0.9", ROWS + COLUMNS + ROWS + WEIGHTS + ROWS},
    {"optimizer=amos", WEIGHTS + ROWS + 4}, /* v and b of each */
};

static void test_bytes_of_factored_states(void **state)
{
    (void)state;
    snug_model *model = model_of("mlp:1024-4096");
    for (int i = 0; i < LENGTH(factored_rows); i++) {
        int64_t bytes = bytes_of_states(model, factored_rows[i].keys);
        if (bytes != 4 * factored_rows[i].numbers)
            fail_msg("%s: %lld bytes of states", factored_rows[i].keys, (long long)bytes);
    }
    snug_model_free(model);
}

/* ---- what a parameter is to its model -------------------------------------------------------- */

static const struct {
    const char *model, *keys, *words;
    bool is_there;
} kind_rows[] = {
    {"cnn", "batch=2 optimizer=muon", "orthogonalize d.conv3.weight", true},
    {"cnn", "batch=2 optimizer=muon", "orthogonalize d.fc.weight", false},
    {"cnn", "batch=2 optimizer=muon loss=mse", "orthogonalize d.fc.weight", false},
    {"mlp", "batch=2 optimizer=muon", "orthogonalize d.layers.1.weight", true},
    {"mlp", "batch=2 optimizer=muon", "orthogonalize d.layers.2.weight", false},
    {"mlp", "batch=2 optimizer=muon loss=mse", "orthogonalize d.layers.1.weight", true},
    {"mlp", "batch=2 optimizer=muon loss=mse", "orthogonalize d.layers.2.weight", false},
    {"vit-tiny", "batch=2 optimizer=muon", "orthogonalize d.blocks.0.mlp.fc1.weight", true},
    {"vit-tiny", "batch=2 optimizer=muon", "orthogonalize d.pos_embed", false},
    {"vit-tiny", "batch=2 optimizer=muon", "orthogonalize d.head.weight", false},
    {"vit-tiny", "batch=2 optimizer=soap", "tensor ql.head.weight", true},
    {"vit-tiny", "batch=2 optimizer=soap", "tensor ql.pos_embed", false},
    {"gpt-nano", "batch=2 optimizer=muon", "orthogonalize d.wte.weight", false},
};

static void test_kinds(void **state)
{
    (void)state;
    for (int i = 0; i < LENGTH(kind_rows); i++) {
        struct snug_error err;
        snug_model *model = model_of(kind_rows[i].model);
        snug_recipe *recipe = recipe_of(kind_rows[i].keys);
        char *program;
        must(snug_dump(model, recipe, "optimizer", &program, &err), &err);
        if ((strstr(program, kind_rows[i].words) != NULL) != kind_rows[i].is_there)
            fail_msg("%s, %s: \"%s\" is %sthere", kind_rows[i].model, kind_rows[i].keys,
                     kind_rows[i].words, kind_rows[i].is_there ? "not " : "");
        free(program);
        snug_recipe_free(recipe);
        snug_model_free(model);
    }
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* A layer large enough for quantized elements and for more than one thread, and others that stay fp32. */
static const char model_name[] = "mlp:128-160-10";
enum { N_STEPS = 6 };

static int stop_at(const struct snug_metrics *m, void *step)
{
    return m->step == *(const int *)step;
}

/* stop: after this step, 0: not. */
static void train_until(const char *keys, int steps, int stop, const char *out, bool resume)
{
    struct snug_error err;
    snug_model *model = model_of(model_name);
    snug_recipe *recipe = recipe_of(keys);
    snug_trainer *trainer = NULL;
    struct snug_train_options options = {
        .steps = steps, .out = out, .resume = resume, .eval_every = -1};
    must(snug_trainer_open(model, recipe, &options, &trainer, &err), &err);
    enum snug_status status = snug_trainer_run(trainer, stop_at, &stop, &err);
    if (stop == 0 || status != SNUG_INTERRUPTED)
        must(status, &err);
    struct snug_summary summary;
    snug_trainer_summary(trainer, &summary);
    if (summary.allocated_bytes != summary.planned_bytes || !isfinite(summary.loss))
        fail_msg("%s: loss %g, planned %lld, allocated %lld", keys, summary.loss,
                 (long long)summary.planned_bytes, (long long)summary.allocated_bytes);
    snug_trainer_free(trainer);
    snug_recipe_free(recipe);
    snug_model_free(model);
}

static void train(const char *keys, int steps, const char *out, bool resume)
{
    train_until(keys, steps, 0, out, resume);
}

static void expect_same_file(const char *keys, const char *a, const char *b, const char *name)
{
    size_t n_a, n_b;
    char *bytes_a = files_read(files_path(a, name), &n_a);
    char *bytes_b = files_read(files_path(b, name), &n_b);
    if (n_a != n_b || memcmp(bytes_a, bytes_b, n_a) != 0)
        fail_msg("%s: %s differs", keys, name);
    free(bytes_a);
    free(bytes_b);
}

/* Straight with one thread; in two parts, with two. */
static void check_run(const char *keys, const char *more)
{
    char dir[FILES_PATH_MAX], straight[FILES_PATH_MAX], parts[FILES_PATH_MAX], all[160];
    files_make_dir(dir);
    snprintf(straight, sizeof straight, "%s", files_path(dir, "straight"));
    snprintf(parts, sizeof parts, "%s", files_path(dir, "parts"));
    snprintf(all, sizeof all, "%s%s batch=8 schedule=constant threads=1", keys, more);
    train(all, N_STEPS, straight, false);
    snprintf(all, sizeof all, "%s%s batch=8 schedule=constant threads=2", keys, more);
    train_until(all, N_STEPS, N_STEPS / 2, parts, false);
    train("", N_STEPS, parts, true);
    expect_same_file(all, straight, parts, "model.safetensors");
    expect_same_file(all, straight, parts, "optimizer.safetensors");
    files_remove_dir(dir);
}

static void test_every_optimizer_resumes_to_the_bit(void **state)
{
    (void)state;
    static const char *const more[] = {
        "", " precision=bf16 master=none", " precision=bf16 state-bits=8",
        " precision=fp16 master=none state-bits=16", " state-bits=4"};
    int n = 0;
    for (const struct optimizer *o; (o = optimizer_at(n)) != NULL; n++)
        for (int k = 0; k < LENGTH(more); k++) {
            char keys[64], rest[64];
            double options[MAX_OPTIONS];
            optimizer_default_options(o, options);
            snprintf(keys, sizeof keys, "optimizer=%s", o->name);
            snprintf(rest, sizeof rest, "%s", more[k]);
            char *bits = strstr(rest, " state-bits"); /* refused where there are no such states */
            if (bits != NULL && !optimizer_has_state_bits(o, options))
                *bits = '\0';
            check_run(keys, rest);
        }
    assert_true(n >= 21);
}

/* With roots before and after the interruption. */
static void test_roots_resume_to_the_bit(void **state)
{
    (void)state;
    check_run("optimizer=shampoo opt=every=2,block=50", "");
    check_run("optimizer=caspr opt=every=2,start=2,block=50", " precision=bf16");
    check_run("optimizer=soap opt=every=2", "");
}

static int count_different(const char *a, const char *b, const char *name)
{
    size_t n_a, n_b;
    int n_off = 0;
    char *bytes_a = files_read(files_path(a, name), &n_a);
    char *bytes_b = files_read(files_path(b, name), &n_b);
    assert_int_equal(n_a, n_b);
    for (size_t i = 0; i < n_a; i++)
        n_off += bytes_a[i] != bytes_b[i];
    free(bytes_a);
    free(bytes_b);
    return n_off;
}

/* Of 22,000 weights and as many states.  Gradients that differ in their last bits may tip a few. */
static void test_the_reference_takes_the_same_chances(void **state)
{
    (void)state;
    char dir[FILES_PATH_MAX], a[FILES_PATH_MAX], b[FILES_PATH_MAX];
    static const char keys[] =
        "optimizer=momentum precision=bf16 master=none state-bits=16 batch=8 kernels=";
    char both[160];
    files_make_dir(dir);
    snprintf(a, sizeof a, "%s", files_path(dir, "a"));
    snprintf(b, sizeof b, "%s", files_path(dir, "b"));
    snprintf(both, sizeof both, "%sfast", keys);
    train(both, 1, a, false);
    snprintf(both, sizeof both, "%sreference", keys);
    train(both, 1, b, false);
    int n_weights = count_different(a, b, "model.safetensors");
    int n_states = count_different(a, b, "optimizer.safetensors");
    if (n_weights > 440 || n_states > 440)
        fail_msg("%d bytes of weights and %d of states differ", n_weights, n_states);
    print_message("%d bytes of weights and %d of states differ\n", n_weights, n_states);
    files_remove_dir(dir);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static const struct {
    const char *keys, *says;
} opt_rows[] = {
    {"optimizer=sgd opt=beta1=0.9", "sgd has no option \"beta1\"; it has: none"},
    {"optimizer=lion opt=mu=0.9", "lion has no option \"mu\"; it has: beta1, beta2"},
    {"opt=mu=0.9 optimizer=adam-8bit", "adam-8bit has no option \"mu\"; it has: beta1, beta2, eps"},
    {"opt=beta1=much", "beta1=much"},
    {"opt=beta1=1", "beta1=1"},
    {"opt=eps=-1", "eps=-1: must be a number >= 0"},
    {"optimizer=nadamp opt=p=0", "p=0: must be a number > 0"},
    {"optimizer=nadamp opt=p=nan", "p=nan"},
    {"optimizer=cyclic-lr opt=cycles=0", "cycles=0: must be a number >= 1"},
    {"optimizer=adafactor opt=clip-threshold=0", "clip-threshold=0: must be a number > 0"},
    {"optimizer=schedule-free-prodigy opt=d0=0", "d0=0: must be a number > 0"},
    {"opt=beta1", "name=value"},
    {"opt=beta1=0.8,,", "name=value"},
};

static void test_wrong_options_are_named(void **state)
{
    (void)state;
    snug_model *model = model_of(model_name);
    for (int i = 0; i < LENGTH(opt_rows); i++) {
        struct snug_error err;
        struct compiled_step compiled;
        snug_recipe *recipe = recipe_of(opt_rows[i].keys);
        struct compile_request q = {.model = model, .recipe = recipe, .train = true};
        assert_int_equal(compile_step(&q, &compiled, &err), SNUG_BAD_ARGUMENT);
        if (strstr(err.message, opt_rows[i].says) == NULL)
            fail_msg("%s: %s", opt_rows[i].keys, err.message);
        snug_recipe_free(recipe);
    }
    snug_model_free(model);
}

static const struct {
    const char *keys, *says;
} resume_rows[] = {
    {"optimizer=lion", "--optimizer adamw, not lion"},
    {"state-bits=8", "--state-bits 32, not 8"},
    {"precision=bf16", "--precision fp32, not bf16"},
    {"optimizer=adam", "--optimizer adamw, not adam"},
};

static void test_a_resume_that_does_not_fit(void **state)
{
    (void)state;
    char dir[FILES_PATH_MAX], out[FILES_PATH_MAX];
    files_make_dir(dir);
    snprintf(out, sizeof out, "%s", files_path(dir, "run"));
    train("opt=beta1=0.8 batch=8", 2, out, false);
    snug_model *model = model_of(model_name);
    for (int i = 0; i < LENGTH(resume_rows); i++) {
        struct snug_error err;
        snug_trainer *trainer = NULL;
        snug_recipe *recipe = recipe_of(resume_rows[i].keys);
        struct snug_train_options options = {
            .steps = 4 + i, .out = out, .resume = 1, .eval_every = -1};
        assert_int_equal(snug_trainer_open(model, recipe, &options, &trainer, &err), SNUG_MISMATCH);
        if (strstr(err.message, resume_rows[i].says) == NULL ||
            strstr(err.message, "--resume-weights-only") == NULL)
            fail_msg("%s: %s", resume_rows[i].keys, err.message);
        snug_recipe_free(recipe);
    }
    snug_model_free(model);
    files_remove_dir(dir);
}

static void read_weights(const char *out, const char *keys, int weights_only, float *w, float *m)
{
    struct snug_error err;
    snug_trainer *trainer = NULL;
    snug_model *model = model_of(model_name);
    snug_recipe *recipe = recipe_of(keys);
    struct snug_train_options options = {
        .steps = 4, .out = out, .resume = 1, .weights_only = weights_only, .eval_every = -1};
    must(snug_trainer_open(model, recipe, &options, &trainer, &err), &err);
    must(snug_trainer_read(trainer, "layers.1.weight", w, 1600, &err), &err);
    must(snug_trainer_read(trainer, "m.layers.1.weight", m, 1600, &err), &err);
    snug_trainer_free(trainer);
    snug_recipe_free(recipe);
    snug_model_free(model);
}

static void test_weights_only_resets_states(void **state)
{
    (void)state;
    char dir[FILES_PATH_MAX], out[FILES_PATH_MAX];
    static float right[1600], w[1600], m[1600], zeros[1600];
    files_make_dir(dir);
    snprintf(out, sizeof out, "%s", files_path(dir, "run"));
    train("opt=beta1=0.8 batch=8", 2, out, false);
    read_weights(out, "", 0, right, m);
    assert_memory_not_equal(m, zeros, sizeof m);
    read_weights(out, "optimizer=lion", 1, w, m);
    assert_memory_equal(w, right, sizeof w);
    assert_memory_equal(m, zeros, sizeof m);
    read_weights(out, "", 1, w, m);
    assert_memory_equal(w, right, sizeof w);
    assert_memory_equal(m, zeros, sizeof m);
    files_remove_dir(dir);
}

/* ---- schedules ------------------------------------------------------------------------------- */

/* Its own schedule: ten steps, cycles of 3 1/3 with one step of warmup each. */
static void test_cyclic_lr(void **state)
{
    (void)state;
    snug_recipe *recipe =
        recipe_of("optimizer=cyclic-lr schedule=linear lr=1 warmup=1 opt=cycles=3,lr-min=0.1");
    static const double third = 1 / 3.0;
    const double shares[10] = {1,
                               0.5 * (1 + cos(acos(-1) * 1 / (7 * third))),
                               0.5 * (1 + cos(acos(-1) * 2 / (7 * third))),
                               2 * third,
                               0.5 * (1 + cos(acos(-1) * 2 / 7.0)),
                               0.5 * (1 + cos(acos(-1) * 5 / 7.0)),
                               third,
                               0.5 * (1 + cos(acos(-1) * 1 / 7.0)),
                               0.5 * (1 + cos(acos(-1) * 4 / 7.0)),
                               0};
    for (int i = 0; i < 10; i++) {
        double lr = recipe_lr_at(recipe, 1, i, 10, i + 1), right = 0.1 + 0.9 * shares[i];
        if (!(fabs(lr - right) < 1e-12))
            fail_msg("step %d: %.15g, not %.15g", i + 1, lr, right);
    }
    snug_recipe_free(recipe);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_of_states),
        cmocka_unit_test(test_bytes_of_factored_states),
        cmocka_unit_test(test_bytes_of_matrix_states),
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_every_optimizer_resumes_to_the_bit),
        cmocka_unit_test(test_roots_resume_to_the_bit),
        cmocka_unit_test(test_the_reference_takes_the_same_chances),
        cmocka_unit_test(test_wrong_options_are_named),
        cmocka_unit_test(test_a_resume_that_does_not_fit),
        cmocka_unit_test(test_weights_only_resets_states),
        cmocka_unit_test(test_cyclic_lr),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
