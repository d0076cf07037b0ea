/*
 * test_report.c -- plans and rates as text and JSON: exact, within 80 columns, safe against odd
 * names.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/text.h"
#include "report/pieces.h"
#include "report/report.h"

static const struct report_alternative alternatives[] = {
    {"--micro-batch 4", "same up to rounding", 3350000000, 43.5},
    {"--precision bf16", "other rounding", 3300000000, 0},
    {"--optimizer sgd", "other learning", 9999999999, 20}, /* worse than the plan itself */
};

static struct report_plan example(void)
{
    struct report_plan plan = {
        .model = "gpt2",
        .recipe = "batch 32 x 1024, micro-batch 8, fp32, adamw",
        .ledger = {.parameters = 497759232,
                   .gradients = 497759232,
                   .optimizer = 995518464,
                   .activations = 5242880000,
                   .temporary = 206045184,
                   .fragmentation = 12,
                   .total = 7439962124,
                   .n_parameters = 124439808,
                   .n_trained = 124439808,
                   .lower_bound = 7439962112,
                   .forward_flops = 8937000000000,
                   .step_flops = 27000000000000,
                   .step_seconds = 21.75,
                   .peak_op = 312,
                   .n_ops = 1024},
        .peak_kind = "linear_grad_w",
        .peak_name = "h.11.mlp.c_fc.weight.grad",
        .n_ranks = 1,
        .alternatives = alternatives,
        .n_alternatives = 3,
    };
    return plan;
}

/* Characters, not bytes: the bars are three bytes each. */
static int widest_line(const char *text)
{
    int widest = 0, width = 0;
    for (; *text != '\0'; text++) {
        if (*text == '\n')
            width = 0;
        else if (((unsigned char)*text & 0xC0) != 0x80)
            width++;
        widest = width > widest ? width : widest;
    }
    return widest;
}

static void assert_text_has(const struct report_plan *plan, const char *words)
{
    char *text = report_plan_text(plan, 0);
    assert_non_null(text);
    if (strstr(text, words) == NULL)
        fail_msg("\"%s\" is not in:\n%s", words, text);
    assert_true(widest_line(text) <= 80);
    assert_null(strchr(text, '\033'));
    free(text);
}

static void text_is_exact(void **state)
{
    (void)state;
    struct report_plan plan = example();
    static const char *const expected[] = {
        "gpt2: batch 32 x 1024, micro-batch 8, fp32, adamw\n",
        "  activations    5,242,880,000  4.88 GiB   70.5%  █",
        "  fragmentation             12      12 B    0.0%  ▏\n",
        "  total          7,439,962,124  6.93 GiB\n",
        "op 312 of 1,024, linear_grad_w h.11.mlp.c_fc.weight.grad\n",
        "27.0 TFLOP a step, of which 8.94 TFLOP forward\n",
        "\nActivations are 70% of the total. To reduce the total:\n"
        "  --micro-batch 4                 3.12 GiB  same up to rounding, +100% time\n"
        "  --precision bf16                3.07 GiB  other rounding\n",
    };
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
        assert_text_has(&plan, expected[i]);
    char *colored = report_plan_text(&plan, 1);
    assert_non_null(strstr(colored, "\033[1m"));
    free(colored);
}

static void text_keeps_to_the_page(void **state)
{
    (void)state;
    struct report_plan plan = example();
    plan.peak_name = "transformer.h.95.a.name.so.long.that.it.cannot.be.shown.whole.weight.grad";
    assert_text_has(&plan, "weight.grad\n");
    plan.updates = "backward twice, to clip (--clip 0: once)";
    plan.updates_flops = 18100000000000;
    assert_text_has(&plan, "  updates        backward twice, to clip (--clip 0: once), "
                           "+18.1 TFLOP a step\n");
    plan.n_alternatives = 0;
    assert_text_has(&plan, "\nActivations are 70% of the total.\n");
    plan.ledger.optimizer = 2100000000000000;
    plan.ledger.total += 2100000000000000 - 995518464;
    assert_text_has(&plan, "\nOptimizer states are 100% of the total.\n");
    plan.ledger = (struct snug_ledger){0}; /* nothing at all: no division by it */
    plan.peak_kind = NULL;
    assert_text_has(&plan, "total");
}

/* Percent say little beyond a factor of two, and nothing near -100. */
static void large_changes_of_time_are_factors(void **state)
{
    static const struct {
        double seconds;
        const char *words;
    } rows[] = {
        {21.75 * 1.16, "same up to rounding, +16% time\n"},
        {21.75 * 3.14, "same up to rounding, 3.1x the time\n"},
        {21.75 * 120, "same up to rounding, 120x the time\n"},
        {21.75 * 1e9, "same up to rounding, >999x the time\n"},
        {21.75 / 1.6, "same up to rounding, -38% time\n"},
        {21.75 / 2.5, "same up to rounding, 2.5x as fast\n"},
        {21.75 / 400, "same up to rounding, 400x as fast\n"},
        {21.75 / 1e9, "same up to rounding, >999x as fast\n"},
        {21.75, "same up to rounding\n"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct report_plan plan = example();
        struct report_alternative other = alternatives[0];
        other.step_seconds = rows[i].seconds;
        plan.alternatives = &other;
        plan.n_alternatives = 1;
        assert_text_has(&plan, rows[i].words);
    }
}

static void budget_counts_the_runtime(void **state)
{
    (void)state;
    struct report_plan plan = example();
    plan.ledger.budget = plan.ledger.total + 100;
    assert_text_has(&plan, "the plan leaves 100 B free\n");
    plan.runtime_bytes = 150;
    assert_text_has(&plan, "the plan and 150 B of runtime are 50 B over\n");
}

static void json_says_the_same(void **state)
{
    (void)state;
    static const char *const kinds[] = {"parameters",  "gradients", "optimizer",
                                        "activations", "temporary", "fragmentation"};
    struct report_plan plan = example();
    char *text = report_plan_json(&plan);
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    json_t *bytes = json_object_get(json, "bytes");
    json_int_t sum = 0;
    assert_non_null(json);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        assert_true(json_is_integer(json_object_get(bytes, kinds[i])));
        sum += json_integer_value(json_object_get(bytes, kinds[i]));
    }
    assert_int_equal(sum, plan.ledger.total);
    assert_int_equal(json_integer_value(json_object_get(bytes, "total")), plan.ledger.total);
    assert_int_equal(json_integer_value(json_object_get(json, "parameters")), 124439808);
    assert_int_equal(json_integer_value(json_object_get(json, "trainable")), 124439808);
    assert_int_equal(json_integer_value(json_object_get(json, "ranks")), 1);
    assert_true(json_real_value(json_object_get(json, "step_seconds")) == 21.75);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(json, "peak"), "op")), 312);
    assert_string_equal(json_string_value(json_object_get(json_object_get(json, "peak"), "name")),
                        "linear_grad_w h.11.mlp.c_fc.weight.grad");
    json_decref(json);
    free(text);
}

static void strings_are_escaped(void **state)
{
    (void)state;
    static const struct {
        const char *value, *expected;
    } rows[] = {
        {"", "\"\""},
        {"a\"b\\c", "\"a\\\"b\\\\c\""},
        {"line\nend\t\001", "\"line\\u000aend\\u0009\\u0001\""},
        {"caf\303\251 \342\226\210", "\"caf\303\251 \342\226\210\""},
        {"\177 \302\233 \342\200\256", "\"\\u007f \\u009b \\u202e\""},
        {"cut \303", "\"cut \\ufffd\""},
        {"overlong \300\257", "\"overlong \\ufffd\\ufffd\""},
        {"surrogate \355\240\200", "\"surrogate \\ufffd\\ufffd\\ufffd\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct text out = {0};
        report_json_string(&out, rows[i].value);
        assert_string_equal(out.data, rows[i].expected);
        text_free(&out);
    }
}

static void ops_that_are_missing_show(void **state)
{
    (void)state;
    static const struct report_op rows[] = {
        {"linear", "yes", "oneDNN", NULL, "yes"},
        {"adamw", "yes", "v4", "", NULL},
    };
    char *table = report_ops_table(rows, 2);
    assert_string_equal(table, "op      reference  cpu     cuda  gradient\n"
                               "linear  yes        oneDNN  -     yes\n"
                               "adamw   yes        v4      -     -\n");
    free(table);
}

/* A machine with tiles: what most machines that run this test cannot show. */
static struct report_bench bench_example(void)
{
    return (struct report_bench){
        .model = "gpt2",
        .recipe = "batch 4 x 1024, bf16, adamw",
        .threads = 2,
        .n_steps = 5,
        .fma_flops = 0.345e12,
        .amx_flops = 5.65e12,
        .read_bytes = 28e9,
        .copy_bytes = 24e9,
        .update_bytes = 38e9,
        .kernels = {{.op = "linear_grad_w",
                     .type = "bf16",
                     .shape = "4096 x 3072 to 768",
                     .seconds = 0.010,
                     .flops = 20e9,
                     .bytes = 36e6,
                     .floor_seconds = 0.0035,
                     .limit = "AMX"}},
        .n_kernels = 1,
        .ops = {{.op = "linear_cross_entropy_train",
                 .n_calls = 1,
                 .seconds = 1.5,
                 .flops = 0.95e12,
                 .bytes = 3e8,
                 .floor_seconds = 0.168,
                 .limit = "AMX"},
                {.op = "adamw",
                 .n_calls = 148,
                 .seconds = 0.5,
                 .flops = 3e8,
                 .bytes = 4e9,
                 .floor_seconds = 0.1,
                 .limit = "memory"}},
        .n_ops = 2,
        .step_seconds = 2,
        .floor_seconds = 0.268,
        .step_tokens = 4096,
        .unit = "tokens",
        .gemm_flops = 3e12,
        .best_gemm_flops = 2e12,
    };
}

static void bench_is_exact(void **state)
{
    (void)state;
    static const char *const expected[] = {
        "peak rates of this machine, 2 threads\n",
        "  bf16 matmul in tile registers     5.650 TFLOP/s  AMX\n",
        "  linear_grad_w  bf16 4096 x 3072 to 768     10.000  2.000 TFLOP/s   35% AMX\n",
        "a step of gpt2: batch 4 x 1024, bf16, adamw; median of 5\n",
        "  linear_cross_entropy_train     1  1500.000  75.0%  0.633 TFLOP/s   11% AMX\n",
        "  adamw                        148   500.000  25.0%    8.0 GB/s      20% memory\n",
        "  all                               2000.000 100.0%                  13%\n",
        "2048.0 tokens/s\n",
        "they would take\n1.5 s: the step runs at 75% of that speed.\n",
    };
    struct report_bench bench = bench_example();
    char *text = report_bench_text(&bench);
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
        if (strstr(text, expected[i]) == NULL)
            fail_msg("\"%s\" is not in:\n%s", expected[i], text);
    assert_true(widest_line(text) <= 80);
    assert_null(strstr(text, "100%:"));
    assert_null(strstr(text, "busy"));
    free(text);
    bench.ops[1].floor_seconds = 2.565; /* a share that needs a reason */
    bench.is_busy = true;
    bench.limit_spread = 4.13;
    text = report_bench_text(&bench);
    assert_non_null(strstr(text, " 513% memory*\n"));
    assert_non_null(strstr(text, "* More than 100%: operands in a cache are read faster"));
    assert_non_null(strstr(text, "differ by up to\n413%. No rates were saved."));
    assert_true(widest_line(text) <= 80);
    free(text);
    bench.ops[1].floor_seconds = 0.1;
    bench.is_busy = false;
    bench.conv_flops = 4e12;
    text = report_bench_text(&bench);
    assert_null(strstr(text, "they would take"));
    free(text);
    bench.kernels[0].flops = 2.215584e12; /* of a GPU: no column runs into the next */
    bench.amx_flops = 989.5e12;
    text = report_bench_text(&bench);
    assert_non_null(strstr(text, " 221.56 TFLOP/s"));
    assert_non_null(strstr(text, " 989.50 TFLOP/s"));
    assert_true(widest_line(text) <= 80);
    free(text);
    bench.amx_flops = 0;
    text = report_bench_text(&bench);
    assert_null(strstr(text, "tile"));
    free(text);
}

static void bench_json_has_all(void **state)
{
    (void)state;
    struct report_bench bench = bench_example();
    char *text = report_bench_json(&bench);
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(json);
    json_t *kernel = json_array_get(json_object_get(json, "kernels"), 0);
    json_t *op = json_array_get(json_object_get(json, "ops"), 1);
    json_t *limits = json_object_get(json, "limits"), *step = json_object_get(json, "step");
    assert_true(json_number_value(json_object_get(limits, "amx_flops_per_s")) == 5.65e12);
    assert_string_equal(json_string_value(json_object_get(kernel, "shape")), "4096 x 3072 to 768");
    assert_string_equal(json_string_value(json_object_get(kernel, "limit")), "AMX");
    assert_int_equal(json_integer_value(json_object_get(op, "calls")), 148);
    assert_true(json_number_value(json_object_get(op, "limit_seconds")) == 0.1);
    assert_int_equal(json_integer_value(json_object_get(step, "tokens")), 4096);
    assert_true(json_number_value(json_object_get(step, "matmul_flops")) == 3e12);
    json_decref(json);
    free(text);
}

/* Adapters are told from the model that they stand beside. */
static void adapters_are_told_apart(void **state)
{
    (void)state;
    struct report_plan plan = example();
    char *whole = report_plan_text(&plan, 0);
    assert_non_null(strstr(whole, "124,439,808 parameters\n"));
    plan.ledger.n_trained = 294912;
    char *text = report_plan_text(&plan, 0), *json = report_plan_json(&plan);
    assert_non_null(strstr(text, "294,912 parameters in adapters; 124,439,808 are frozen"));
    assert_non_null(strstr(json, "\"parameters\": 124439808, \"trainable\": 294912, "));
    free(whole);
    free(text);
    free(json);
}

static void test_times(void **state)
{
    static const struct {
        double seconds;
        const char *words;
    } times[] = {
        {2e-6, "2 us"},
        {0.0401, "40.1 ms"},
        {12.34, "12.3 s"},
        {99.96, "100 s"},
        {119.4, "119 s"},
        {120, "2.00 min"},
        {545, "9.08 min"},
        {599.6, "9.99 min"},
        {599.8, "10.0 min"},
        {3596, "59.9 min"},
        {3598, "1 h 0 min"},
        {5047, "1 h 24 min"},
        {9.99 * 3600, "9 h 59 min"},
        {35999, "10.0 h"},
        {1.9 * 86400, "45.6 h"},
        {2 * 86400, "2 d 0 h"},
        {76 * 3600, "3 d 4 h"},
        {1e7, "116 d"},
        {1e9, "11,574 d"},
        {1e30, "1.16e+25 d"},
    };
    char out[PIECE_TIME_MAX];
    (void)state;
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        assert_string_equal(piece_seconds(times[i].seconds, out), times[i].words);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_times),
        cmocka_unit_test(text_is_exact),
        cmocka_unit_test(text_keeps_to_the_page),
        cmocka_unit_test(large_changes_of_time_are_factors),
        cmocka_unit_test(budget_counts_the_runtime),
        cmocka_unit_test(json_says_the_same),
        cmocka_unit_test(strings_are_escaped),
        cmocka_unit_test(ops_that_are_missing_show),
        cmocka_unit_test(bench_is_exact),
        cmocka_unit_test(adapters_are_told_apart),
        cmocka_unit_test(bench_json_has_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
