/*
 * test_ops.c -- every op case, three ways: fast rows against the reference, gradients against
 * finite differences, and (with -t) time.
 *
 *   test_ops              compare and check; -v adds a line for each op, type and row
 *   test_ops -t           times the rows at the `time` sizes instead
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

#include "cpu/ref.h"
#include "support/oprun.h"

enum { SEED = 20240229, MAX_TRIPLES = 2000, MAX_PRINTED = 30 };

static const enum dtype compared_types[] = {DTYPE_f32, DTYPE_bf16, DTYPE_f16};
#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

struct triple { /* an op, a type and a row that were compared */
    enum op_kind kind;
    enum dtype dtype;
    const struct kernel *row;
    const char *level;
    double worst; /* error as a part of the tolerance */
    char where[96];
};

struct context {
    struct case_list cases;
    const char *only;
    bool verbose;
    struct triple triples[MAX_TRIPLES];
    int n_triples, n_runs, n_failures, n_left_out;
    bool has_case[OP_COUNT][DTYPE_COUNT], has_gradient[OP_COUNT], has_rule[RULE_COUNT];
};

static void problem(struct context *ctx, const struct opcase *c, const struct op *op,
                    const char *row, const char *level, const char *what)
{
    if (ctx->n_failures++ < MAX_PRINTED)
        print_error("%s: %s, row %s (%s): %s\n", c->label, op_infos[op->kind].name, row, level,
                    what);
}

static bool is_wanted(const struct context *ctx, const struct case_text *text)
{
    return ctx->only == NULL || strstr(text->name, ctx->only) != NULL;
}

/* ---- against the reference ------------------------------------------------------------------ */

static struct triple *triple_of(struct context *ctx, struct triple key)
{
    for (int i = 0; i < ctx->n_triples; i++) {
        struct triple *t = &ctx->triples[i];
        if (t->kind == key.kind && t->dtype == key.dtype && t->row == key.row)
            return t;
    }
    assert_true(ctx->n_triples < MAX_TRIPLES);
    ctx->triples[ctx->n_triples] = key;
    return &ctx->triples[ctx->n_triples++];
}

/* The row may lay output 0 on input k: its kind allows it and the two are alike. */
static bool may_lie_on(const struct program *prog, const struct op *op, int k)
{
    return (op_infos[op->kind].inplace >> k & 1) && k < op->n_in && op->in[k] != TENSOR_NONE &&
           prog->tensors[op->in[k]].dtype == prog->tensors[op->out[0]].dtype &&
           shape_equal(&prog->tensors[op->in[k]].shape, &prog->tensors[op->out[0]].shape);
}

/* Bytes are equal, but codes of states need not be: numbers that differ in their last bits may have
 * neighbouring ones. */
static bool bytes_agree(const struct op *op, const struct tensor *tensor, const uint8_t *a,
                        const uint8_t *b)
{
    if (op->kind != OP_update)
        return memcmp(a, b, (size_t)shape_elems(&tensor->shape)) == 0;
    int bits = (int)op->attrs.state_bits, mask = (1 << bits) - 1;
    for (int64_t i = 0, n = shape_elems(&tensor->shape); i < n; i++)
        for (int shift = 0; shift < 8; shift += bits)
            if (abs((a[i] >> shift & mask) - (b[i] >> shift & mask)) > 1)
                return false;
    return true;
}

static void compare_outputs(struct context *ctx, const struct opcase *c, const struct op *op,
                            const struct row_run *run, const struct row_result *got,
                            const struct row_result *right, struct triple *triple)
{
    for (int k = 0; k < op->n_out; k++) {
        if (op->out[k] == TENSOR_NONE)
            continue;
        const struct tensor *tensor = program_tensor(&c->prog, op->out[k]);
        double error = tensor->dtype == DTYPE_u8
                           ? (bytes_agree(op, tensor, got->out[k], right->out[k]) ? 0 : INFINITY)
                           : oprun_error(tensor, got->out[k], right->out[k]);
        double allowed = oprun_tolerance(c, op, k, triple->dtype);
        bool is_reference = run->row == ref_row(op->kind);
        if (error > triple->worst * allowed) {
            triple->worst = error / allowed;
            snprintf(triple->where, sizeof triple->where, "%s of %.70s", tensor->name, c->label);
        }
        if (!(error <= (is_reference ? 0.0 : allowed))) {
            char what[200];
            snprintf(what, sizeof what,
                     "output %s is off by %.3g, %.3g allowed (%s, on input %d, "
                     "%d threads)",
                     tensor->name, error, allowed, run->add ? "+=" : "=", run->inplace,
                     run->facts.threads);
            problem(ctx, c, op, run->row->name, triple->level, what);
        }
    }
}

static bool same_bits(const struct opcase *c, const struct op *op, const struct row_result *a,
                      const struct row_result *b)
{
    for (int k = 0; k < op->n_out; k++)
        if (op->out[k] != TENSOR_NONE &&
            memcmp(a->out[k], b->out[k], (size_t)tensor_bytes(&c->prog, op->out[k])) != 0)
            return false;
    return true;
}

/* One row, one way to call it: against the reference's results, and against itself. */
static void check_run(struct context *ctx, const struct opcase *c, int op_index,
                      struct row_run *run, const struct row_result *right, struct triple *triple)
{
    const struct op *op = &c->prog.ops[op_index];
    struct row_result got = {0}, again = {0};
    struct snug_error err = {0};
    if (oprun(c, op_index, run, &got, &err) != SNUG_OK ||
        oprun(c, op_index, run, &again, &err) != SNUG_OK) {
        problem(ctx, c, op, run->row->name, triple->level, err.message);
    } else {
        compare_outputs(ctx, c, op, run, &got, right, triple);
        if (!same_bits(c, op, &got, &again))
            problem(ctx, c, op, run->row->name, triple->level, "two runs differ in their bits");
        ctx->n_runs++;
    }
    row_result_free(&got);
    row_result_free(&again);
}

/* The row in every place that it may write to, on one thread and on several. */
static void check_row(struct context *ctx, const struct opcase *c, int op_index, bool add,
                      const struct row_result *right, const char *level, enum dtype dtype,
                      bool reference_only)
{
    static const int thread_counts[] = {1, 3};
    const struct op *op = &c->prog.ops[op_index];
    const struct backend *cpu = backend_cpu();
    for (int i = 0; i < (reference_only ? 1 : COUNT(thread_counts)); i++) {
        struct row_run run = {
            .facts = {.threads = thread_counts[i], .reference_only = reference_only}, .add = add};
        run.row = cpu->choose(&c->prog, op, &run.facts);
        if (run.row == NULL) {
            problem(ctx, c, op, "none", level, "the backend has no row for it");
            return;
        }
        if (!reference_only && run.row == ref_row(op->kind))
            return;
        struct triple spare = {.kind = op->kind, .dtype = dtype, .row = run.row, .level = level};
        struct triple *triple = reference_only ? &spare : triple_of(ctx, spare);
        struct run_modes modes = cpu->run_begin(&run.facts);
        for (run.inplace = -1; run.inplace < op->n_in; run.inplace++)
            if (run.inplace < 0 || may_lie_on(&c->prog, op, run.inplace))
                check_run(ctx, c, op_index, &run, right, triple);
        cpu->run_end(&run.facts, &modes);
    }
}

/* Every row that choose gives at any level.  An id out of range must be refused by each. */
static void compare_op(struct context *ctx, struct opcase *c, int op_index, enum dtype dtype)
{
    const struct op *op = &c->prog.ops[op_index];
    bool accumulates = op_infos[op->kind].accumulates != 0;
    for (int add = 0; add < (accumulates ? 2 : 1); add++) {
        struct row_run run = {
            .row = ref_row(op->kind), .facts = {.threads = 1}, .inplace = -1, .add = add != 0};
        struct row_result right = {0};
        struct snug_error err = {0};
        if (oprun(c, op_index, &run, &right, &err) != SNUG_OK)
            problem(ctx, c, op, "reference", "", err.message);
        else
            check_row(ctx, c, op_index, run.add, &right, "", dtype, true);
        for (int i = 0; right.out[0] != NULL && i < N_OPRUN_LEVELS; i++)
            if (oprun_set_level(oprun_levels[i]))
                check_row(ctx, c, op_index, run.add, &right, oprun_levels[i], dtype, false);
        oprun_set_level(NULL);
        row_result_free(&right);
    }
    ctx->has_case[op->kind][dtype] = true;
    if (op->kind == OP_update)
        ctx->has_rule[op->attrs.rule] = true;
}

static void compare_case(struct context *ctx, const struct case_text *text, enum case_use use,
                         int index, enum dtype dtype)
{
    struct opcase c;
    struct snug_error err = {0};
    enum snug_status status =
        opcase_build(text, use, index, dtype, SEED + (uint64_t)index, &c, &err);
    if (status == SNUG_OK && oprun_is_too_large(&c)) {
        ctx->n_left_out++;
        opcase_free(&c);
        return;
    }
    for (int i = 0; status == SNUG_OK && i < c.prog.n_ops; i++) {
        compare_op(ctx, &c, i, dtype);
        status = oprun_step(&c, i, ref_row(c.prog.ops[i].kind), &err);
    }
    if (status != SNUG_OK) {
        print_error("%s: %s\n", c.label, err.message);
        ctx->n_failures++;
    }
    opcase_free(&c);
}

static void test_rows_agree_with_the_reference(void **state)
{
    struct context *ctx = *state;
    ctx->n_failures = 0;
    for (int i = 0; i < ctx->cases.n_cases; i++)
        for (int t = 0; t < COUNT(compared_types); t++)
            for (int use = CASE_sizes; use <= CASE_small; use++)
                for (int k = 0; k < ctx->cases.cases[i].n_uses[use]; k++)
                    if (is_wanted(ctx, &ctx->cases.cases[i]) &&
                        opcase_is_for(&ctx->cases.cases[i], (enum case_use)use, k,
                                      compared_types[t]))
                        compare_case(ctx, &ctx->cases.cases[i], (enum case_use)use, k,
                                     compared_types[t]);
    for (int i = 0; ctx->verbose && i < ctx->n_triples; i++) {
        const struct triple *t = &ctx->triples[i];
        print_message("  %-28s %-5s %-12s %-5s error %.3f of the tolerance  %s\n",
                      op_infos[t->kind].name, dtype_name(t->dtype), t->row->name, t->level,
                      t->worst, t->where);
    }
    print_message("compared %d triples of op, type and row in %d runs; %d cases are too large\n",
                  ctx->n_triples, ctx->n_runs, ctx->n_left_out);
    assert_int_equal(ctx->n_failures, 0);
}

/* ---- ids out of range ----------------------------------------------------------------------- */

static void refuse_id(struct context *ctx, struct opcase *c, int op_index, int input, int32_t bad,
                      const char *level)
{
    const struct op *op = &c->prog.ops[op_index];
    const struct tensor *ids = program_tensor(&c->prog, op->in[input]);
    struct row_run run = {.facts = {.threads = 1}, .inplace = -1};
    struct row_result result;
    struct snug_error err = {0};
    int64_t place = shape_elems(&ids->shape) - 1;
    int32_t *id = (int32_t *)c->data[op->in[input]] + place, good = *id;
    char number[16], position[16];
    snprintf(number, sizeof number, "%d", (int)bad);
    snprintf(position, sizeof position, "%d", (int)place);

    run.row = level == NULL ? ref_row(op->kind) : backend_cpu()->choose(&c->prog, op, &run.facts);
    *id = bad;
    enum snug_status status = oprun(c, op_index, &run, &result, &err);
    *id = good;
    row_result_free(&result);
    if (status != SNUG_BAD_ARGUMENT)
        problem(ctx, c, op, run.row->name, level == NULL ? "" : level, "took an id out of range");
    else if (strstr(err.message, ids->name) == NULL || strstr(err.message, number) == NULL ||
             strstr(err.message, position) == NULL)
        problem(ctx, c, op, run.row->name, level == NULL ? "" : level, err.message);
    ctx->n_runs++;
}

static void refuse_ids_of_case(struct context *ctx, const struct case_text *text)
{
    struct opcase c;
    struct snug_error err = {0};
    assert_int_equal(opcase_build(text, CASE_small, 0, DTYPE_f32, SEED, &c, &err), SNUG_OK);
    for (int i = 0; i < c.prog.n_ops; i++) {
        const struct op *op = &c.prog.ops[i];
        for (int k = 0; k < op->n_in; k++) {
            if (op->in[k] == TENSOR_NONE || c.prog.tensors[op->in[k]].dtype != DTYPE_i32)
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
        assert_int_equal(oprun_step(&c, i, ref_row(op->kind), &err), SNUG_OK);
    }
    opcase_free(&c);
}

static void test_ids_out_of_range_are_refused(void **state)
{
    struct context *ctx = *state;
    ctx->n_failures = ctx->n_runs = 0;
    for (int i = 0; i < ctx->cases.n_cases; i++)
        if (is_wanted(ctx, &ctx->cases.cases[i]) && ctx->cases.cases[i].n_uses[CASE_small] > 0)
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
        if (oprun_step(c, i, ref_row(c->prog.ops[i].kind), &err) != SNUG_OK)
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

static void check_gradients(struct context *ctx, const struct case_text *text, int index)
{
    struct opcase c;
    struct snug_error err = {0};
    if (opcase_build(text, CASE_small, index, DTYPE_f64, SEED, &c, &err) != SNUG_OK)
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
    struct context *ctx = *state;
    ctx->n_failures = ctx->n_runs = 0;
    for (int i = 0; i < ctx->cases.n_cases; i++)
        for (int k = 0; k < ctx->cases.cases[i].n_uses[CASE_small]; k++)
            if (is_wanted(ctx, &ctx->cases.cases[i]))
                check_gradients(ctx, &ctx->cases.cases[i], k);
    print_message("checked %d gradients\n", ctx->n_runs);
    assert_int_equal(ctx->n_failures, 0);
}

/* ---- += is = and a sum ---------------------------------------------------------------------- */

static void check_accumulates(struct context *ctx, const struct opcase *c, int op_index)
{
    const struct op *op = &c->prog.ops[op_index];
    struct row_run run = {.row = ref_row(op->kind), .facts = {.threads = 1}, .inplace = -1};
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
            problem(ctx, c, op, "reference", "", "+= is not = and a sum");
        free(before);
    }
    row_result_free(&set);
    row_result_free(&added);
}

static void test_accumulating_adds_to_what_was_there(void **state)
{
    struct context *ctx = *state;
    ctx->n_failures = ctx->n_runs = 0;
    for (int i = 0; i < ctx->cases.n_cases; i++) {
        const struct case_text *text = &ctx->cases.cases[i];
        struct opcase c;
        struct snug_error err = {0};
        if (!is_wanted(ctx, text) || text->n_uses[CASE_small] == 0)
            continue;
        assert_int_equal(opcase_build(text, CASE_small, 0, DTYPE_f64, SEED, &c, &err), SNUG_OK);
        for (int k = 0; k < c.prog.n_ops; k++) {
            if (op_infos[c.prog.ops[k].kind].accumulates != 0)
                check_accumulates(ctx, &c, k);
            assert_int_equal(oprun_step(&c, k, ref_row(c.prog.ops[k].kind), &err), SNUG_OK);
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
#define OP(kind, in_min, in_max, out_min, out_max, flags, inplace, accumulates, keeps_f32, attrs, \
           shape, gradient, cost)                                                                 \
    [OP_##kind] = #gradient,
#include "ir/ops.def"
#undef OP
    };
    struct context *ctx = *state;
    if (ctx->only != NULL)
        skip();
    int n_missing = 0;
    for (int kind = 0; kind < OP_COUNT; kind++) {
        if ((op_infos[kind].flags & COPIES) != 0 || kind == OP_settle || kind == OP_clear)
            continue; /* with a store or other ranks: tests/exec and tests/ranks have them */
        for (int t = 0; t < COUNT(compared_types); t++)
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
    for (int rule = 0; rule < RULE_COUNT; rule++)
        if (!ctx->has_rule[rule]) {
            print_error("rule %d of ir/rules.def has no case\n", rule);
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
    struct row_run run = {.inplace = -1};
    run.facts.threads = threads == NULL ? 1 : atoi(threads);
    enum snug_status status = opcase_build(text, CASE_time, index, dtype, SEED, &c, &err);
    struct run_modes modes = cpu->run_begin(&run.facts);
    printf("%s, %d threads\n", c.label, run.facts.threads);
    for (int i = 0; status == SNUG_OK && i < c.prog.n_ops; i++) {
        const struct op *op = &c.prog.ops[i];
        struct row_result result;
        run.row = cpu->choose(&c.prog, op, &run.facts);
        run.n_repeat = run.row == ref_row(op->kind) ? 1 : 5;
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

static void time_cases(const struct context *ctx)
{
    for (int i = 0; i < ctx->cases.n_cases; i++)
        for (int k = 0; k < ctx->cases.cases[i].n_uses[CASE_time]; k++)
            for (int t = 0; t < COUNT(compared_types) && is_wanted(ctx, &ctx->cases.cases[i]); t++)
                time_case(&ctx->cases.cases[i], k, compared_types[t]);
}

int main(int argc, char **argv)
{
    static struct context ctx;
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
            cmocka_unit_test_prestate(test_rows_agree_with_the_reference, &ctx),
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
