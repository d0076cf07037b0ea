/*
 * test_compare.c -- plans compared side by side equal each plan alone, a timeline has its series,
 * and text output stays within 80 columns.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "support/training.h"

enum { N_RECIPES = 4 };
static const char *const lines[N_RECIPES] = {"", "--micro-batch 1", "micro-batch=2 precision=bf16",
                                             "--precision=bf16 --state-bits 8 --master none"};

struct compared {
    snug_model *model;
    snug_recipe *recipes[N_RECIPES];
    snug_plan *plans[N_RECIPES];
};

static void make(struct compared *c, int n_recipes)
{
    struct snug_error err = {0};
    snug_recipe *common = recipe_of("batch=4 threads=1");
    c->model = model_of("gpt-nano");
    for (int i = 0; i < n_recipes; i++) {
        c->recipes[i] = snug_recipe_copy(common);
        must(snug_recipe_set_line(c->recipes[i], lines[i], &err), &err);
        must(snug_plan_make(c->model, c->recipes[i], &c->plans[i], &err), &err);
    }
    snug_recipe_free(common);
}

static void forget(struct compared *c, int n_recipes)
{
    for (int i = 0; i < n_recipes; i++) {
        snug_plan_free(c->plans[i]);
        snug_recipe_free(c->recipes[i]);
    }
    snug_model_free(c->model);
}

/* Cells, not bytes: what continues a UTF-8 sequence is not counted. */
static void assert_narrow(char *text)
{
    int width = 0;
    assert_non_null(text);
    for (const char *c = text; *c != '\0'; c++) {
        width = *c == '\n' ? 0 : width + (((unsigned char)*c & 0xC0) != 0x80);
        if (width > 80)
            fail_msg("wider than 80 columns:\n%s", text);
    }
    snug_free(text);
}

static void as_each_alone(void **state)
{
    (void)state;
    struct compared c;
    make(&c, N_RECIPES);
    char *text = snug_compare_json((const snug_plan *const *)c.plans, lines, N_RECIPES);
    json_t *json = json_loads(text, 0, NULL), *rows = json_object_get(json, "compare");
    assert_int_equal(json_array_size(rows), N_RECIPES);
    for (int i = 0; i < N_RECIPES; i++) {
        struct snug_ledger l;
        const json_t *row = json_array_get(rows, (size_t)i), *bytes = json_object_get(row, "bytes");
        snug_plan_ledger(c.plans[i], &l);
        assert_string_equal(json_string_value(json_object_get(row, "recipe")), lines[i]);
        assert_int_equal(json_integer_value(json_object_get(bytes, "total")), l.total);
        assert_int_equal(json_integer_value(json_object_get(bytes, "optimizer")), l.optimizer);
        assert_int_equal(json_integer_value(json_object_get(bytes, "activations")), l.activations);
        double seconds = json_real_value(json_object_get(row, "step_seconds"));
        assert_true(seconds > 0.999999 * l.step_seconds && seconds < 1.000001 * l.step_seconds);
    }
    json_decref(json);
    snug_free(text);
    assert_narrow(snug_compare_text((const snug_plan *const *)c.plans, lines, N_RECIPES, 0));
    forget(&c, N_RECIPES);
}

static void a_timeline_is_in_the_json(void **state)
{
    (void)state;
    struct compared c;
    struct snug_ledger l;
    int64_t most = 0;
    make(&c, 1);
    snug_plan_ledger(c.plans[0], &l);
    char *text = snug_plan_timeline_json(c.plans[0]);
    json_t *json = json_loads(text, 0, NULL), *points = json_object_get(json, "timeline");
    assert_int_equal(json_array_size(points), l.n_ops);
    for (size_t i = 0; i < json_array_size(points); i++) {
        int64_t total = json_integer_value(json_object_get(json_array_get(points, i), "total"));
        most = total > most ? total : most;
    }
    assert_int_equal(most, l.lower_bound);
    json_decref(json);
    snug_free(text);
    assert_narrow(snug_plan_timeline_text(c.plans[0], 0));
    forget(&c, 1);
}

static void lines_that_are_wrong(void **state)
{
    (void)state;
    static const char *const wrong[][2] = {{"--micro-batch", "no value"},
                                           {"bf16", "no value"},
                                           {"--bathc 3", "no recipe key"},
                                           {"precision=fp8", "fp8"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct snug_error err = {0};
        snug_recipe *recipe = recipe_of("batch=4 threads=2");
        assert_int_equal(snug_recipe_set_line(recipe, wrong[i][0], &err), SNUG_BAD_ARGUMENT);
        assert_non_null(strstr(err.message, wrong[i][1]));
        snug_recipe_free(recipe);
    }
}

static void a_fit_is_narrow_and_in_json(void **state)
{
    (void)state;
    struct snug_error err = {0};
    snug_fit *fit;
    snug_model *model = model_of("gpt2");
    snug_recipe *recipe = recipe_of("batch=16 memory=3G precision=bf16 threads=2 target=h100");
    must(snug_fit_make(model, recipe, "state-bits,master", &fit, &err), &err);
    assert_narrow(snug_fit_text(fit, 0, 0));
    assert_narrow(snug_fit_text(fit, 1, 0));
    char *text = snug_fit_json(fit);
    json_t *json = json_loads(text, 0, NULL), *chosen = json_object_get(json, "chosen");
    assert_int_equal(json_integer_value(json_object_get(json, "budget")), (int64_t)3 << 30);
    assert_int_equal(json_array_size(json_object_get(json, "frontier")), snug_fit_n_points(fit));

    /* the recipe that it names, planned again, needs what it says */
    struct snug_ledger l;
    snug_plan *plan;
    must(snug_plan_make(model, snug_fit_recipe(fit), &plan, &err), &err);
    snug_plan_ledger(plan, &l);
    assert_int_equal(json_integer_value(json_object_get(chosen, "total")), l.total);
    must(snug_plan_check_budget(plan, &err), &err);
    snug_plan_free(plan);
    json_decref(json);
    snug_free(text);
    snug_fit_free(fit);
    snug_recipe_free(recipe);
    snug_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_each_alone),
        cmocka_unit_test(a_timeline_is_in_the_json),
        cmocka_unit_test(lines_that_are_wrong),
        cmocka_unit_test(a_fit_is_narrow_and_in_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
