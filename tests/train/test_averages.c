/*
 * test_averages.c -- optimizers that are evaluated at averages of the weights: validation uses and
 * runs save those averages, and training is not affected.
 *
 * The test computes the averages a second time, in fp64, from the weights and states of the
 * trainer.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/checkpoint.h"
#include "support/files.h"
#include "support/training.h"

enum { N_STEPS = 8, STOP_AT = 5, MAX_ELEMS = 4096 };
enum { N_WEIGHTS = 3 };
static const struct subject {
    const char *model, *recipe, *weights[N_WEIGHTS];
} subjects[] = {
    {"mlp:16-32-10", "", {"layers.0.weight", "layers.0.bias", "layers.1.weight"}},
    /* activations smaller than the average of a weight */
    {"mlp:64-64-10", "", {"layers.0.weight", "layers.0.bias", "layers.1.weight"}},
    {"tests/optim/fixtures/small", /* its table is read by two ops */
     "seq=10",
     {"wte.weight", "h.0.mlp.c_fc.weight", "h.0.ln_1.weight"}},
};
enum { N_SUBJECTS = sizeof subjects / sizeof *subjects };

/* A sum, and the sum of what its terms are without their signs: what rounding goes by. */
struct sum {
    double value, size;
};

/* Fills n of them. */
typedef void average_fn(snug_trainer *trainer, const char *weight, int64_t n, struct sum *sums);

struct averaged {
    const char *recipe;
    average_fn *average;
};

/* ---- averages by hand -------------------------------------------------------------------------- */

/* Adds `factor` times PREFIX.WEIGHT; false: there is no such tensor. */
static bool add_tensor(snug_trainer *t, const char *prefix, const char *weight, int64_t n,
                       double factor, struct sum *sums)
{
    static float numbers[MAX_ELEMS];
    char name[80];
    snprintf(name, sizeof name, "%s%s", prefix, weight);
    if (snug_trainer_read(t, name, numbers, n, NULL) != SNUG_OK)
        return false;
    for (int64_t i = 0; i < n; i++) {
        sums[i].value += factor * (double)numbers[i];
        sums[i].size += fabs(factor * (double)numbers[i]);
    }
    return true;
}

/* The weight as it is trained: its master if it has one. */
static void add_trained(snug_trainer *t, const char *weight, int64_t n, double factor,
                        struct sum *sums)
{
    if (!add_tensor(t, "master.", weight, n, factor, sums))
        assert_true(add_tensor(t, "", weight, n, factor, sums));
}

static void schedule_free(snug_trainer *t, const char *weight, int64_t n, struct sum *sums)
{
    add_trained(t, weight, n, 1 / 0.9, sums);
    assert_true(add_tensor(t, "z.", weight, n, -0.1 / 0.9, sums));
}

static void queue_of_2(snug_trainer *t, const char *weight, int64_t n, struct sum *sums)
{
    assert_true(add_tensor(t, "copy0.", weight, n, 0.5, sums));
    assert_true(add_tensor(t, "copy1.", weight, n, 0.5, sums));
}

static void queue_not_full(snug_trainer *t, const char *weight, int64_t n, struct sum *sums)
{
    add_trained(t, weight, n, 1, sums);
}

static void running_mean(snug_trainer *t, const char *weight, int64_t n, struct sum *sums)
{
    assert_true(add_tensor(t, "ema.", weight, n, 1, sums));
}

static const struct averaged cases[] = {
    {"optimizer=schedule-free-adamw lr=0.05 opt=warmup=3", schedule_free},
    {"optimizer=schedule-free-adamw lr=0.05 precision=bf16", schedule_free},
    {"optimizer=schedule-free-prodigy opt=d0=0.02", schedule_free},
    {"optimizer=lawa-queue lr=0.05 opt=k=2,start=0.1,every=0.2", queue_of_2},
    {"optimizer=lawa-queue lr=0.05 opt=k=2,start=0.1,every=0.2 precision=bf16", queue_of_2},
    {"optimizer=lawa-queue lr=0.05 opt=k=9,start=0.1,every=0.2", queue_not_full},
    {"optimizer=lawa-ema lr=0.05 opt=start=0.1,every=0.2,beta=0.6", running_mean},
    {"optimizer=lawa-ema lr=0.05 opt=start=0.1,every=0.2,beta=0.6 precision=fp16", running_mean},
};
enum { N_CASES = sizeof cases / sizeof *cases };

/* ---- running ----------------------------------------------------------------------------------- */

struct progress {
    int64_t stop_at;
    double val_loss;
};

static int look(const struct snug_metrics *m, void *user)
{
    struct progress *p = user;
    if (m->has_validation)
        p->val_loss = m->val_loss;
    return m->step == p->stop_at;
}

/* Opens the run in `dir` and trains; the trainer is the caller's. */
static snug_trainer *train(const snug_model *model, const snug_recipe *recipe, const char *dir,
                           int resume, int64_t eval_every, struct progress *progress)
{
    struct snug_error err;
    snug_trainer *trainer = NULL;
    struct snug_train_options options = {.data = "random",
                                         .steps = N_STEPS,
                                         .out = dir,
                                         .resume = resume,
                                         .eval_every = eval_every,
                                         .eval_batches = eval_every == 1};
    must(snug_trainer_open(model, recipe, &options, &trainer, &err), &err);
    enum snug_status status = snug_trainer_run(trainer, look, progress, &err);
    if (progress->stop_at == 0)
        must(status, &err);
    else
        assert_int_equal(status, SNUG_INTERRUPTED);
    return trainer;
}

static snug_recipe *recipe_for(const struct subject *subject, const struct averaged *c)
{
    char keys[200];
    snprintf(keys, sizeof keys, "%s %s batch=16 threads=1", c->recipe, subject->recipe);
    return recipe_of(keys);
}

/* ---- what was saved ---------------------------------------------------------------------------- */

static struct checkpoint *open_run(const char *dir)
{
    struct snug_error err;
    struct checkpoint *run = NULL;
    must(checkpoint_open(dir, &run, &err), &err);
    return run;
}

/* Compares one saved weight; returns how far its average is from what is trained. */
static double check_weight(const struct averaged *c, snug_trainer *trainer, const char *weight,
                           struct safetensors *st)
{
    static unsigned char saved[MAX_ELEMS * sizeof(float)];
    struct sum right[MAX_ELEMS] = {{0}}, now[MAX_ELEMS] = {{0}};
    double most_moved = 0;
    struct snug_error err;
    const struct st_entry *entry = safetensors_find(st, weight);
    assert_non_null(entry);
    int64_t n = shape_elems(&entry->shape);
    double rounding = entry->dtype == DTYPE_f32 ? 2e-7 : entry->dtype == DTYPE_f16 ? 5e-4 : 4e-3;
    double least = entry->dtype == DTYPE_f16 ? 0x1p-25 : 0; /* half of the smallest that it has */
    must(safetensors_read(st, entry, saved, &err), &err);
    c->average(trainer, weight, n, right);
    add_trained(trainer, weight, n, 1, now);
    for (int64_t i = 0; i < n; i++) {
        double found = dtype_load(entry->dtype, saved, i);
        if (!(fabs(found - right[i].value) <= rounding * right[i].size + least))
            fail_msg("%s: %s[%d] was saved as %.9g, its average is %.9g", c->recipe, weight, (int)i,
                     found, right[i].value);
        most_moved = fmax(most_moved, fabs(right[i].value - now[i].value));
    }
    return most_moved;
}

/* The saved model holds the averages, and not the weights unless they are the same. */
static void check_model(const struct subject *subject, const struct averaged *c,
                        snug_trainer *trainer, const char *dir)
{
    struct checkpoint *run = open_run(dir);
    struct safetensors *st = checkpoint_find(run, "model.safetensors");
    double most_moved = 0;
    for (int w = 0; w < N_WEIGHTS; w++)
        most_moved = fmax(most_moved, check_weight(c, trainer, subject->weights[w], st));
    assert_true(c->average == queue_not_full ? most_moved == 0 : most_moved > 0.01);
    checkpoint_close(run);
}

static void assert_same_file(const char *a, const char *b, const char *name)
{
    struct checkpoint *runs[] = {open_run(a), open_run(b)};
    struct safetensors *files[2];
    size_t n[2];
    char *bytes[2];
    for (int i = 0; i < 2; i++) {
        files[i] = checkpoint_find(runs[i], name);
        assert_non_null(files[i]);
        bytes[i] = files_read(safetensors_path(files[i]), &n[i]);
    }
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(bytes[0], bytes[1], n[0]);
    for (int i = 0; i < 2; i++) {
        free(bytes[i]);
        checkpoint_close(runs[i]);
    }
}

/* ---- tests ------------------------------------------------------------------------------------- */

static void check_evaluation(const struct subject *subject, const struct averaged *c)
{
    char dir[FILES_PATH_MAX];
    struct snug_error err;
    struct progress progress = {0};
    struct snug_eval_result result;
    snug_model *model = model_of(subject->model);
    snug_recipe *recipe = recipe_for(subject, c);
    files_make_dir(dir);
    const char *out = files_path(dir, "run");
    snug_trainer *trainer = train(model, recipe, out, 0, 2, &progress);
    check_model(subject, c, trainer, out);
    must(snug_eval(out, NULL, recipe, &result, &err), &err);
    if (!(fabs(result.loss - progress.val_loss) <= 1e-9 * result.loss))
        fail_msg("%s, %s: the validation loss was %.12g, the saved model has %.12g", subject->model,
                 c->recipe, progress.val_loss, result.loss);
    snug_trainer_free(trainer);
    snug_recipe_free(recipe);
    snug_model_free(model);
    files_remove_dir(dir);
}

static void test_evaluates_and_saves_averages(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES * N_SUBJECTS; i++)
        check_evaluation(&subjects[i / N_CASES], &cases[i % N_CASES]);
}

/* One run looks at its averages after every step and saves, the other is stopped, resumed and never
 * looks: the same bits. */
static void check_resume(const struct subject *subject, const struct averaged *c)
{
    char dir[FILES_PATH_MAX], a[FILES_PATH_MAX + 8], b[FILES_PATH_MAX + 8];
    struct progress none = {0}, early = {.stop_at = STOP_AT};
    snug_model *model = model_of(subject->model);
    snug_recipe *recipe = recipe_for(subject, c);
    files_make_dir(dir);
    snprintf(a, sizeof a, "%s/a", dir);
    snprintf(b, sizeof b, "%s/b", dir);
    snug_trainer_free(train(model, recipe, a, 0, 1, &none));
    snug_trainer_free(train(model, recipe, b, 0, -1, &early));
    snug_trainer_free(train(model, recipe, b, 1, -1, &none));
    assert_same_file(a, b, "optimizer.safetensors");
    assert_same_file(a, b, "model.safetensors");
    snug_recipe_free(recipe);
    snug_model_free(model);
    files_remove_dir(dir);
}

static void test_resumes_exactly(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES * N_SUBJECTS; i++)
        check_resume(&subjects[i / N_CASES], &cases[i % N_CASES]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_evaluates_and_saves_averages),
        cmocka_unit_test(test_resumes_exactly),
    };
    return cmocka_run_group_tests_name("averages", tests, NULL, NULL);
}
