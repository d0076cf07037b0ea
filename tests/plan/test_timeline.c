/*
 * test_timeline.c -- the bytes of a step op by op, against a count that looks at every block at
 * every op and against the ledger at the peak.  Also the seconds of an op, at rates that are easy
 * to divide.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "plan/timeline.h"
#include "support/training.h"
#include "compile/compile_target.h"

static const struct {
    const char *model, *keys;
} cases[] = {
    {"mlp", "batch=8"},
    {"gpt-nano", "batch=4 micro-batch=2 precision=bf16"},
    {"gpt2", "batch=2 optimizer=sgd clip=0"},
    {"resnet18:3x32x32,classes=10", "batch=8 micro-batch=4 precision=fp16"},
    {"vit-tiny:1x28x28,classes=10", "batch=4 optimizer=adafactor"},
    {"psi:1e6", ""},
    {"gpt-nano", "batch=4 optimizer=lawa-queue"}, /* whose averages need room between steps */
};
enum { N_CASES = sizeof cases / sizeof *cases };

/* The total of each timeline point is the sum of the blocks alive there. */
static void totals_are_those_of_blocks(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        struct snug_error err = {0};
        struct compiled_step s;
        snug_model *model = model_of(cases[i].model);
        snug_recipe *recipe = recipe_of(cases[i].keys);
        struct compile_request q = {.model = model, .recipe = recipe, .train = true};
        must(compile_step(&q, &s, &err), &err);
        int n = s.prog.n_ops > 0 ? s.prog.n_ops : 1;
        struct timeline_point *points = calloc((size_t)n, sizeof *points);
        must(plan_timeline(&s.prog, &s.plan, points, &err), &err);
        for (int op = 0; op < n; op++) {
            int64_t alive = 0;
            for (int b = 0; b < s.plan.n_blocks; b++)
                if (s.plan.blocks[b].first <= op && s.plan.blocks[b].last >= op)
                    alive += s.plan.blocks[b].bytes;
            assert_int_equal(points[op].total, alive);
        }
        free(points);
        compiled_step_free(&s);
        snug_recipe_free(recipe);
        snug_model_free(model);
    }
}

static void the_largest_is_the_peak(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        struct snug_error err = {0};
        struct snug_timeline_point *points;
        struct snug_ledger l;
        int64_t n, most = 0;
        snug_plan *plan;
        snug_model *model = model_of(cases[i].model);
        snug_recipe *recipe = recipe_of(cases[i].keys);
        must(snug_plan_make(model, recipe, &plan, &err), &err);
        must(snug_plan_timeline(plan, &points, &n, &err), &err);
        snug_plan_ledger(plan, &l);
        for (int64_t k = 0; k < n; k++) {
            const struct snug_timeline_point *m = &points[k];
            most = m->total > most ? m->total : most;
            assert_int_equal(m->total, m->parameters + m->gradients + m->optimizer +
                                           m->activations + m->temporary);
        }
        const struct snug_timeline_point *peak = &points[l.peak_op];
        assert_int_equal(most, l.lower_bound);
        assert_int_equal(peak->total, l.lower_bound);
        assert_int_equal(peak->total + l.fragmentation, l.total);
        assert_int_equal(peak->parameters, l.parameters);
        assert_int_equal(peak->gradients, l.gradients);
        assert_int_equal(peak->optimizer, l.optimizer);
        assert_int_equal(peak->activations, l.activations);
        assert_int_equal(peak->temporary, l.temporary);
        char *text = snug_plan_timeline_text(plan, 0);
        assert_non_null(text);
        snug_free(text);
        snug_free(points);
        snug_plan_free(plan);
        snug_recipe_free(recipe);
        snug_model_free(model);
    }
}

static void an_estimate_is_the_plan_without_places(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES - 1; i++) { /* the room for averages is not in it */
        struct snug_error err = {0};
        struct compiled_step whole, quick;
        snug_model *model = model_of(cases[i].model);
        snug_recipe *recipe = recipe_of(cases[i].keys);
        struct compile_request q = {.model = model, .recipe = recipe, .train = true};
        must(compile_step(&q, &whole, &err), &err);
        q.estimate = true;
        must(compile_step(&q, &quick, &err), &err);
        assert_int_equal(quick.plan.arena_bytes, whole.plan.lower_bound);
        assert_true(quick.plan.step_seconds == whole.plan.step_seconds);
        assert_memory_equal(quick.plan.at_peak, whole.plan.at_peak, sizeof whole.plan.at_peak);
        compiled_step_free(&whole);
        compiled_step_free(&quick);
        snug_recipe_free(recipe);
        snug_model_free(model);
    }
}

static void assert_near(double found, double truth)
{
    assert_true(found > truth * (1 - 1e-12) && found < truth * (1 + 1e-12));
}

static void seconds_are_work_over_rate(void **state)
{
    (void)state;
    struct snug_error err = {0};
    struct compiled_step s;
    snug_model *model = model_of("mlp:64-32-16");
    snug_recipe *recipe = recipe_of("batch=128");
    struct compile_request q = {.model = model, .recipe = recipe, .train = true};
    must(compile_step(&q, &s, &err), &err);
    const struct op *op = &s.prog.ops[0];
    while (op->kind != OP_linear)
        op++;
    double flops = 2.0 * 128 * 64 * 32, bytes = op_moved_bytes(&s.prog, op);
    assert_true(op_size(&s.prog, op) == 32);

    struct device_rates fast_memory = {.flops = 1e6, .bytes = 1e18, .launch_seconds = 0.5};
    assert_near(op_seconds(&s.prog, op, &fast_memory), flops / 1e6 + 0.5);
    struct device_rates slow_memory = {.flops = 1e18, .bytes = 1e3};
    assert_near(op_seconds(&s.prog, op, &slow_memory), bytes / 1e3);

    /* of a declared device, a share of its rate and more than one kernel */
    struct op_share half = {OP_linear, 0, 0.5, 3};
    struct device_rates declared = {
        .flops = 1e6, .bytes = 1e18, .launch_seconds = 0.5, .shares = &half, .n_shares = 1};
    assert_near(op_seconds(&s.prog, op, &declared), flops / 0.5e6 + 1.5);

    /* 32 is half way from 16 to 64 on logarithms: the geometric mean of the rates */
    struct rate_curve curve = {OP_linear, DTYPE_f32, 0, 2, {{16, 1e6}, {64, 4e6}}};
    struct device_rates measured = {.flops = 1, .bytes = 1e18, .curves = &curve, .n_curves = 1};
    assert_near(op_seconds(&s.prog, op, &measured), flops / 2e6);
    curve.points[1].size = 32;
    assert_near(op_seconds(&s.prog, op, &measured), flops / 4e6);
    curve = (struct rate_curve){OP_linear, DTYPE_f32, 0, 1, {{64, 4e6}}}; /* thinner is slower */
    assert_near(op_seconds(&s.prog, op, &measured), flops / 2e6);
    compiled_step_free(&s);
    snug_recipe_free(recipe);
    snug_model_free(model);
}

/* Offloaded states are prefetched and evicted: at once where the way to them is duplex. */
static void both_ways_at_once(void **state)
{
    (void)state;
    struct snug_error err = {0};
    snug_model *model = model_of("mlp:64-32-16");
    snug_recipe *recipe = recipe_of("batch=128 offload=states");
    double seconds[2], fetched = 0, evicted = 0;
    for (int duplex = 0; duplex < 2; duplex++) {
        struct compiled_step s;
        struct compile_target target = {.threads = 1, .isa = backend_cpu_isa()};
        target.rates.rates = (struct device_rates){
            .flops = 1e30, .bytes = 1e30, .pool_bytes_per_s = 1e6, .pool_is_duplex = duplex != 0};
        struct compile_request q = {
            .model = model, .recipe = recipe, .train = true, .target = &target};
        must(compile_step(&q, &s, &err), &err);
        seconds[duplex] = s.plan.step_seconds;
        for (int i = 0; i < s.prog.n_ops && duplex == 0; i++) {
            double bytes = op_read_bytes(&s.prog, &s.prog.ops[i]);
            fetched += s.prog.ops[i].kind == OP_prefetch ? bytes : 0;
            evicted += s.prog.ops[i].kind == OP_evict ? bytes : 0;
        }
        compiled_step_free(&s);
    }
    assert_true(fetched > 0 && evicted == fetched);
    assert_near(seconds[0], (fetched + evicted) / 1e6);
    assert_near(seconds[1], fetched / 1e6);
    snug_recipe_free(recipe);
    snug_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(totals_are_those_of_blocks),
        cmocka_unit_test(the_largest_is_the_peak),
        cmocka_unit_test(an_estimate_is_the_plan_without_places),
        cmocka_unit_test(seconds_are_work_over_rate),
        cmocka_unit_test(both_ways_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
