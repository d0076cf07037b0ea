/*
 * test_idle_flags.c -- no optimizer ignores a flag silently: each flag below changes the weights or
 * the plan, or is refused with a message that names it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/training.h"
#include "compile/compile.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

/* The states of its larger layer can be of 8 and 4 bits. */
static const char model_name[] = "mlp:64-96-10";
enum { N_WEIGHTS = 64 * 96, N_STEPS = 6 };

static const struct {
    const char *key, *value, *base; /* base: set with and without the flag */
} flags[] = {
    {"lr", "0.03", ""},
    {"weight-decay", "0.3", ""},
    {"clip", "0.01", "clip=0"},
    {"schedule", "linear", ""},
    {"schedule", "cosine", ""},
    {"schedule", "cyclic", "cycles=2"},
    {"schedule", "wsd", ""},
    {"warmup", "3", ""},
    {"scale-lr", "sqrt", "base-batch=2"},
    {"state-bits", "16", ""},
    {"state-bits", "8", ""},
    {"state-bits", "4", ""},
    {"master", "none", "precision=bf16"},
};

/* Options with which six steps show what a hundred would. */
static const char *options_of(const char *optimizer)
{
    return strcmp(optimizer, "schedule-free-prodigy") == 0 ? " opt=d0=0.02" : "";
}

struct result {
    int64_t bytes; /* of states */
    float weights[N_WEIGHTS];
};

static snug_recipe *make_recipe(const char *optimizer, int flag, bool is_set)
{
    char keys[160];
    struct snug_error err;
    const char *base = flags[flag].base;
    bool needs_scale = strcmp(flags[flag].key, "scale-lr") == 0;
    snprintf(keys, sizeof keys, "optimizer=%s batch=8 threads=1%s %s", optimizer,
             options_of(optimizer), needs_scale ? "" : base);
    snug_recipe *recipe = recipe_of(keys);
    if (is_set && needs_scale)
        must(snug_recipe_set(recipe, "base-batch", "2", &err), &err);
    if (is_set)
        must(snug_recipe_set(recipe, flags[flag].key, flags[flag].value, &err), &err);
    return recipe;
}

static int64_t bytes_of_states(snug_model *model, const snug_recipe *recipe)
{
    struct snug_error err;
    struct compiled_step compiled;
    struct snug_ledger ledger;
    struct compile_request q = {.model = model, .recipe = recipe, .train = true};
    must(compile_step(&q, &compiled, &err), &err);
    compiled_step_ledger(&compiled, recipe, &ledger);
    compiled_step_free(&compiled);
    return ledger.optimizer;
}

static enum snug_status run(const char *optimizer, int flag, bool is_set, struct result *result,
                            struct snug_error *err)
{
    snug_trainer *trainer = NULL;
    snug_model *model = model_of(model_name);
    snug_recipe *recipe = make_recipe(optimizer, flag, is_set);
    struct snug_train_options options = {.steps = N_STEPS, .eval_every = -1};
    enum snug_status status = snug_trainer_open(model, recipe, &options, &trainer, err);
    if (status == SNUG_OK)
        status = snug_trainer_run(trainer, NULL, NULL, err);
    if (status == SNUG_OK)
        status = snug_trainer_read(trainer, "layers.0.weight", result->weights, N_WEIGHTS, err);
    if (status == SNUG_OK)
        result->bytes = bytes_of_states(model, recipe);
    snug_trainer_free(trainer);
    snug_recipe_free(recipe);
    snug_model_free(model);
    return status;
}

static bool is_refused(const char *key, enum snug_status status, const struct snug_error *err)
{
    char name[40];
    snprintf(name, sizeof name, "--%s", key);
    return status == SNUG_BAD_ARGUMENT && strstr(err->message, name) != NULL;
}

/* The codes of 8 and 4 bits are for tensors of 4096 elements.  muon, shampoo and caspr keep those of this model
 * in fp32, and take the flag for others. */
static bool is_for_other_tensors(const char *optimizer, int flag)
{
    bool is_quantized_base =
        strcmp(flags[flag].key, "state-bits") == 0 && strcmp(flags[flag].value, "16") != 0;
    return is_quantized_base &&
           (strcmp(optimizer, "muon") == 0 || strcmp(optimizer, "shampoo") == 0 ||
            strcmp(optimizer, "caspr") == 0);
}

/* It is what the optimizer has by itself. */
static bool is_its_own(const struct optimizer *optimizer, int flag)
{
    return strcmp(flags[flag].key, "state-bits") == 0 &&
           atoi(flags[flag].value) == optimizer->state_bits;
}

static void test_no_flag_is_ignored(void **state)
{
    (void)state;
    static struct result without, with;
    int n_refused = 0, n_changed = 0, n_idle = 0;
    const struct optimizer *optimizer;
    for (int i = 0; (optimizer = optimizer_at(i)) != NULL; i++)
        for (int k = 0; k < LENGTH(flags); k++) {
            struct snug_error err = {0};
            if (is_for_other_tensors(optimizer->name, k) || is_its_own(optimizer, k))
                continue;
            must(run(optimizer->name, k, false, &without, &err), &err);
            enum snug_status status = run(optimizer->name, k, true, &with, &err);
            bool refused = is_refused(flags[k].key, status, &err);
            if (!refused)
                must(status, &err);
            bool changed =
                !refused && (without.bytes != with.bytes ||
                             memcmp(without.weights, with.weights, sizeof with.weights) != 0);
            if (!refused && !changed)
                print_error("%s ignores --%s %s\n", optimizer->name, flags[k].key, flags[k].value);
            n_refused += refused;
            n_changed += changed;
            n_idle += !refused && !changed;
        }
    print_message("# %d flags change the result, %d are refused\n", n_changed, n_refused);
    assert_int_equal(n_idle, 0);
    assert_true(n_changed > 250 && n_refused > 0);
}

/* ---- the rate in use ------------------------------------------------------------------------- */

static int keep_lr(const struct snug_metrics *m, void *rates)
{
    ((double *)rates)[m->step - 1] = m->lr;
    return 0;
}

/* adafactor without --lr: 0.01 times the size of the weights, for the first 10,000 updates. */
static void test_the_rate_in_use_is_logged(void **state)
{
    (void)state;
    struct snug_error err;
    snug_trainer *trainer = NULL;
    static const double wanted[N_STEPS] = {0.005, 0.01, 0.01, 0.007, 0.004, 0.001};
    double rates[N_STEPS] = {0};
    snug_model *model = model_of(model_name);
    snug_recipe *recipe = recipe_of("optimizer=adafactor batch=8 schedule=linear warmup=2");
    struct snug_train_options options = {.steps = N_STEPS, .eval_every = -1};
    must(snug_trainer_open(model, recipe, &options, &trainer, &err), &err);
    char *header = snug_trainer_describe(trainer);
    assert_non_null(header);
    if (strstr(header, "lr 0.01 relative to the size of") == NULL ||
        strstr(header, "each weight, linear, warmup 2") ==
            NULL) /* the line is broken between them */
        fail_msg("%s", header);
    must(snug_trainer_run(trainer, keep_lr, rates, &err), &err);
    assert_true(relative_error(rates, wanted, N_STEPS) < 1e-12);
    free(header);
    snug_trainer_free(trainer);
    snug_recipe_free(recipe);
    snug_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_flag_is_ignored),
        cmocka_unit_test(test_the_rate_in_use_is_logged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
