/*
 * test_advice.c -- what a plan advises to reduce memory: the mildest change first, with the bytes
 * of its plan.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/training.h"
#include "compile/advice.h"
#include "compile/budget.h"

static int64_t total_of(const snug_model *model, const snug_recipe *recipe, const char *flags)
{
    struct snug_error err = {0};
    struct snug_ledger ledger;
    snug_plan *plan;
    snug_recipe *own = snug_recipe_copy(recipe);
    must(snug_recipe_set_line(own, flags, &err), &err);
    must(snug_plan_make(model, own, &plan, &err), &err);
    snug_plan_ledger(plan, &ledger);
    snug_plan_free(plan);
    snug_recipe_free(own);
    return ledger.total;
}

struct expected {
    const char *model, *keys;
    const char *first;  /* of these, parted by |, one comes first */
    const char *among;  /* is in the list */
    const char *absent; /* is not */
};

static bool is_one_of(const char *words, const char *flags)
{
    const char *at = strstr(words, flags);
    size_t n = strlen(flags);
    return at != NULL && (at == words || at[-1] == '|') && (at[n] == '\0' || at[n] == '|');
}

static void check(const struct expected *e)
{
    struct snug_error err = {0};
    struct compiled_step s;
    struct priced_recipe list[ADVICE_MOST];
    snug_model *model = model_of(e->model);
    snug_recipe *recipe = recipe_of(e->keys);
    struct compile_request q = {.model = model, .recipe = recipe, .train = true};
    must(compile_step(&q, &s, &err), &err);
    int n = advice_list(&q, &s, list);
    bool has = false;
    assert_in_range(n, 1, ADVICE_MOST);
    for (int i = 0; i < n; i++) {
        if (i > 0) {
            assert_true(list[i - 1].changes <= list[i].changes);
            assert_true(list[i - 1].changes < list[i].changes ||
                        list[i - 1].total_bytes <= list[i].total_bytes);
        }
        assert_true(list[i].total_bytes < s.plan.arena_bytes);
        assert_int_equal(list[i].total_bytes, total_of(model, recipe, list[i].flags));
        has |= strcmp(list[i].flags, e->among) == 0;
        if (strcmp(list[i].flags, e->absent) == 0)
            fail_msg("%s, %s: advises %s", e->model, e->keys, e->absent);
    }
    if (!is_one_of(e->first, list[0].flags) || !has)
        fail_msg("%s, %s: %s comes first, or %s is not there", e->model, e->keys, list[0].flags,
                 e->among);
    compiled_step_free(&s);
    snug_recipe_free(recipe);
    snug_model_free(model);
}

static void the_mildest_comes_first(void **state)
{
    static const struct expected rows[] = {
        {"gpt-nano", "batch=8 threads=1", "--checkpoint every:1|--offload activations",
         "--micro-batch 2", "--optimizer sgd"},
        {"gpt-nano", "batch=4 seq=16 threads=1 ranks=4", "--zero 2|--zero 3|--offload states",
         "--zero 2", "--optimizer sgd"},
        {"gpt-nano", "batch=1 seq=16 threads=1", "--offload states|--update in-backward",
         "--state-bits 8", "--optimizer sgd"},
        {"resnet18:3x32x32,classes=10", "batch=64 threads=1",
         "--checkpoint every:1|--offload activations", "--precision bf16", "--optimizer sgd"},
        {"psi:7e6", "ranks=4", "--zero 3", "--zero 2", "--optimizer sgd"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check(&rows[i]);
}

/* Learning is changed last: only where little else helps. */
static void learning_is_changed_last(void **state)
{
    static const struct expected row = {"mlp",
                                        "batch=1 threads=1 offload=states precision=bf16 "
                                        "optimizer=adam-8bit update=in-backward clip=0",
                                        "--optimizer sgd", "--optimizer sgd", "--lora 16"};
    (void)state;
    check(&row);
}

/* ---- within a budget ------------------------------------------------------------------------- */

static const struct priced_recipe *find_flag(const struct priced_recipe *list, int n,
                                             const char *key)
{
    for (int i = 0; i < n; i++)
        if (strncmp(list[i].flags, key, strlen(key)) == 0)
            return &list[i];
    return NULL;
}

/* Micro-batches add up in another order; with masks or statistics of their own they change what is
 * learned. */
static void changes_are_named_honestly(void **state)
{
    static const struct {
        const char *model, *keys, *flag, *words;
    } rows[] = {
        {"gpt-nano", "batch=8 threads=1", "--micro-batch", "same up to rounding"},
        {"gpt-nano", "batch=8 threads=1", "--checkpoint", "same result"},
        {"gpt-nano", "batch=8 threads=1 dropout=0.1 precision=bf16 state-bits=8", "--micro-batch",
         "changes training"},
        {"resnet18:3x32x32,classes=10", "batch=64 threads=1", "--micro-batch", "changes training"},
        {"gpt-nano", "batch=4 seq=16 threads=1 ranks=4", "--zero 2", "same result"},
        {"gpt-nano", "batch=8 micro-batch=1 seq=16 threads=1 ranks=4", "--zero 2",
         "same up to rounding"},
        {"gpt-nano", "batch=1 seq=16 threads=1", "--state-bits", "changes rounding"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct snug_error err = {0};
        struct compiled_step s;
        struct priced_recipe list[ADVICE_MOST];
        snug_model *model = model_of(rows[i].model);
        snug_recipe *recipe = recipe_of(rows[i].keys);
        struct compile_request q = {.model = model, .recipe = recipe, .train = true};
        must(compile_step(&q, &s, &err), &err);
        int n = advice_list(&q, &s, list);
        const struct priced_recipe *one = find_flag(list, n, rows[i].flag);
        if (one == NULL)
            fail_msg("%s, %s: no %s", rows[i].model, rows[i].keys, rows[i].flag);
        assert_string_equal(advice_change_words(one), rows[i].words);
        compiled_step_free(&s);
        snug_recipe_free(recipe);
        snug_model_free(model);
    }
}

/* The plan of one stage is compared with plans of the same stage. */
static void advice_is_for_the_rank_of_the_plan(void **state)
{
    (void)state;
    for (int rank = 0; rank < 2; rank++) {
        struct snug_error err = {0};
        struct compiled_step s, other;
        struct priced_recipe list[ADVICE_MOST];
        snug_model *model = model_of("gpt-nano");
        snug_recipe *recipe = recipe_of("batch=8 micro-batch=4 ranks=2 pipeline=gpipe threads=1");
        struct compile_request q = {.model = model, .recipe = recipe, .train = true, .rank = &rank};
        must(compile_step(&q, &s, &err), &err);
        int n = advice_list(&q, &s, list);
        const struct priced_recipe *one = find_flag(list, n, "--precision bf16");
        assert_non_null(one);
        must(snug_recipe_set_line(recipe, one->flags, &err), &err);
        must(compile_step(&q, &other, &err), &err);
        assert_int_equal(one->total_bytes, other.plan.arena_bytes);
        compiled_step_free(&s);
        compiled_step_free(&other);
        snug_recipe_free(recipe);
        snug_model_free(model);
    }
}

/* A recipe within the budget is found that changes as little as can be. */
static void what_fits_is_mild(void **state)
{
    static const struct {
        const char *model, *keys;
        int percent; /* of the bytes that the recipe needs, beside its runtime */
        const char *flags, *replaced;
    } rows[] = {
        {"gpt-nano", "batch=8 threads=1", 80, "--micro-batch 4", ""},
        {"gpt-nano", "batch=8 threads=1 dropout=0.1", 80, "--checkpoint every:1", ""},
        {"gpt-nano", "batch=4 seq=16 threads=1 ranks=4", 80, "--zero 2", ""},
        {"resnet18:3x32x32,classes=10", "batch=256 threads=1", 60, "--checkpoint every:1", ""},
        /* the faster of two single flags */
        {"resnet18", "batch=64 micro-batch=4 threads=2", 70, "--offload states", ""},
        /* what the user gave is replaced, and not repeated */
        {"gpt2", "batch=8 micro-batch=4 threads=2", 51, "--micro-batch 2 --checkpoint every:1",
         "--micro-batch 4"},
        {"gpt2", "batch=8 micro-batch=4 ranks=2 zero=1 threads=2", 45,
         "--zero 2 --checkpoint every:1", "--zero 1"},
        /* lawa-ema refuses ZeRO 2, which must not spoil what comes after it */
        {"gpt2", "batch=16 ranks=2 optimizer=lawa-ema threads=2", 42, "--checkpoint every:1", ""},
        {"gpt2", "batch=16 ranks=2 optimizer=lawa-ema threads=2", 35,
         "--checkpoint every:1 --offload states", ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct snug_error err = {0};
        struct compiled_step s;
        struct priced_recipe found;
        snug_model *model = model_of(rows[i].model);
        snug_recipe *recipe = recipe_of(rows[i].keys);
        struct compile_request q = {.model = model, .recipe = recipe, .train = true};
        must(compile_step(&q, &s, &err), &err);
        int64_t limit =
            s.plan.arena_bytes / 100 * rows[i].percent + compiled_step_runtime_bytes(&s);
        assert_true(advice_find_fitting(model, recipe, &s, limit, &found));
        assert_string_equal(found.flags, rows[i].flags);
        assert_string_equal(found.replaced, rows[i].replaced);
        assert_true(priced_needed(&found) <= limit);
        assert_int_equal(found.total_bytes, total_of(model, recipe, found.flags));
        assert_false(advice_find_fitting(model, recipe, &s, 1000, &found));
        assert_int_equal(found.total_bytes, total_of(model, recipe, found.flags));
        compiled_step_free(&s);
        snug_recipe_free(recipe);
        snug_model_free(model);
    }
}

/* Checks a recipe against a budget, as `snug plan` does. */
static enum snug_status check_budget(const snug_model *model, const snug_recipe *recipe,
                                     int64_t limit, struct snug_error *err)
{
    struct compiled_step s;
    struct compile_request q = {.model = model, .recipe = recipe, .train = true};
    must(compile_step(&q, &s, err), err);
    enum snug_status status = budget_check(model, recipe, &s, limit, "the budget", err);
    compiled_step_free(&s);
    return status;
}

/* The flags between "this fits: " and what follows them; false: there are none. */
static bool read_flags(const char *message, char flags[256])
{
    const char *begin = strstr(message, "this fits: ");
    if (begin == NULL)
        return false;
    begin += strlen("this fits: ");
    const char *end = strstr(begin, " instead of ");
    end = end == NULL ? strstr(begin, " (") : end;
    assert_non_null(end);
    snprintf(flags, 256, "%.*s", (int)(end - begin), begin);
    return true;
}

/* The runtime differs between recipes, and the limit is for both. */
static void what_is_said_to_fit_is_accepted(void **state)
{
    static const struct {
        const char *model, *keys;
        int64_t from, to, step; /* MiB */
    } rows[] = {
        {"gpt2", "batch=8 threads=2", 1307, 1700, 24},
        {"gpt2", "batch=8 micro-batch=4 threads=2 ranks=2", 1000, 1800, 57},
        {"gpt-nano", "batch=8 threads=1", 90, 300, 7},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snug_model *model = model_of(rows[i].model);
        int n_said = 0;
        for (int64_t mebi = rows[i].from; mebi < rows[i].to; mebi += rows[i].step) {
            struct snug_error err = {0}, refused = {0};
            char flags[256];
            snug_recipe *recipe = recipe_of(rows[i].keys);
            if (check_budget(model, recipe, mebi << 20, &err) == SNUG_OVER_BUDGET &&
                read_flags(err.message, flags)) {
                must(snug_recipe_set_line(recipe, flags, &refused), &refused);
                if (check_budget(model, recipe, mebi << 20, &refused) != SNUG_OK)
                    fail_msg("%lldM: %s\nthen: %s", (long long)mebi, err.message, refused.message);
                n_said++;
            }
            snug_recipe_free(recipe);
        }
        assert_true(n_said > 3);
        snug_model_free(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_mildest_comes_first),
        cmocka_unit_test(learning_is_changed_last),
        cmocka_unit_test(changes_are_named_honestly),
        cmocka_unit_test(advice_is_for_the_rank_of_the_plan),
        cmocka_unit_test(what_fits_is_mild),
        cmocka_unit_test(what_is_said_to_fit_is_accepted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
