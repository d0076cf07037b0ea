/*
 * test_advice.c -- what a plan advises to need less: the mildest first, with the bytes that its plan has.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/training.h"
#include "train/advice.h"

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
    struct session s;
    struct priced_recipe list[ADVICE_MOST];
    snug_model *model = model_of(e->model);
    snug_recipe *recipe = recipe_of(e->keys);
    struct session_request q = {.model = model, .recipe = recipe, .train = true};
    must(session_make(&q, &s, &err), &err);
    int n = advice_list(model, recipe, &s, list);
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
    session_free(&s);
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

/* A recipe within the room is found that changes as little as can be. */
static void what_fits_is_mild(void **state)
{
    static const struct {
        const char *model, *keys;
        int percent; /* of the bytes that the recipe needs */
        const char *flags;
    } rows[] = {
        {"gpt-nano", "batch=8 threads=1", 80, "--batch 8 --micro-batch 4"},
        {"gpt-nano", "batch=4 seq=16 threads=1 ranks=4", 80, "--batch 4 --micro-batch 1 --zero 2"},
        {"resnet18:3x32x32,classes=10", "batch=256 threads=1", 60,
         "--batch 256 --micro-batch 256 --checkpoint every:1"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct snug_error err = {0};
        struct session s;
        struct priced_recipe found;
        snug_model *model = model_of(rows[i].model);
        snug_recipe *recipe = recipe_of(rows[i].keys);
        struct session_request q = {.model = model, .recipe = recipe, .train = true};
        must(session_make(&q, &s, &err), &err);
        int64_t room = s.plan.arena_bytes / 100 * rows[i].percent;
        assert_true(advice_find_fitting(model, recipe, &s, room, &found));
        assert_string_equal(found.flags, rows[i].flags);
        assert_true(found.total_bytes <= room);
        assert_int_equal(found.total_bytes, total_of(model, recipe, found.flags));
        assert_false(advice_find_fitting(model, recipe, &s, 1000, &found));
        assert_int_equal(found.total_bytes, total_of(model, recipe, found.flags));
        session_free(&s);
        snug_recipe_free(recipe);
        snug_model_free(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_mildest_comes_first),
        cmocka_unit_test(learning_is_changed_last),
        cmocka_unit_test(what_fits_is_mild),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
