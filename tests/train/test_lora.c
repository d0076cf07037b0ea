/*
 * test_lora.c -- runs with adapters: the first step has the model's bits, gradients match those of
 * the whole matrix, what is saved loads again, and the merged model is the one that was trained.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/checkpoint.h"
#include "io/peft.h"
#include "support/files.h"
#include "support/training.h"

#define LENGTH(array) (sizeof(array) / sizeof *(array))
#define SMALL         "tests/optim/fixtures/small" /* 1 layer, 8 wide, 31 tokens */

enum { BATCH = 4, SEQ = 10, N_STEPS = 6, STOP_AT = 3, MAX_ELEMS = 512 };

/* ---- running ------------------------------------------------------------------------------------ */

struct progress {
    int64_t stop_at;
    double first_loss, loss, val_loss;
};

static int look(const struct snug_metrics *m, void *user)
{
    struct progress *p = user;
    if (m->step == 1)
        p->first_loss = m->loss;
    p->loss = m->loss;
    if (m->has_validation)
        p->val_loss = m->val_loss;
    return m->step == p->stop_at;
}

/* eval_every: as snug_train_options has it; NEVER spares the time. */
enum { NEVER = -1, AT_THE_END = 0 };
static struct progress train_and_evaluate(const char *model_spec, const char *keys, const char *out,
                                          int resume, int64_t steps, int64_t stop_at,
                                          int64_t eval_every)
{
    struct snug_error err;
    snug_trainer *trainer = NULL;
    struct progress progress = {.stop_at = stop_at};
    struct snug_summary summary;
    snug_model *model = model_of(model_spec);
    snug_recipe *recipe = recipe_of(keys);
    struct snug_train_options options = {
        .data = "random", .steps = steps, .out = out, .resume = resume, .eval_every = eval_every};
    must(snug_trainer_open(model, recipe, &options, &trainer, &err), &err);
    enum snug_status status = snug_trainer_run(trainer, look, &progress, &err);
    if (status != SNUG_INTERRUPTED)
        must(status, &err);
    snug_trainer_summary(trainer, &summary);
    assert_int_equal(summary.planned_bytes, summary.allocated_bytes);
    snug_trainer_free(trainer);
    snug_recipe_free(recipe);
    snug_model_free(model);
    return progress;
}

static struct progress train(const char *model, const char *keys, const char *out, int resume,
                             int64_t steps, int64_t stop_at)
{
    return train_and_evaluate(model, keys, out, resume, steps, stop_at, NEVER);
}

/* ---- the first step ----------------------------------------------------------------------------- */

static void test_first_step_is_the_models(void **state)
{
    (void)state;
    static const char *const precisions[] = {"fp32", "bf16", "fp16"};
    static const char *const places[] = {"attention", "mlp", "all"};
    static const char *const models[] = {SMALL, "vit-tiny"};
    for (size_t m = 0; m < LENGTH(models); m++)
        for (size_t i = 0; i < (m == 0 ? LENGTH(precisions) : 1); i++) {
            char keys[200];
            snprintf(keys, sizeof keys, "batch=2 threads=1 precision=%s", precisions[i]);
            double whole = train(models[m], keys, NULL, 0, 1, 0).loss;
            for (size_t k = m == 0 ? 0 : 2; k < LENGTH(places); k++) {
                snprintf(keys, sizeof keys, "batch=2 threads=1 precision=%s lora=3 lora-on=%s",
                         precisions[i], places[k]);
                double adapted = train(models[m], keys, NULL, 0, 1, 0).loss;
                if (memcmp(&whole, &adapted, sizeof whole) != 0)
                    fail_msg("%s: the model has a loss of %.17g, with adapters %.17g", keys, whole,
                             adapted);
            }
        }
}

/* ---- gradients ---------------------------------------------------------------------------------- */

struct batch {
    int32_t tokens[BATCH * SEQ], targets[BATCH * SEQ];
};

static struct batch batch_of(int seed)
{
    struct batch b;
    for (int i = 0; i < BATCH * SEQ; i++) {
        b.tokens[i] = (7 * i + seed) % 31;
        b.targets[i] = (5 * i + 3 * seed) % 31;
    }
    return b;
}

/* Makes steps by plain gradient descent with a rate of 1, and saves. */
static snug_trainer *descend(const snug_model *model, const char *more, const char *out, int n)
{
    char keys[300];
    struct snug_error err;
    snug_trainer *trainer = NULL;
    snprintf(keys, sizeof keys,
             "batch=4 seq=10 threads=1 optimizer=sgd lr=1 weight-decay=0 clip=0 %s", more);
    snug_recipe *recipe = recipe_of(keys);
    struct snug_train_options options = {.data = "none", .steps = 10, .out = out};
    must(snug_trainer_open(model, recipe, &options, &trainer, &err), &err);
    for (int i = 0; i < n; i++) {
        struct batch b = batch_of(i);
        must(snug_trainer_step(trainer, (const void *[]){b.tokens, b.targets}, NULL, &err), &err);
    }
    if (out != NULL)
        must(snug_trainer_save(trainer, &err), &err);
    snug_recipe_free(recipe);
    return trainer;
}

static void read_tensor(snug_trainer *trainer, const char *name, float *values, int64_t n)
{
    struct snug_error err;
    assert_true(n <= MAX_ELEMS);
    must(snug_trainer_read(trainer, name, values, n, &err), &err);
}

/* With y = x (W + s A^T B^T): dB = s (A dW)^T, dA = s (dW B)^T, dW [in, out] that of the whole matrix. */
static void check_gradients(const char *layer, int64_t n_in, int64_t n_out, double scale)
{
    enum { RANK = 3 };
    char dir[FILES_PATH_MAX], name[100], keys[100];
    float a[MAX_ELEMS], a_next[MAX_ELEMS], b[MAX_ELEMS], b_next[MAX_ELEMS], w[MAX_ELEMS],
        w_next[MAX_ELEMS];
    double found[MAX_ELEMS], truth[MAX_ELEMS];
    files_make_dir(dir);
    snprintf(keys, sizeof keys, "lora=%d lora-on=all lora-alpha=%g", RANK, scale * RANK);
    snug_model *model = model_of(SMALL);
    snug_trainer *before = descend(model, keys, files_path(dir, "run"), 1);
    snug_trainer *after = descend(model, keys, NULL, 2);
    snug_model *merged = model_of(files_path(dir, "run"));
    snug_trainer *whole = descend(merged, "", NULL, 0), *moved = descend(merged, "", NULL, 0);
    struct snug_error err;
    struct batch batch = batch_of(1);
    must(snug_trainer_step(moved, (const void *[]){batch.tokens, batch.targets}, NULL, &err), &err);
    snprintf(name, sizeof name, "%s.weight", layer);
    read_tensor(whole, name, w, n_in * n_out);
    read_tensor(moved, name, w_next, n_in * n_out);
    snprintf(name, sizeof name, "%s" PEFT_A, layer);
    read_tensor(before, name, a, RANK * n_in);
    read_tensor(after, name, a_next, RANK * n_in);
    snprintf(name, sizeof name, "%s" PEFT_B, layer);
    read_tensor(before, name, b, RANK * n_out);
    read_tensor(after, name, b_next, RANK * n_out);

    for (int64_t o = 0; o < n_out; o++)
        for (int64_t k = 0; k < RANK; k++) {
            double sum = 0;
            for (int64_t i = 0; i < n_in; i++)
                sum += (double)a[k * n_in + i] * (double)(w[i * n_out + o] - w_next[i * n_out + o]);
            truth[o * RANK + k] = scale * sum;
            found[o * RANK + k] = (double)(b[o * RANK + k] - b_next[o * RANK + k]);
        }
    assert_true(relative_error(found, truth, RANK * n_out) < 1e-4);
    for (int64_t k = 0; k < RANK; k++)
        for (int64_t i = 0; i < n_in; i++) {
            double sum = 0;
            for (int64_t o = 0; o < n_out; o++)
                sum += (double)b[o * RANK + k] * (double)(w[i * n_out + o] - w_next[i * n_out + o]);
            truth[k * n_in + i] = scale * sum;
            found[k * n_in + i] = (double)(a[k * n_in + i] - a_next[k * n_in + i]);
        }
    assert_true(relative_error(found, truth, RANK * n_in) < 1e-4);
    snug_trainer *all[] = {before, after, whole, moved};
    for (size_t i = 0; i < LENGTH(all); i++)
        snug_trainer_free(all[i]);
    snug_model_free(model);
    snug_model_free(merged);
    files_remove_dir(dir);
}

static void test_gradients(void **state)
{
    (void)state;
    check_gradients("h.0.attn.c_attn", 8, 24, 2);
    check_gradients("h.0.attn.c_proj", 8, 8, 0.5);
    check_gradients("h.0.mlp.c_fc", 8, 32, 1);
    check_gradients("h.0.mlp.c_proj", 32, 8, 3);
}

/* ---- what is saved ------------------------------------------------------------------------------ */

static const char *const saved_recipes[] = {
    "lora=2",
    "lora=3 lora-on=all lora-alpha=1.5 precision=bf16",
    "lora=3 lora-on=mlp precision=fp16 micro-batch=4",
    "lora=2 lora-on=all optimizer=schedule-free-adamw",
    "lora=2 lora-base=16 lora-on=all",
    "lora=2 lora-base=8 lora-on=all",
    "lora=2 lora-base=4 lora-on=all precision=bf16",
    "lora=2 dropout=0.2 lora-on=all",
};
#define RUN_KEYS "batch=8 threads=1 lr=0.02 "

/* The loss that training saw on held-out data with adapters, and that of the merged model. */
static void check_merged(const char *model, const char *more)
{
    char dir[FILES_PATH_MAX], keys[300];
    struct snug_error err;
    struct snug_eval_result result;
    files_make_dir(dir);
    const char *out = files_path(dir, "run");
    snprintf(keys, sizeof keys, RUN_KEYS "%s", more);
    struct progress run = train_and_evaluate(model, keys, out, 0, N_STEPS, 0, AT_THE_END);
    bool is_narrow = strstr(more, "precision=") != NULL;
    snug_recipe *recipe =
        recipe_of(is_narrow ? strstr(more, "precision=bf16") != NULL ? "precision=bf16 threads=1"
                                                                     : "precision=fp16 threads=1"
                            : "threads=1");
    must(snug_eval(out, "random", recipe, &result, &err), &err);
    if (!(fabs(result.loss - run.val_loss) <= (is_narrow ? 2e-3 : 2e-6) * result.loss))
        fail_msg("%s, %s: with adapters %.9g, merged %.9g", model, more, run.val_loss, result.loss);
    snug_recipe_free(recipe);
    files_remove_dir(dir);
}

static void test_merged_model_is_the_adapted_one(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(saved_recipes); i++)
        check_merged(SMALL, saved_recipes[i]);
    check_merged("mlp:16-32-10", "lora=4 lora-on=mlp");
    check_merged("mlp:16-32-10", "lora=4 lora-on=mlp lora-base=4 precision=bf16");
}

static void assert_same_file(const char *a, const char *b, const char *name)
{
    struct snug_error err;
    const char *runs[] = {a, b};
    struct checkpoint *checkpoints[2];
    char *bytes[2];
    size_t n[2];
    for (int i = 0; i < 2; i++) {
        must(checkpoint_open(runs[i], &checkpoints[i], &err), &err);
        struct safetensors *st = checkpoint_find(checkpoints[i], name);
        assert_non_null(st);
        bytes[i] = files_read(safetensors_path(st), &n[i]);
    }
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(bytes[0], bytes[1], n[0]);
    for (int i = 0; i < 2; i++) {
        free(bytes[i]);
        checkpoint_close(checkpoints[i]);
    }
}

static void check_resume(const char *more)
{
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors",
                                        "adapter/" PEFT_MODEL_NAME};
    char dir[FILES_PATH_MAX], keys[300], base[FILES_PATH_MAX + 8], a[FILES_PATH_MAX + 8],
        b[FILES_PATH_MAX + 8];
    files_make_dir(dir);
    snprintf(base, sizeof base, "%s/base", dir);
    snprintf(a, sizeof a, "%s/a", dir);
    snprintf(b, sizeof b, "%s/b", dir);
    snprintf(keys, sizeof keys, RUN_KEYS "%s", more);
    train(SMALL, "batch=8 threads=1 lr=0.02 seed=5", base, 0, 3, 0);
    train(base, keys, a, 0, N_STEPS, 0);
    train(base, keys, b, 0, N_STEPS, STOP_AT);
    train(base, "threads=1", b, 1, 0, 0); /* with the recipe that was saved */
    for (size_t i = 0; i < LENGTH(files); i++)
        assert_same_file(a, b, files[i]);
    files_remove_dir(dir);
}

static void test_resumes_exactly(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(saved_recipes); i++)
        check_resume(saved_recipes[i]);
}

/* Loss falls, and nothing but the adapters moved. */
static void test_trains_adapters_alone(void **state)
{
    (void)state;
    static const char *const frozen[] = {"wte.weight", "h.0.ln_1.weight", "h.0.mlp.c_fc.weight"};
    char dir[FILES_PATH_MAX];
    struct snug_error err;
    struct checkpoint *runs[2];
    files_make_dir(dir);
    char base[FILES_PATH_MAX + 8], run[FILES_PATH_MAX + 8];
    snprintf(base, sizeof base, "%s/base", dir);
    snprintf(run, sizeof run, "%s/run", dir);
    train(SMALL, RUN_KEYS, base, 0, 1, 0);
    snug_model *model = model_of(base);
    snug_recipe *recipe = recipe_of("batch=4 seq=10 threads=1 lora=4 lr=0.05");
    struct snug_train_options options = {.data = "none", .steps = 40, .out = run};
    snug_trainer *trainer = NULL;
    struct snug_metrics first = {0}, last = {0};
    must(snug_trainer_open(model, recipe, &options, &trainer, &err), &err);
    struct batch b = batch_of(1);
    for (int i = 0; i < 40; i++)
        must(snug_trainer_step(trainer, (const void *[]){b.tokens, b.targets},
                               i == 0 ? &first : &last, &err),
             &err);
    must(snug_trainer_save(trainer, &err), &err);
    assert_true(last.loss < first.loss - 0.01);
    must(checkpoint_open(base, &runs[0], &err), &err);
    must(checkpoint_open(run, &runs[1], &err), &err);
    float moved[2][8 * 24], same[2][MAX_ELEMS];
    for (int i = 0; i < 2; i++)
        read_raw(checkpoint_find(runs[i], "model.safetensors"), "h.0.attn.c_attn.weight", moved[i],
                 sizeof moved[i]);
    assert_memory_not_equal(moved[0], moved[1], sizeof moved[0]);
    for (size_t k = 0; k < LENGTH(frozen); k++) {
        const struct st_entry *entry =
            safetensors_find(checkpoint_find(runs[0], "model.safetensors"), frozen[k]);
        for (int i = 0; i < 2; i++)
            read_raw(checkpoint_find(runs[i], "model.safetensors"), frozen[k], same[i],
                     (size_t)entry->n_bytes);
        assert_memory_equal(same[0], same[1], (size_t)entry->n_bytes);
    }
    for (int i = 0; i < 2; i++)
        checkpoint_close(runs[i]);
    snug_trainer_free(trainer);
    snug_recipe_free(recipe);
    snug_model_free(model);
    files_remove_dir(dir);
}

/* A run that starts from an adapter has its loss; so has the model with the adapter added. */
static void test_starts_from_an_adapter(void **state)
{
    (void)state;
    char dir[FILES_PATH_MAX], keys[FILES_PATH_MAX + 100];
    struct snug_error err;
    struct snug_eval_result merged, added;
    files_make_dir(dir);
    char run[FILES_PATH_MAX + 8], base[FILES_PATH_MAX + 8];
    snprintf(run, sizeof run, "%s/run", dir);
    snprintf(base, sizeof base, "%s/base", dir);
    train(SMALL, RUN_KEYS, base, 0, 1, 0);
    train(base, RUN_KEYS "lora=3 lora-alpha=4.5 lora-on=all", run, 0, N_STEPS, 0);
    double merged_loss = train(run, RUN_KEYS, NULL, 0, 1, 0).first_loss;
    snprintf(keys, sizeof keys, RUN_KEYS "lora-on=all lora-from=%s/adapter", run);
    double adapted_loss = train(base, keys, NULL, 0, 1, 0).first_loss;
    assert_true(fabs(merged_loss - adapted_loss) < 1e-6 * merged_loss);
    snprintf(keys, sizeof keys, "threads=1 lora-from=%s/adapter", run);
    snug_recipe *plain = recipe_of("threads=1"), *with = recipe_of(keys);
    must(snug_eval(run, "random", plain, &merged, &err), &err);
    must(snug_eval(base, "random", with, &added, &err), &err);
    assert_true(fabs(merged.loss - added.loss) < 1e-6 * merged.loss);
    snug_recipe_free(plain);
    snug_recipe_free(with);
    files_remove_dir(dir);
}

/* ---- bytes -------------------------------------------------------------------------------------- */

static void test_bytes(void **state)
{
    (void)state;
    enum { MATRICES = 12 * 768 * 12 * 768, ALL = 124439808, TRAINED = 294912 };
    struct snug_ledger half = ledger_of("gpt2", "lora=8 precision=bf16 threads=2", 0);
    assert_int_equal(half.n_trained, TRAINED);
    assert_int_equal(half.n_parameters, ALL);
    assert_int_equal(half.parameters, 2 * (ALL + TRAINED));
    assert_int_equal(half.optimizer, 12 * TRAINED); /* master and two moments */
    assert_true(half.gradients + half.optimizer < 6000000);
    struct snug_ledger quantized =
        ledger_of("gpt2", "lora=8 precision=bf16 lora-base=4 threads=2", 0);
    int64_t scales = MATRICES / 128 * 4;
    assert_int_equal(quantized.parameters, 2 * (ALL - MATRICES + TRAINED) + MATRICES / 2 + scales);
    struct snug_ledger bytes = ledger_of("gpt2", "lora=8 precision=bf16 lora-base=8 threads=2", 0);
    assert_int_equal(bytes.parameters, 2 * (ALL - MATRICES + TRAINED) + MATRICES + scales / 2);
    assert_int_equal(ledger_of("gpt2", "lora=8 lora-on=mlp threads=2", 0).n_trained,
                     12 * 8 * 2 * (768 + 3072));
    assert_int_equal(ledger_of("gpt2", "lora=8 lora-on=all threads=2", 0).n_trained,
                     12 * 8 * (2 * (768 + 3072) + 768 + 2304 + 2 * 768));
}

/* ---- refused ------------------------------------------------------------------------------------ */

static void refuse(const char *model_spec, const char *keys, const char *out, int resume,
                   const char *words)
{
    struct snug_error err = {0};
    snug_trainer *trainer = NULL;
    snug_model *model = model_of(model_spec);
    snug_recipe *recipe = recipe_of(keys);
    struct snug_train_options options = {
        .data = "random", .steps = 2, .out = out, .resume = resume};
    assert_int_not_equal(snug_trainer_open(model, recipe, &options, &trainer, &err), SNUG_OK);
    if (strstr(err.message, words) == NULL)
        fail_msg("%s says \"%s\" and not \"%s\"", keys, err.message, words);
    snug_recipe_free(recipe);
    snug_model_free(model);
}

static void test_refusals(void **state)
{
    (void)state;
    char dir[FILES_PATH_MAX], base[FILES_PATH_MAX + 8], other[FILES_PATH_MAX + 8],
        run[FILES_PATH_MAX + 8], keys[FILES_PATH_MAX + 100];
    struct snug_error err;
    snug_model *model = NULL;
    files_make_dir(dir);
    snprintf(base, sizeof base, "%s/base", dir);
    snprintf(other, sizeof other, "%s/other", dir);
    snprintf(run, sizeof run, "%s/run", dir);
    train(SMALL, RUN_KEYS, base, 0, 1, 0);
    train(SMALL, RUN_KEYS "seed=7", other, 0, 1, 0);
    train(base, RUN_KEYS "lora=3", run, 0, 2, 0);
    refuse(other, RUN_KEYS, run, 1, "adapters for other base weights");
    refuse(run, RUN_KEYS, run, 1, "use the model that the run started from");
    refuse(base, RUN_KEYS "lora=2", run, 1, "was trained with --lora 3, not 2");
    refuse(base, RUN_KEYS "lora=3 lora-base=8", run, 1, "was trained without --lora-base");
    refuse(base, RUN_KEYS "lora=9", NULL, 0, "rank from 1 to 8");
    refuse(base, RUN_KEYS "lora-alpha=9", NULL, 0, "--lora-alpha has no effect without --lora");
    snprintf(keys, sizeof keys, RUN_KEYS "lora=2 lora-from=%s/adapter", run);
    refuse(base, keys, NULL, 0, "has rank 3, not --lora 2");
    snprintf(keys, sizeof keys, RUN_KEYS "lora-on=all lora-from=%s/adapter", run);
    refuse(base, keys, NULL, 0, "lacks 6 adapter matrices");
    snprintf(keys, sizeof keys, RUN_KEYS "lora-on=mlp lora-from=%s/adapter", run);
    refuse(base, keys, NULL, 0, "matches no adapter of this model");
    snprintf(keys, sizeof keys, "%s/adapter", run);
    assert_int_equal(snug_model_open(keys, &model, &err), SNUG_UNSUPPORTED);
    assert_non_null(strstr(err.message, "holds an adapter and no model"));
    files_remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_step_is_the_models),
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_merged_model_is_the_adapted_one),
        cmocka_unit_test(test_resumes_exactly),
        cmocka_unit_test(test_trains_adapters_alone),
        cmocka_unit_test(test_starts_from_an_adapter),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("lora", tests, NULL, NULL);
}
