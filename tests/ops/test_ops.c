/*
 * test_ops.c -- every op case, three ways: fast kernels against the reference, gradients against
 * finite differences, and (with -t) time.
 *
 *   test_ops              compare and check; -v adds a line for each op, dtype and kernel
 *   test_ops -t           time the kernels at the `time` sizes instead
 *   test_ops -c NAME      only cases whose name contains NAME (coverage is not checked then)
 *
 * Cases are read from tests/ops, or from the folder in SNUG_CASES.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cpu/ref/ref.h"
#include "support/opcompare.h"

static void test_kernels_agree_with_the_reference(void **state)
{
    struct opcompare *ctx = *state;
    opcompare_cases(ctx);
    assert_int_equal(ctx->n_failures, 0);
}

/* ---- ids out of range ----------------------------------------------------------------------- */

static void refuse_id(struct opcompare *ctx, struct opcase *c, int op_index, int input, int32_t bad,
                      const char *level)
{
    const struct op *op = &c->prog.ops[op_index];
    const struct tensor *ids = program_tensor(&c->prog, op->in[input]);
    struct row_run run = {.facts = {.threads = 1, .isa = backend_cpu_isa()}, .inplace = -1};
    struct row_result result;
    struct snug_error err = {0};
    int64_t place = shape_elems(&ids->shape) - 1;
    int32_t *id = (int32_t *)c->data[op->in[input]] + place, good = *id;
    char number[16], position[16];
    snprintf(number, sizeof number, "%d", (int)bad);
    snprintf(position, sizeof position, "%d", (int)place);

    run.row = level == NULL ? ref_kernel(op->kind)
                            : backend_choose(backend_cpu(), &c->prog, op, &run.facts);
    *id = bad;
    enum snug_status status = oprun(c, op_index, &run, &result, &err);
    *id = good;
    row_result_free(&result);
    if (status != SNUG_BAD_ARGUMENT)
        opcompare_problem(ctx, c, op, run.row->name, level == NULL ? "" : level,
                          "took an id out of range");
    else if (strstr(err.message, ids->name) == NULL || strstr(err.message, number) == NULL ||
             strstr(err.message, position) == NULL)
        opcompare_problem(ctx, c, op, run.row->name, level == NULL ? "" : level, err.message);
    ctx->n_runs++;
}

static void refuse_ids_of_case(struct opcompare *ctx, const struct case_text *text)
{
    struct opcase c;
    struct snug_error err = {0};
    assert_int_equal(opcase_build(text, CASE_small, 0, DTYPE_f32, OPCOMPARE_SEED, &c, &err),
                     SNUG_OK);
    for (int i = 0; i < c.prog.n_ops; i++) {
        const struct op *op = &c.prog.ops[i];
        for (int k = 0; k < op->n_in; k++) {
            if (op_infos[op->kind].ids.dimension == IDS_none || k != op_infos[op->kind].ids.in ||
                op->in[k] == TENSOR_NONE) /* no ids: positions and lengths of documents */
                continue;
            int32_t above = (int32_t)c.fills[op->in[k]].below;
            refuse_id(ctx, &c, i, k, -1, NULL);
            refuse_id(ctx, &c, i, k, above, NULL);
            for (int l = 0; l < N_OPRUN_LEVELS; l++) {
                if (!oprun_set_level(oprun_levels[l]))
                    continue;
                refuse_id(ctx, &c, i, k, -1, oprun_levels[l]);
                refuse_id(ctx, &c, i, k, above, oprun_levels[l]);
            }
            oprun_set_level(NULL);
        }
        assert_int_equal(oprun_step(&c, i, ref_kernel(op->kind), &err), SNUG_OK);
    }
    opcase_free(&c);
}

static void test_ids_out_of_range_are_refused(void **state)
{
    struct opcompare *ctx = *state;
    ctx->n_failures = ctx->n_runs = 0;
    for (int i = 0; i < ctx->cases.n_cases; i++)
        if (opcompare_wants(ctx, &ctx->cases.cases[i]) &&
            ctx->cases.cases[i].n_uses[CASE_small] > 0)
            refuse_ids_of_case(ctx, &ctx->cases.cases[i]);
    assert_int_equal(ctx->n_failures, 0);
    assert_true(ctx->only != NULL || ctx->n_runs > 0);
}

/* ---- against finite differences ------------------------------------------------------------- */

static double functional(struct opcase *c)
{
    struct snug_error err = {0};
    double total = 0.0;
    for (int i = 0; i < c->prog.n_ops; i++)
        if (oprun_step(c, i, ref_kernel(c->prog.ops[i].kind), &err) != SNUG_OK)
            fail_msg("%s: %s", c->label, err.message);
    for (int i = 0; i < c->n_functional; i++) {
        struct pair pair = c->functional[i];
        int64_t n = tensor_elems(&c->prog, pair.of);
        const double *of = c->data[pair.of], *by = c->data[pair.by];
        if (pair.by == c->prog.scalars)
            total += of[0] * by[SCALAR_loss_scale];
        else
            for (int64_t k = 0; k < n; k++)
                total += of[k] * by[k];
    }
    return total;
}

/* max |difference quotient - gradient| / max |gradient|, over every element of one input */
static double gradient_error(struct opcase *c, struct pair pair)
{
    const double step = 1e-5;
    int64_t n = tensor_elems(&c->prog, pair.of);
    double *x = c->data[pair.of], worst = 0.0, largest = 0.0;
    double *gradient = malloc((size_t)n * sizeof *gradient);
    assert_non_null(gradient);
    functional(c);
    memcpy(gradient, c->data[pair.by], (size_t)n * sizeof *gradient);
    for (int64_t i = 0; i < n; i++) {
        double middle = x[i];
        x[i] = middle + step;
        double above = functional(c);
        x[i] = middle - step;
        double quotient = (above - functional(c)) / (2.0 * step);
        x[i] = middle;
        worst = fmax(worst, isnan(gradient[i]) ? INFINITY : fabs(quotient - gradient[i]));
        largest = fmax(largest, fabs(gradient[i]));
    }
    free(gradient);
    return worst / (largest + 1e-12);
}

static void check_gradients(struct opcompare *ctx, const struct case_text *text, int index)
{
    struct opcase c;
    struct snug_error err = {0};
    if (opcase_build(text, CASE_small, index, DTYPE_f64, OPCOMPARE_SEED, &c, &err) != SNUG_OK)
        fail_msg("%s: %s", c.label, err.message);
    for (int i = 0; i < c.n_gradient; i++) {
        double error = gradient_error(&c, c.gradient[i]);
        if (!(error < 1e-6)) {
            print_error("%s: gradient %s of %s is off by %.3g\n", c.label,
                        c.prog.tensors[c.gradient[i].by].name,
                        c.prog.tensors[c.gradient[i].of].name, error);
            ctx->n_failures++;
        }
        ctx->n_runs++;
    }
    for (int i = 0; i < c.prog.n_ops; i++)
        for (int k = 0; k < c.n_functional && c.n_gradient > 0; k++)
            if (c.prog.ops[i].out[0] == c.functional[k].of)
                ctx->has_gradient[c.prog.ops[i].kind] = true;
    opcase_free(&c);
}

static void test_gradients_agree_with_finite_differences(void **state)
{
    struct opcompare *ctx = *state;
    ctx->n_failures = ctx->n_runs = 0;
    for (int i = 0; i < ctx->cases.n_cases; i++)
        for (int k = 0; k < ctx->cases.cases[i].n_uses[CASE_small]; k++)
            if (opcompare_wants(ctx, &ctx->cases.cases[i]))
                check_gradients(ctx, &ctx->cases.cases[i], k);
    print_message("checked %d gradients\n", ctx->n_runs);
    assert_int_equal(ctx->n_failures, 0);
}

/* ---- += is = and a sum ---------------------------------------------------------------------- */

static void check_accumulates(struct opcompare *ctx, const struct opcase *c, int op_index)
{
    const struct op *op = &c->prog.ops[op_index];
    struct row_run run = {.row = ref_kernel(op->kind), .facts = {.threads = 1}, .inplace = -1};
    struct row_result set = {0}, added = {0};
    struct snug_error err = {0};
    assert_int_equal(oprun(c, op_index, &run, &set, &err), SNUG_OK);
    run.add = true;
    assert_int_equal(oprun(c, op_index, &run, &added, &err), SNUG_OK);
    for (int k = 0; k < op->n_out; k++) {
        if (op->out[k] == TENSOR_NONE)
            continue;
        int64_t n = tensor_elems(&c->prog, op->out[k]);
        double *before = calloc((size_t)n, sizeof *before), *right = set.out[k];
        assert_non_null(before);
        if (op_infos[op->kind].accumulates >> k & 1) {
            opcase_fill(c, op->out[k], before, 1);
            ctx->n_runs++;
        }
        for (int64_t i = 0; i < n; i++)
            right[i] += before[i];
        if (!(oprun_error(program_tensor(&c->prog, op->out[k]), added.out[k], right) < 1e-13))
            opcompare_problem(ctx, c, op, "reference", "", "+= is not = and a sum");
        free(before);
    }
    row_result_free(&set);
    row_result_free(&added);
}

static void test_accumulating_adds_to_what_was_there(void **state)
{
    struct opcompare *ctx = *state;
    ctx->n_failures = ctx->n_runs = 0;
    for (int i = 0; i < ctx->cases.n_cases; i++) {
        const struct case_text *text = &ctx->cases.cases[i];
        struct opcase c;
        struct snug_error err = {0};
        if (!opcompare_wants(ctx, text) || text->n_uses[CASE_small] == 0)
            continue;
        assert_int_equal(opcase_build(text, CASE_small, 0, DTYPE_f64, OPCOMPARE_SEED, &c, &err),
                         SNUG_OK);
        for (int k = 0; k < c.prog.n_ops; k++) {
            if (op_infos[c.prog.ops[k].kind].accumulates != 0)
                check_accumulates(ctx, &c, k);
            assert_int_equal(oprun_step(&c, k, ref_kernel(c.prog.ops[k].kind), &err), SNUG_OK);
        }
        opcase_free(&c);
    }
    assert_int_equal(ctx->n_failures, 0);
    assert_true(ctx->only != NULL || ctx->n_runs > 0);
}

/* ---- nothing was forgotten ------------------------------------------------------------------ */

static void test_every_op_has_cases(void **state)
{
    static const char *const gradient_rules[OP_COUNT] = {
#define GRADIENT(rule)                                #rule
#define OP(kind, in, out, shape, gradient, cost, ...) [OP_##kind] = gradient,
#include "ir/ops.def"
#undef OP
    };
    struct opcompare *ctx = *state;
    if (ctx->only != NULL)
        skip();
    int n_missing = 0;
    for (int kind = 0; kind < OP_COUNT; kind++) {
        if (kind_has((enum op_kind)kind, TRAIT_copy) || kind == OP_wait_copy || kind == OP_clear)
            continue; /* with a store or other ranks: tests/exec and tests/ranks have them */
        for (int t = 0; t < N_COMPARED_TYPES; t++)
            if (!ctx->has_case[kind][compared_types[t]]) {
                print_error("%s has no case in %s\n", op_infos[kind].name,
                            dtype_name(compared_types[t]));
                n_missing++;
            }
        if (strcmp(gradient_rules[kind], "none") != 0 && !ctx->has_gradient[kind]) {
            print_error("%s has a gradient rule and no gradient case\n", op_infos[kind].name);
            n_missing++;
        }
    }
    static const char *const rule_names[RULE_COUNT] = {
#define RULE(name) #name,
#include "ir/rules.def"
#undef RULE
    };
    for (int rule = 0; rule < RULE_COUNT; rule++)
        if (!ctx->has_rule[rule]) {
            print_error("the rule %s of ir/rules.def has no case\n", rule_names[rule]);
            n_missing++;
        }
    assert_int_equal(n_missing, 0);
}

/* ---- time ----------------------------------------------------------------------------------- */

static void time_case(const struct case_text *text, int index, enum dtype dtype)
{
    struct opcase c;
    struct snug_error err = {0};
    const struct backend *cpu = backend_cpu();
    const char *threads = getenv("OMP_NUM_THREADS");
    struct row_run run = {.facts.isa = backend_cpu_isa(), .inplace = -1};
    run.facts.threads = threads == NULL ? 1 : atoi(threads);
    enum snug_status status = opcase_build(text, CASE_time, index, dtype, OPCOMPARE_SEED, &c, &err);
    struct run_modes modes = cpu->run_begin(&run.facts);
    printf("%s, %d threads\n", c.label, run.facts.threads);
    for (int i = 0; status == SNUG_OK && i < c.prog.n_ops; i++) {
        const struct op *op = &c.prog.ops[i];
        struct row_result result;
        run.row = backend_choose(cpu, &c.prog, op, &run.facts);
        run.n_repeat = run.row == ref_kernel(op->kind) ? 1 : 5;
        status = oprun(&c, i, &run, &result, &err);
        row_result_free(&result);
        if (status != SNUG_OK)
            break;
        printf("    %-28s %-12s %9.3f ms %8.2f Gflop/s %7.2f GB/s\n", op_infos[op->kind].name,
               run.row->name, 1e3 * run.best_seconds,
               1e-9 * op_flops(&c.prog, op) / run.best_seconds,
               1e-9 * op_moved_bytes(&c.prog, op) / run.best_seconds);
        status = oprun_step(&c, i, run.row, &err);
    }
    if (status != SNUG_OK)
        printf("    %s\n", err.message);
    cpu->run_end(&run.facts, &modes);
    opcase_free(&c);
}

static void time_cases(const struct opcompare *ctx)
{
    for (int i = 0; i < ctx->cases.n_cases; i++)
        for (int k = 0; k < ctx->cases.cases[i].n_uses[CASE_time]; k++)
            for (int t = 0; t < N_COMPARED_TYPES && opcompare_wants(ctx, &ctx->cases.cases[i]); t++)
                time_case(&ctx->cases.cases[i], k, compared_types[t]);
}

int main(int argc, char **argv)
{
    static struct opcompare ctx;
    struct snug_error err = {0};
    const char *folder = getenv("SNUG_CASES");
    bool time_only = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-t") == 0)
            time_only = true;
        else if (strcmp(argv[i], "-v") == 0)
            ctx.verbose = true;
        else if (strcmp(argv[i], "-c") == 0 && i + 1 < argc)
            ctx.only = argv[++i];
        else
            return fprintf(stderr, "usage: %s [-t] [-v] [-c NAME]\n", argv[0]), 2;
    }
    if (case_list_read(folder == NULL ? "tests/ops" : folder, &ctx.cases, &err) != SNUG_OK)
        return fprintf(stderr, "%s\n", err.message), 1;
    int n_failed = 0;
    if (time_only) {
        time_cases(&ctx);
    } else {
        const struct CMUnitTest tests[] = {
            cmocka_unit_test_prestate(test_kernels_agree_with_the_reference, &ctx),
            cmocka_unit_test_prestate(test_ids_out_of_range_are_refused, &ctx),
            cmocka_unit_test_prestate(test_gradients_agree_with_finite_differences, &ctx),
            cmocka_unit_test_prestate(test_accumulating_adds_to_what_was_there, &ctx),
            cmocka_unit_test_prestate(test_every_op_has_cases, &ctx),
        };
        n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    }
    case_list_free(&ctx.cases);
    return n_failed;
}
