/*
 * test_bench.c -- the bench reports every op of a step once, and the kernels that it measures alone
 * run.
 *
 * Times are not checked.  Everything that is counted must be right: calls, flops, shapes, limits.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/training.h"
#include "bench/bench.h"

enum { TIME = 8, WIDTH = 24, HEADS = 2, VOCABULARY = 50 };

static snug_model *small_gpt(void)
{
    struct snug_error err = {0};
    snug_model *m = snug_model_new("small");
    snug_tensor ids = snug_input(m, "ids", SNUG_TYPE_I32, 1, (int64_t[]){TIME});
    snug_tensor x = snug_embedding_with_positions(m, ids, "wte", VOCABULARY, "wpe", TIME, WIDTH);
    snug_tensor y = snug_linear(m, snug_layernorm(m, x, "ln"), "qkv", 3 * WIDTH);
    x = snug_add(m, x, snug_linear(m, snug_attention(m, y, HEADS), "proj", WIDTH));
    snug_cross_entropy(m, snug_linear(m, x, "head", VOCABULARY));
    must(snug_model_finish(m, &err), &err);
    return m;
}

static const struct report_rate *find(const struct report_rate *rows, int n_rows, const char *op,
                                      const char *type)
{
    for (int i = 0; i < n_rows; i++)
        if (strcmp(rows[i].op, op) == 0 && (type == NULL || strcmp(rows[i].type, type) == 0))
            return &rows[i];
    fail_msg("there is no row %s %s", op, type == NULL ? "" : type);
    return NULL;
}

static void run(const char *keys, const char *type, struct report_bench *bench)
{
    struct snug_error err = {0};
    struct compiled_step compiled;
    snug_model *model = small_gpt();
    snug_recipe *recipe = recipe_of(keys);
    struct compile_request q = {.model = model, .recipe = recipe, .train = true};
    must(compile_step(&q, &compiled, &err), &err);
    *bench = (struct report_bench){0};
    must(bench_run(&compiled, 2, type, bench, &err), &err);
    double flops = 0;
    int n_calls = 0, n_ops = 0;
    for (int i = 0; i < compiled.prog.n_ops; i++) {
        bool once = i >= compiled.prog.body_end || compiled.prog.ops[i].in_last;
        int times = once ? 1 : compiled.prog.n_repeat;
        n_ops += times;
        if (op_has(&compiled.prog.ops[i], TRAIT_gemm))
            flops += times * op_flops(&compiled.prog, &compiled.prog.ops[i]);
    }
    for (int i = 0; i < bench->n_ops; i++)
        n_calls += bench->ops[i].n_calls;
    assert_int_equal(n_calls, n_ops);
    assert_true(bench->gemm_flops == flops);
    compiled_step_free(&compiled);
    snug_recipe_free(recipe);
    snug_model_free(model);
}

static void every_op_is_counted(void **state)
{
    (void)state;
    struct report_bench bench;
    run("batch=4 micro-batch=2 threads=1", "fp32", &bench);
    assert_int_equal(find(bench.ops, bench.n_ops, "linear", NULL)->n_calls, 2 * 3);
    assert_int_equal(find(bench.ops, bench.n_ops, "grad_norm", NULL)->n_calls, 1);
    assert_int_equal(bench.step_tokens, 4); /* a model by hand has samples, not sequences */
    assert_true(bench.fma_flops > 0 && bench.read_bytes > 0 && bench.update_bytes > 0);
    double sum = 0;
    for (int i = 0; i < bench.n_ops; i++) {
        assert_true(bench.ops[i].floor_seconds > 0);
        sum += bench.ops[i].seconds;
    }
    assert_true(sum > 0.999 * bench.step_seconds && sum < 1.001 * bench.step_seconds);
}

static void kernels_are_lifted(void **state)
{
    (void)state;
    static const char *const kinds[] = {"linear",         "linear_grad_x",  "linear_grad_w",
                                        "attention",      "attention_grad", "layernorm",
                                        "layernorm_grad", "update"};
    struct report_bench bench;
    run("batch=2 threads=1 precision=bf16", "bf16", &bench);
    assert_int_equal(bench.n_kernels, 3 + 8); /* the matmuls in fp32 too */
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        assert_true(find(bench.kernels, bench.n_kernels, kinds[i], "bf16")->seconds > 0);
    const struct report_rate *wide = find(bench.kernels, bench.n_kernels, "linear", "fp32");
    const struct report_rate *narrow = find(bench.kernels, bench.n_kernels, "linear", "bf16");
    assert_string_equal(wide->shape, "16 x 24 to 72");
    assert_string_equal(narrow->shape, wide->shape);
    assert_true(wide->bytes == 2 * narrow->bytes);
    assert_string_equal(find(bench.kernels, bench.n_kernels, "linear_grad_x", "bf16")->shape,
                        "16 x 72 to 24");
    assert_string_equal(find(bench.kernels, bench.n_kernels, "linear_grad_w", "bf16")->shape,
                        "16 x 24 to 72");
    assert_string_equal(find(bench.kernels, bench.n_kernels, "update", "bf16")->shape, "8388608");
    assert_true(bench.best_gemm_flops > 0);
}

/* Which limit: matmuls of bf16 are held against tiles if there are any, all else is not. */
static void limits_are_chosen(void **state)
{
    (void)state;
    static const struct device_limits with_tiles = {
        .f32_flops = 1e9, .bf16_flops = 4e9, .read_bytes = 1e12, .update_bytes = 1e12};
    static const struct {
        const char *dtype;
        bool tiles, reference;
        const char *limit;
        double floor_seconds;
    } rows[] = {
        {"bf16", true, false, "AMX", 1.0 / 4},
        {"bf16", false, false, "FMA", 1},
        {"bf16", true, true, "FMA", 1},
        {"f32", true, false, "FMA", 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct compiled_step s = {.facts = {.reference_only = rows[i].reference}};
        struct device_limits limits = with_tiles;
        struct report_rate row = {0};
        struct snug_error err = {0};
        char text[256];
        snprintf(text, sizeof text,
                 "tensor x input %s [500 1000]; tensor w input %s [1000 1000]; "
                 "tensor y activation %s [500 1000] output; y = linear x, w",
                 rows[i].dtype, rows[i].dtype, rows[i].dtype);
        must(program_parse(text, &s.prog, &err), &err);
        if (!rows[i].tiles)
            limits.bf16_flops = 0;
        bench_add_op(&row, &s, &s.prog.ops[0], 1, 2, &limits);
        assert_string_equal(row.limit, rows[i].limit);
        assert_true(row.floor_seconds == rows[i].floor_seconds);
        limits.read_bytes = 1e3; /* a slow memory wins */
        row = (struct report_rate){0};
        bench_add_op(&row, &s, &s.prog.ops[0], 1, 2, &limits);
        assert_string_equal(row.limit, "memory");
        program_free(&s.prog);
    }
}

/* ---- a machine that others use ------------------------------------------------------------------- */

static const struct report_rate sound = {
    .op = "linear", .limit = "FMA", .seconds = 1, .floor_seconds = 0.9};

static void test_a_busy_machine(void **state)
{
    (void)state;
    struct report_bench bench = {
        .fma_flops = 10, .read_bytes = 4, .copy_bytes = 4, .update_bytes = 4, .n_ops = 1};
    bench.ops[0] = sound;
    bench_note_limits(&bench, &(struct device_limits){11, 0, 4, 4, 5}); /* a quarter apart */
    assert_false(bench_is_busy(&bench));
    assert_true(bench.limit_spread == 0.25);
    assert_true(bench.fma_flops == 11 && bench.update_bytes == 5 && bench.amx_flops == 0);
    bench_note_limits(&bench, &(struct device_limits){2, 0, 4, 4, 5});
    assert_true(bench_is_busy(&bench));
    assert_true(bench.limit_spread == 4.5 && bench.fma_flops == 11);
}

static void test_rates_that_cannot_be(void **state)
{
    (void)state;
    static const struct {
        const char *op, *limit;
        double floor_seconds;
        bool is_busy;
    } rows[] = {
        {"linear", "FMA", 1.05, false}, {"linear", "FMA", 1.5, true},
        {"linear", "AMX", 1.5, true},   {"layernorm", "memory", 5.13, false}, /* in a cache */
        {"conv2d", "FMA", 2, false}, /* by fewer multiplications */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct report_bench bench = {.n_kernels = 1};
        bench.kernels[0] = sound;
        bench.kernels[0].op = rows[i].op;
        bench.kernels[0].limit = rows[i].limit;
        bench.kernels[0].floor_seconds = rows[i].floor_seconds;
        assert_int_equal(bench_is_busy(&bench), rows[i].is_busy);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_is_counted),       cmocka_unit_test(kernels_are_lifted),
        cmocka_unit_test(limits_are_chosen),         cmocka_unit_test(test_a_busy_machine),
        cmocka_unit_test(test_rates_that_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
