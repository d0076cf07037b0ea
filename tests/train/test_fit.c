/*
 * test_fit.c -- a fit finds what trying everything finds, keeps what the user fixed, and its choice
 * really is in the budget.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/training.h"
#include "train/fit.h"

static const char small[] = "mlp:64-96-96-10";

static int64_t total_of(const snug_model *model, const snug_recipe *recipe, double *seconds)
{
    struct snug_error err = {0};
    struct snug_ledger ledger;
    snug_plan *plan;
    must(snug_plan_make(model, recipe, &plan, &err), &err);
    snug_plan_ledger(plan, &ledger);
    *seconds = ledger.step_seconds;
    snug_plan_free(plan);
    return ledger.total;
}

enum { BATCH = 480, TRIED_MAX = 24 * 8 };

struct tried {
    int64_t total;
    double seconds;
};

/* Every micro-batch, state width and master, planned one by one. */
static int try_all(const snug_model *model, const char *keys, struct tried tried[TRIED_MAX])
{
    static const char *const bits[] = {"32", "16", "8", "4"}, *const masters[] = {"fp32", "none"};
    int n = 0;
    for (int64_t m = 1; m <= BATCH; m++)
        for (int i = 0; i < 8 && BATCH % m == 0; i++) {
            struct snug_error err = {0};
            char micro[32];
            snug_recipe *r = recipe_of(keys);
            snprintf(micro, sizeof micro, "%lld", (long long)m);
            must(snug_recipe_set(r, "micro-batch", micro, &err), &err);
            must(snug_recipe_set(r, "state-bits", bits[i / 2], &err), &err);
            must(snug_recipe_set(r, "master", masters[i % 2], &err), &err);
            tried[n].total = total_of(model, r, &tried[n].seconds);
            n++;
            snug_recipe_free(r);
        }
    return n;
}

static double fastest_within(const struct tried *tried, int n, int64_t room)
{
    double best = 1e300;
    for (int i = 0; i < n; i++)
        if (tried[i].total <= room && tried[i].seconds < best)
            best = tried[i].seconds;
    return best;
}

static snug_recipe *with_memory(const char *keys, int64_t bytes)
{
    struct snug_error err = {0};
    char size[32];
    snug_recipe *recipe = recipe_of(keys);
    snprintf(size, sizeof size, "%lld", (long long)bytes);
    must(snug_recipe_set(recipe, "memory", size, &err), &err);
    return recipe;
}

static const char keys[] =
    "batch=480 precision=bf16 threads=1 target=cpu checkpoint=none update=end "
    "offload=none lora=0";

/* Keys that other passes may bring are fixed here, so that the loops above are everything. */
static void as_brute_force(void **state)
{
    (void)state;
    snug_model *model = model_of(small);
    const int64_t runtime = 65 << 20;
    struct tried tried[TRIED_MAX];
    int n = try_all(model, keys, tried);
    int64_t least = INT64_MAX;
    for (int i = 0; i < n; i++)
        least = tried[i].total < least ? tried[i].total : least;
    for (int64_t room = least - 1000; room < 3 * least; room += least / 7) {
        struct snug_error err = {0};
        struct fit fit;
        snug_recipe *recipe = with_memory(keys, room + runtime);
        double best = fastest_within(tried, n, room), seconds;
        enum snug_status status = fit_search(model, recipe, "all", &fit, &err);
        assert_int_equal(fit.runtime_bytes, runtime);
        if (room < least) {
            assert_int_equal(status, SNUG_OVER_BUDGET);
            assert_int_equal(fit.chosen, -1);
        } else {
            must(status, &err);
            snug_recipe chosen;
            must(fit_recipe(&fit, fit.chosen, &chosen, &err), &err);
            const struct fit_candidate *c = &fit.candidates[fit.chosen];
            assert_int_equal(total_of(model, &chosen, &seconds), c->total_bytes);
            assert_true(c->total_bytes <= room && c->seconds == seconds && seconds == best);
        }
        fit_free(&fit);
        snug_recipe_free(recipe);
    }
    snug_model_free(model);
}

static void more_memory_is_never_slower(void **state)
{
    (void)state;
    snug_model *model = model_of("gpt-nano");
    double before = 1e300;
    int n_chosen = 0;
    for (int64_t mib = 120; mib <= 900; mib += 60) {
        struct snug_error err = {0};
        struct snug_fit_point point = {0};
        snug_fit *fit;
        snug_recipe *recipe = with_memory("batch=24 threads=2 target=cpu", mib << 20);
        enum snug_status status = snug_fit_make(model, recipe, NULL, &fit, &err);
        assert_true(status == SNUG_OK || (status == SNUG_OVER_BUDGET && n_chosen == 0));
        int64_t less = INT64_MAX;
        double slower = 0;
        for (int i = 0; i < snug_fit_n_points(fit); i++) {
            snug_fit_point(fit, i, &point);
            assert_true(point.total < less && point.step_seconds >= slower);
            less = point.total;
            slower = point.step_seconds;
            if (point.is_chosen) {
                assert_true(point.fits && point.step_seconds <= before);
                before = point.step_seconds;
                n_chosen++;
            }
        }
        snug_fit_free(fit);
        snug_recipe_free(recipe);
    }
    assert_true(n_chosen > 3);
    snug_model_free(model);
}

static void what_is_fixed_stays(void **state)
{
    (void)state;
    snug_model *model = model_of(small);
    struct snug_error err = {0};
    snug_fit *fit;
    snug_recipe *recipe = recipe_of("batch=12 micro-batch=3 memory=1G precision=bf16");
    must(snug_fit_make(model, recipe, NULL, &fit, &err), &err);
    const snug_recipe *chosen = snug_fit_recipe(fit);
    assert_int_equal(chosen->micro_batch, 3);
    assert_int_equal(chosen->no_master, 0); /* not allowed */
    assert_int_equal(chosen->state_bits, 0);
    char *command = snug_fit_command(fit);
    assert_non_null(strstr(command, "snug train mlp:64-96-96-10 --batch 12 --micro-batch 3"));
    assert_non_null(strstr(command, "--memory 1G"));
    snug_free(command);
    snug_fit_free(fit);

    snug_recipe_free(recipe);
    recipe = recipe_of("memory=1G");
    assert_int_equal(snug_fit_make(model, recipe, "seed", &fit, &err), SNUG_BAD_ARGUMENT);
    assert_non_null(strstr(err.message, "state-bits"));
    assert_null(fit);
    snug_recipe_free(recipe);
    recipe = recipe_of("batch=4");
    assert_int_equal(snug_fit_make(model, recipe, NULL, &fit, &err), SNUG_BAD_ARGUMENT);
    assert_non_null(strstr(err.message, "--memory"));
    snug_recipe_free(recipe);
    snug_model_free(model);
}

static void nothing_fits(void **state)
{
    (void)state;
    snug_model *model = model_of("gpt2");
    struct snug_error err = {0};
    snug_fit *fit;
    snug_recipe *recipe = recipe_of("memory=300M threads=1 target=cpu");
    assert_int_equal(snug_fit_make(model, recipe, NULL, &fit, &err), SNUG_OVER_BUDGET);
    assert_non_null(strstr(err.message, "weights alone"));
    assert_non_null(strstr(err.message, "--allow all"));
    assert_null(snug_fit_recipe(fit));
    assert_true(snug_fit_n_points(fit) > 1);
    char *json = snug_fit_json(fit);
    assert_non_null(strstr(json, "\"chosen\": null"));
    snug_free(json);
    snug_fit_free(fit);
    snug_recipe_free(recipe);
    snug_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_brute_force),
        cmocka_unit_test(more_memory_is_never_slower),
        cmocka_unit_test(what_is_fixed_stays),
        cmocka_unit_test(nothing_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
