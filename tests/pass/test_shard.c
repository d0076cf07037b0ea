/*
 * test_shard.c -- the programs of all ranks of a run: each is valid and planned correctly, together
 * they hold every weight and state exactly once, and they run the same collectives in the same
 * order.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ir/collective_options.h"
#include "compile/compile.h"

enum { RANKS_MOST = 5 };

struct scheme {
    const char *name, *parallel, *zero;
};
static const struct scheme schemes[] = {
    {"ddp", "ddp", "0"},    {"ps", "ps", "0"},      {"zero 1", "ddp", "1"},
    {"zero 2", "ddp", "2"}, {"zero 3", "ddp", "3"},
};

static const char *const models[] = {"mlp:7-5-3", "mlp:784-300-10", "gpt-nano", "cnn"};
static const char *const recipes[] = {
    "batch=60",
    "batch=60 micro-batch=2 precision=bf16 checkpoint=sqrt",
    "batch=60 state-bits=8 precision=fp16",
    "batch=60 optimizer=muon micro-batch=1",
    "batch=60 optimizer=soap",
    "batch=60 optimizer=sgd clip=0 label-smoothing=0.1",
};

static void set(snug_recipe *recipe, const char *key, const char *value)
{
    struct snug_error err = {0};
    if (snug_recipe_set(recipe, key, value, &err) != SNUG_OK)
        fail_msg("%s", err.message);
}

static snug_recipe *make_recipe(const struct scheme *scheme, const char *line, int n_ranks)
{
    struct snug_error err = {0};
    char number[16];
    snug_recipe *recipe = snug_recipe_new();
    assert_non_null(recipe);
    if (snug_recipe_set_line(recipe, line, &err) != SNUG_OK)
        fail_msg("%s", err.message);
    snprintf(number, sizeof number, "%d", n_ranks);
    set(recipe, "threads", "1");
    set(recipe, "ranks", number);
    set(recipe, "parallel", scheme->parallel);
    set(recipe, "zero", scheme->zero);
    return recipe;
}

static void check_plan(const struct compiled_step *s, const char *what)
{
    struct snug_error err = {0};
    if (program_verify(&s->prog, &err) != SNUG_OK ||
        plan_check(&s->prog, s->plan.offset, s->plan.arena_bytes, s->backend->alignment, &err) !=
            SNUG_OK)
        fail_msg("%s: %s", what, err.message);
}

/* Collectives of both, in order: the same kinds, cuts and wholes. */
static void check_order(const struct program *a, const struct program *b, const char *what)
{
    int i = 0, j = 0;
    for (;;) {
        while (i < a->n_ops && !op_has(&a->ops[i], TRAIT_collective))
            i++;
        while (j < b->n_ops && !op_has(&b->ops[j], TRAIT_collective))
            j++;
        if (i == a->n_ops || j == b->n_ops)
            break;
        const struct op *x = &a->ops[i++], *y = &b->ops[j++];
        bool same = x->kind == y->kind && x->n_in == y->n_in && x->in_last == y->in_last &&
                    x->attrs.accumulate == y->attrs.accumulate &&
                    memcmp(&attrs_of(x, options)->options, &attrs_of(y, options)->options,
                           sizeof(struct reals)) == 0;
        for (int k = 0; same && k < x->n_in; k++)
            same = strcmp(a->tensors[collective_whole(x, k)].name,
                          b->tensors[collective_whole(y, k)].name) == 0;
        if (!same)
            fail_msg("%s: ranks come to different collectives", what);
    }
    assert_int_equal(i, a->n_ops);
    assert_int_equal(j, b->n_ops);
}

/* What is sharded is somewhere once; what is not is whole on every rank, or on one. */
static void check_shares(const struct compiled_step *ranks, int n_ranks, const char *what)
{
    const struct program *first = &ranks[0].prog;
    for (int id = 0; id < first->n_tensors; id++) {
        const struct tensor *t = &first->tensors[id];
        bool counts =
            (t->role == ROLE_parameter || t->role == ROLE_optimizer) && t->base == TENSOR_NONE;
        int64_t total = 0, at = 0;
        bool is_sharded = false, in_order = true;
        for (int r = 0; r < n_ranks && counts; r++) {
            const struct tensor *here = &ranks[r].prog.tensors[id];
            int64_t n = here->persistent ? shape_elems(&here->shape) : 0;
            assert_string_equal(here->name, t->name);
            is_sharded |= here->whole.n_dims > 0 || !here->persistent;
            in_order &= n == 0 || here->whole_from == at;
            at += n;
            total += n;
        }
        const struct shape *whole = t->whole.n_dims > 0 ? &t->whole : &t->shape;
        for (int r = 0; r < n_ranks && counts && !t->persistent; r++)
            if (ranks[r].prog.tensors[id].persistent && t->whole.n_dims == 0)
                whole = &ranks[r].prog.tensors[id].shape;
        int64_t should = shape_elems(whole) * (is_sharded ? 1 : n_ranks);
        if (counts && (total != should || (is_sharded && !in_order)))
            fail_msg("%s: \"%s\": %lld elements on all ranks together, not %lld", what, t->name,
                     (long long)total, (long long)should);
    }
}

static void check_ranks(const char *model_name, const struct scheme *scheme, const char *line,
                        int n_ranks)
{
    struct compiled_step ranks[RANKS_MOST];
    struct snug_model model = {0};
    struct snug_error err = {0};
    char what[200];
    snug_recipe *recipe = make_recipe(scheme, line, n_ranks);
    snprintf(what, sizeof what, "%s, %s on %d ranks, %s", model_name, scheme->name, n_ranks, line);
    assert_int_equal(model_from_name(model_name, &model, &err), SNUG_OK);
    int64_t most = 0;
    for (int r = 0; r < n_ranks; r++) {
        struct compile_request q = {
            .model = &model, .recipe = recipe, .train = true, .rank = &r, .seq = 0};
        if (compile_step(&q, &ranks[r], &err) != SNUG_OK)
            fail_msg("%s: %s", what, err.message);
        check_plan(&ranks[r], what);
        check_order(&ranks[0].prog, &ranks[r].prog, what);
        most = ranks[r].plan.arena_bytes > most ? ranks[r].plan.arena_bytes : most;
    }
    check_shares(ranks, n_ranks, what);
    struct compiled_step fullest, beside;
    struct compile_request q = {.model = &model, .recipe = recipe, .train = true};
    assert_int_equal(compile_step(&q, &fullest, &err), SNUG_OK);
    if (fullest.plan.arena_bytes != most)
        fail_msg("%s: the fullest rank has %lld bytes, one of them %lld", what,
                 (long long)fullest.plan.arena_bytes, (long long)most);
    struct compile_request eval = {
        .model = &model, .recipe = recipe, .batch = 2, .over = &ranks[1]};
    if (compile_step(&eval, &beside, &err) != SNUG_OK ||
        plan_check_over(&beside.prog, beside.plan.offset, beside.plan.arena_bytes,
                        beside.backend->alignment, &ranks[1].prog, ranks[1].plan.offset,
                        &err) != SNUG_OK)
        fail_msg("%s, evaluated: %s", what, err.message);
    compiled_step_free(&beside);
    compiled_step_free(&fullest);
    for (int r = 0; r < n_ranks; r++)
        compiled_step_free(&ranks[r]);
    snug_recipe_free(recipe);
}

static void test_all_schemes(void **state)
{
    static const int counts[] = {2, 3, 5};
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        for (size_t s = 0; s < sizeof schemes / sizeof *schemes; s++)
            for (size_t r = 0; r < sizeof recipes / sizeof *recipes; r++)
                check_ranks(models[m], &schemes[s], recipes[r],
                            counts[(m + s + r) % (sizeof counts / sizeof *counts)]);
}

/* 16, 4 + 12 / N, 2 + 14 / N and 16 / N bytes a parameter: model states alone, the quotient rounded up. */
static void test_formulas(void **state)
{
    static const int counts[] = {1, 4, 16, 64, 256, 1024};
    const int64_t psi = INT64_C(7500000000);
    struct snug_model model = {0};
    struct snug_error err = {0};
    (void)state;
    assert_int_equal(model_from_name("psi:7.5e9", &model, &err), SNUG_OK);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int zero = 0; zero <= 3; zero++) {
            struct scheme scheme = {"", "ddp", (const char *[]){"0", "1", "2", "3"}[zero]};
            snug_recipe *recipe = make_recipe(&scheme, "precision=fp16 optimizer=adam", counts[i]);
            struct compile_request q = {.model = &model, .recipe = recipe, .train = true};
            struct compiled_step s;
            assert_int_equal(compile_step(&q, &s, &err), SNUG_OK);
            int64_t shard = (psi + counts[i] - 1) / counts[i];
            const int64_t *at = s.plan.at_peak;
            assert_int_equal(at[ROLE_parameter], 2 * (zero >= 3 ? shard : psi));
            assert_int_equal(at[ROLE_gradient], 2 * (zero >= 2 ? shard : psi));
            assert_int_equal(at[ROLE_optimizer], 12 * (zero >= 1 ? shard : psi));
            compiled_step_free(&s);
            snug_recipe_free(recipe);
        }
}

static void test_refusals(void **state)
{
    static const struct {
        const char *zero, *line, *words;
    } rows[] = {
        {"1", "batch=8 optimizer=schedule-free-adamw", "--zero 0"},
        {"3", "batch=8 lora=2", "--zero 2"},
        {"0", "batch=9", "not divisible by the"},
        {"0", "batch=8 micro-batch=3", "are not divisible"},
    };
    struct snug_model model = {0};
    struct snug_error err = {0};
    (void)state;
    assert_int_equal(model_from_name("gpt-nano", &model, &err), SNUG_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct scheme scheme = {"", "ddp", rows[i].zero};
        snug_recipe *recipe = make_recipe(&scheme, rows[i].line, 2);
        struct compile_request q = {.model = &model, .recipe = recipe, .train = true};
        struct compiled_step s;
        assert_int_not_equal(compile_step(&q, &s, &err), SNUG_OK);
        if (strstr(err.message, rows[i].words) == NULL)
            fail_msg("%s: %s", rows[i].line, err.message);
        snug_recipe_free(recipe);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formulas),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_all_schemes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
