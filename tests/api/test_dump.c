/*
 * test_dump.c -- a dump shows the program that the plan plans: the same ops, the same recomputation
 * and the same micro-batches, also where only plans decide these.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ir/program.h"
#include "support/training.h"

static const struct {
    const char *keys;
    bool recomputes, is_split; /* is_split: several micro-batches in a body */
} rows[] = {
    {"batch=4", false, false},
    {"batch=4 micro-batch=2 checkpoint=every:2", true, true},
    {"batch=8 checkpoint=auto memory=250M", true, false},
    {"batch=8 checkpoint=auto memory=200M", true, true}, /* --checkpoint auto splits the batch */
    {"batch=8 checkpoint=auto", false, false},           /* the default budget is enough */
    {"batch=4 ranks=2 zero=3", false, false},
    {"batch=4 ranks=2 pipeline=gpipe micro-batch=1", false, false}, /* stage 1 is the largest */
    {"batch=8 ranks=2 checkpoint=auto memory=220M", true, true},
};

static void parse_dump(const snug_model *model, const snug_recipe *recipe, const char *pass,
                       struct program *prog)
{
    struct snug_error err = {0};
    char *text = NULL;
    must(snug_dump(model, recipe, pass, &text, &err), &err);
    must(program_parse(text, prog, &err), &err);
    free(text);
}

static double recomputed_flops(const struct program *prog)
{
    double flops = 0;
    for (int i = 0; i < prog->n_ops; i++) {
        const struct op *op = &prog->ops[i];
        bool recomputed =
            op->n_out > 0 && op->out[0] != TENSOR_NONE && prog->tensors[op->out[0]].recomputed;
        flops += recomputed ? program_op_runs(prog, i) * op_flops(prog, op) : 0;
    }
    return flops;
}

static void test_dump_is_the_plan(void **state)
{
    (void)state;
    snug_model *model = model_of("gpt-nano");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char keys[200];
        struct snug_error err = {0};
        struct snug_ledger ledger;
        struct program prog;
        snug_plan *plan;
        snprintf(keys, sizeof keys, "threads=2 %s", rows[i].keys);
        snug_recipe *recipe = recipe_of(keys);
        must(snug_plan_make(model, recipe, &plan, &err), &err);
        snug_plan_ledger(plan, &ledger);
        parse_dump(model, recipe, "last", &prog);
        double flops = recomputed_flops(&prog);
        if (prog.n_ops != ledger.n_ops || (int64_t)flops != ledger.recompute_flops)
            fail_msg("%s: the dump has %d ops and recomputes %g flops, the plan %lld and %lld",
                     keys, prog.n_ops, flops, (long long)ledger.n_ops,
                     (long long)ledger.recompute_flops);
        assert_int_equal(flops > 0, rows[i].recomputes);
        assert_int_equal(prog.n_repeat > 1, rows[i].is_split);
        program_free(&prog);
        snug_plan_free(plan);
        snug_recipe_free(recipe);
    }
    snug_model_free(model);
}

/* Before the passes, too: the forward program of the micro-batch that --checkpoint auto chooses. */
static void test_first_pass_of_a_split_batch(void **state)
{
    (void)state;
    snug_model *model = model_of("gpt-nano");
    snug_recipe *recipe = recipe_of("threads=2 batch=8 checkpoint=auto memory=200M");
    struct program prog;
    parse_dump(model, recipe, "model", &prog);
    tensor_id tokens = program_find(&prog, "tokens");
    assert_int_equal(prog.tensors[tokens].shape.dim[0], 2);
    program_free(&prog);
    snug_recipe_free(recipe);
    snug_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dump_is_the_plan),
        cmocka_unit_test(test_first_pass_of_a_split_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
