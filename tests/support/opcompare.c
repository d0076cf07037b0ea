/*
 * opcompare.c -- compares kernels with the reference.  See opcompare.h.
 */
#include "support/opcompare.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cpu/ref/ref.h"
#include "support/size.h"

enum { MAX_PRINTED = 30 };

const enum dtype compared_types[N_COMPARED_TYPES] = {DTYPE_f32, DTYPE_bf16, DTYPE_f16};

void opcompare_problem(struct opcompare *ctx, const struct opcase *c, const struct op *op,
                       const char *row, const char *level, const char *what)
{
    if (ctx->n_failures++ < MAX_PRINTED)
        print_error("%s: %s, kernel %s (%s): %s\n", c->label, op_infos[op->kind].name, row, level,
                    what);
}

bool opcompare_wants(const struct opcompare *ctx, const struct case_text *text)
{
    return ctx->only == NULL || strstr(text->name, ctx->only) != NULL;
}

bool opcompare_is_too_large(const struct opcase *c, bool is_emulated)
{
    double flops = 0, most_flops = INFINITY;
#if defined(__SANITIZE_ADDRESS__)
    most_flops = 2e7;
#endif
    if (size_is_small())
        most_flops = is_emulated ? 1e4 : 1e5;
    for (int i = 0; i < c->prog.n_ops; i++)
        flops += op_flops(&c->prog, &c->prog.ops[i]);
    return flops > most_flops;
}

/* ---- against the reference ------------------------------------------------------------------ */

static struct triple *triple_of(struct opcompare *ctx, struct triple key)
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

/* May output 0 alias input k?  The op and the kernel allow it, and shape and dtype match. */
static bool may_lie_on(const struct kernel *row, const struct program *prog, const struct op *op,
                       int k)
{
    return !(row->no_alias != NULL && row->no_alias(prog, op)) &&
           (op_infos[op->kind].inplace >> k & 1) && k < op->n_in && op->in[k] != TENSOR_NONE &&
           op->out[0] != TENSOR_NONE &&
           prog->tensors[op->in[k]].dtype == prog->tensors[op->out[0]].dtype &&
           shape_equal(&prog->tensors[op->in[k]].shape, &prog->tensors[op->out[0]].shape);
}

/* Bytes must be equal, except quantized states: values that differ in their last bits may be
 * quantized to neighbouring codes. */
static bool bytes_agree(const struct op *op, const struct tensor *tensor, const uint8_t *a,
                        const uint8_t *b)
{
    if (op->kind != OP_update)
        return memcmp(a, b, (size_t)shape_elems(&tensor->shape)) == 0;
    int bits = (int)attrs_of(op, update)->state_bits, mask = (1 << bits) - 1;
    for (int64_t i = 0, n = shape_elems(&tensor->shape); i < n; i++)
        for (int shift = 0; shift < 8; shift += bits)
            if (abs((a[i] >> shift & mask) - (b[i] >> shift & mask)) > 1)
                return false;
    return true;
}

static void compare_outputs(struct opcompare *ctx, const struct opcase *c, const struct op *op,
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
        bool is_reference = run->row == ref_kernel(op->kind);
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
            opcompare_problem(ctx, c, op, run->row->name, triple->level, what);
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

/* Runs a kernel in one way: compares it with the reference, and with itself. */
static void check_run(struct opcompare *ctx, const struct opcase *c, int op_index,
                      struct row_run *run, const struct row_result *right, struct triple *triple)
{
    const struct op *op = &c->prog.ops[op_index];
    struct row_result got = {0}, again = {0};
    struct snug_error err = {0};
    if (oprun(c, op_index, run, &got, &err) != SNUG_OK ||
        (!ctx->once && oprun(c, op_index, run, &again, &err) != SNUG_OK)) {
        opcompare_problem(ctx, c, op, run->row->name, triple->level, err.message);
    } else {
        if (!ctx->ignores_results)
            compare_outputs(ctx, c, op, run, &got, right, triple);
        if (!ctx->once && !same_bits(c, op, &got, &again))
            opcompare_problem(ctx, c, op, run->row->name, triple->level,
                              "two runs differ in their bits");
        ctx->n_runs++;
    }
    row_result_free(&got);
    row_result_free(&again);
}

static const struct backend *backend_of(const struct opcompare *ctx)
{
    return ctx->device_of != NULL ? ctx->device_of : backend_cpu();
}

/* Runs the kernel with every input that output 0 may alias, on one thread and on several. */
static void check_row(struct opcompare *ctx, const struct opcase *c, int op_index, bool add,
                      const struct row_result *right, const char *level, enum dtype dtype,
                      bool reference_only)
{
    enum { N_THREAD_COUNTS = 2 };
    static const int thread_counts[N_THREAD_COUNTS] = {1, 3};
    const struct op *op = &c->prog.ops[op_index];
    const struct backend *backend = backend_of(ctx);
    bool once = reference_only || ctx->device_of != NULL;
    for (int i = 0; i < (once ? 1 : N_THREAD_COUNTS); i++) {
        struct row_run run = {.facts = {.threads = thread_counts[i],
                                        .isa = backend_cpu_isa(),
                                        .reference_only = reference_only,
                                        .device = ctx->device},
                              .device_of = ctx->device_of,
                              .add = add};
        run.row = backend_choose(backend, &c->prog, op, &run.facts);
        if (run.row == NULL) {
            opcompare_problem(ctx, c, op, "none", level, "the backend has no kernel for it");
            return;
        }
        if (!reference_only && run.row == ref_kernel(op->kind))
            return;
        struct triple spare = {.kind = op->kind, .dtype = dtype, .row = run.row, .level = level};
        struct triple *triple = reference_only ? &spare : triple_of(ctx, spare);
        struct run_modes modes = backend->run_begin(&run.facts);
        for (run.inplace = -1; run.inplace < op->n_in; run.inplace++)
            if (run.inplace < 0 || may_lie_on(run.row, &c->prog, op, run.inplace))
                check_run(ctx, c, op_index, &run, right, triple);
        backend->run_end(&run.facts, &modes);
    }
}

static void check_levels(struct opcompare *ctx, const struct opcase *c, int op_index, bool add,
                         const struct row_result *right, enum dtype dtype)
{
    check_row(ctx, c, op_index, add, right, "", dtype, true);
    for (int i = 0; i < N_OPRUN_LEVELS; i++)
        if (oprun_set_level(oprun_levels[i]))
            check_row(ctx, c, op_index, add, right, oprun_levels[i], dtype, false);
    oprun_set_level(NULL);
}

/* On the CPU every op has a kernel. */
static bool has_row(const struct opcompare *ctx, const struct program *prog, const struct op *op)
{
    struct device_facts facts = {.threads = 1, .isa = backend_cpu_isa()};
    return ctx->device_of == NULL || backend_choose(ctx->device_of, prog, op, &facts) != NULL;
}

static bool has_any_row(const struct opcompare *ctx, const struct program *prog)
{
    for (int i = 0; i < prog->n_ops; i++)
        if (has_row(ctx, prog, &prog->ops[i]))
            return true;
    return false;
}

/* Every kernel chosen at any level.  Each must refuse an id out of range. */
static void compare_op(struct opcompare *ctx, struct opcase *c, int op_index, enum dtype dtype)
{
    const struct op *op = &c->prog.ops[op_index];
    bool accumulates = (op_infos[op->kind].accumulates & ((1u << op->n_out) - 1)) != 0;
    if (!has_row(ctx, &c->prog, op))
        return;
    for (int add = 0; add < (accumulates ? 2 : 1); add++) {
        struct row_run run = {
            .row = ref_kernel(op->kind), .facts = {.threads = 1}, .inplace = -1, .add = add != 0};
        struct row_result right = {0};
        struct snug_error err = {0};
        if (oprun(c, op_index, &run, &right, &err) != SNUG_OK)
            opcompare_problem(ctx, c, op, "reference", "", err.message);
        else if (ctx->device_of != NULL)
            check_row(ctx, c, op_index, run.add, &right, ctx->device_of->name, dtype, false);
        else
            check_levels(ctx, c, op_index, run.add, &right, dtype);
        row_result_free(&right);
    }
    ctx->has_case[op->kind][dtype] = true;
    if (op->kind == OP_update)
        ctx->has_rule[attrs_of(op, update)->rule] = true;
}

static void compare_case(struct opcompare *ctx, const struct case_text *text, enum case_use use,
                         int index, enum dtype dtype)
{
    struct opcase c;
    struct snug_error err = {0};
    enum snug_status status =
        opcase_build(text, use, index, dtype, OPCOMPARE_SEED + (uint64_t)index, &c, &err);
    if (status == SNUG_OK &&
        (opcompare_is_too_large(&c, ctx->device_of != NULL) || !has_any_row(ctx, &c.prog))) {
        ctx->n_left_out++;
        opcase_free(&c);
        return;
    }
    for (int i = 0; status == SNUG_OK && i < c.prog.n_ops; i++) {
        compare_op(ctx, &c, i, dtype);
        status = oprun_step(&c, i, ref_kernel(c.prog.ops[i].kind), &err);
    }
    if (status != SNUG_OK) {
        print_error("%s: %s\n", c.label, err.message);
        ctx->n_failures++;
    }
    opcase_free(&c);
}

static bool has_too_many_rows(const struct opcompare *ctx, const char *sizes)
{
    for (const char *at = sizes; ctx->most_rows > 0 && (at = strchr(at, '=')) != NULL; at++)
        if (at > sizes && strchr("BNT", at[-1]) != NULL &&
            strtol(at + 1, NULL, 10) > ctx->most_rows)
            return true;
    return false;
}

/* All sizes of a case, or every n_parts-th: neighbours, which have similar sizes, go to different
 * parts. */
static void compare_uses(struct opcompare *ctx, const struct case_text *text, enum dtype dtype,
                         int *n_before)
{
    for (int use = ctx->small_only ? CASE_small : CASE_sizes; use <= CASE_small; use++)
        for (int k = 0; k < text->n_uses[use]; k++)
            if (opcase_is_for(text, (enum case_use)use, k, dtype) &&
                !has_too_many_rows(ctx, text->use[use][k]) &&
                (ctx->n_parts == 0 || (*n_before)++ % ctx->n_parts == ctx->part))
                compare_case(ctx, text, (enum case_use)use, k, dtype);
}

void opcompare_cases(struct opcompare *ctx)
{
    int n_before = 0;
    ctx->n_failures = 0;
    for (int i = 0; i < ctx->cases.n_cases; i++)
        for (int t = 0; t < N_COMPARED_TYPES; t++)
            if (opcompare_wants(ctx, &ctx->cases.cases[i]))
                compare_uses(ctx, &ctx->cases.cases[i], compared_types[t], &n_before);
    for (int i = 0; ctx->verbose && i < ctx->n_triples; i++) {
        const struct triple *t = &ctx->triples[i];
        print_message("  %-28s %-5s %-12s %-5s error %.3f of the tolerance  %s\n",
                      op_infos[t->kind].name, dtype_name(t->dtype), t->row->name, t->level,
                      t->worst, t->where);
    }
    print_message("compared %d triples of op, type and kernel in %d runs; %d cases are left out\n",
                  ctx->n_triples, ctx->n_runs, ctx->n_left_out);
}
