/*
 * bench_kernels.c -- benchmark single kernels as the step runs them: an op and its operands are
 * copied into a program of their own, which is planned and run like any other.
 *
 * Matmuls are also run in fp32, for comparison.  Operands are filled with values between 0 and 1,
 * which are valid for every op of the table (one operand is a variance).
 */
#include "bench/bench.h"

#include "base/clock.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct kernel_case {
    enum op_kind kind;
    bool in_fp32;
    int64_t n_elems; /* 0: as in the step; else elements per operand, larger than any cache */
} cases[] = {
    {OP_linear, true, 0},          {OP_linear_grad_x, true, 0},   {OP_linear_grad_w, true, 0},
    {OP_linear, false, 0},         {OP_linear_grad_x, false, 0},  {OP_linear_grad_w, false, 0},
    {OP_conv2d, false, 0},         {OP_conv2d_grad_x, false, 0},  {OP_conv2d_grad_w, false, 0},
    {OP_attention, false, 0},      {OP_attention_grad, false, 0}, {OP_layernorm, false, 0},
    {OP_layernorm_grad, false, 0}, {OP_batchnorm, false, 0},      {OP_batchnorm_grad, false, 0},
    {OP_update, false, 8 << 20},
};

enum { N_CASES = sizeof cases / sizeof *cases, LEAST_RUNS = 3 };
static const double least_seconds = 0.15;

static const struct op *largest_op(const struct program *prog, enum op_kind kind)
{
    const struct op *largest = NULL;
    for (int i = 0; i < prog->n_ops; i++) {
        const struct op *op = &prog->ops[i];
        if (op->kind == kind && (largest == NULL || op_flops(prog, op) > op_flops(prog, largest)))
            largest = op;
    }
    return largest;
}

/* Copies the tensor `from` of the step into the program of one op.  Inputs are persistent, so that
 * no output reuses their memory. */
static enum snug_status copy_tensor(const struct program *prog, tensor_id from,
                                    const struct kernel_case *c, bool is_input, struct program *one,
                                    tensor_id *to, struct snug_error *err)
{
    struct tensor t = prog->tensors[from];
    bool is_scalars = from == prog->scalars;
    t.base = TENSOR_NONE;
    t.offset_elems = 0;
    t.role = ROLE_activation;
    t.persistent = is_input;
    t.is_output = !is_input;
    if (c->in_fp32 && (t.dtype == DTYPE_bf16 || t.dtype == DTYPE_f16))
        t.dtype = DTYPE_f32;
    if (c->n_elems > 0 && !is_scalars)
        t.shape = (struct shape){1, {c->n_elems}};
    TRY(program_add_tensor(one, &t, to, err));
    if (is_scalars)
        one->scalars = *to;
    return SNUG_OK;
}

static enum snug_status extract_op(const struct program *prog, const struct op *op,
                                   const struct kernel_case *c, struct program *one,
                                   struct snug_error *err)
{
    tensor_id in[MAX_INPUTS], out[MAX_OUTPUTS];
    TRY(program_init(one, op_infos[op->kind].name, err));
    for (int k = 0; k < op->n_in; k++) {
        in[k] = TENSOR_NONE;
        if (op->in[k] != TENSOR_NONE)
            TRY(copy_tensor(prog, op->in[k], c, true, one, &in[k], err));
    }
    for (int k = 0; k < op->n_out; k++) {
        out[k] = TENSOR_NONE;
        for (int j = 0; j < op->n_in; j++)
            if (op->out[k] != TENSOR_NONE && op->in[j] == op->out[k])
                out[k] = in[j]; /* updated in place */
        if (op->out[k] != TENSOR_NONE && out[k] == TENSOR_NONE)
            TRY(copy_tensor(prog, op->out[k], c, false, one, &out[k], err));
    }
    return program_add_op(one, op->kind, &op->attrs, op->n_in, in, op->n_out, out, err);
}

static enum snug_status fill(const struct exec *exec, const struct program *one,
                             struct snug_error *err)
{
    enum { PATTERN = 4096 };
    for (int id = 0; id < one->n_tensors; id++) {
        const struct tensor *t = &one->tensors[id];
        double pattern[PATTERN] = {0}; /* large enough for the widest type */
        int64_t bytes = tensor_bytes(one, id), step = PATTERN * (int64_t)dtype_bytes(t->dtype);
        for (int64_t i = 0; i < PATTERN && dtype_is_float(t->dtype); i++)
            dtype_store(t->dtype, pattern, i, rng_uniform(1, (uint64_t)id, (uint64_t)i));
        for (int64_t at = 0; at < bytes; at += step)
            TRY(exec_write(exec, id, at, bytes - at < step ? bytes - at : step, pattern, err));
    }
    double *scalars = exec_scalars(exec);
    for (int i = 0; scalars != NULL && i < SCALAR_COUNT; i++)
        scalars[i] = i == SCALAR_lr ? 1e-6 : i == SCALAR_skip ? 0 : 1;
    return SNUG_OK;
}

static enum snug_status best_run(const struct compiled_step *one, double *best,
                                 struct snug_error *err)
{
    struct exec *exec = NULL;
    TRY(exec_create(&one->prog, &one->plan, one->backend, &one->facts, NULL, &exec, err));
    enum snug_status status = fill(exec, &one->prog, err);
    if (status == SNUG_OK)
        status = exec_run(exec, NULL, NULL, err); /* warm-up: generates JIT code, touches pages */
    double op_seconds, total = 0;
    *best = INFINITY;
    exec_time_ops(exec, &op_seconds);
    for (int i = 0; status == SNUG_OK && (i < LEAST_RUNS || total < least_seconds); i++) {
        op_seconds = 0;
        status = exec_run(exec, NULL, NULL, err);
        total += op_seconds;
        if (op_seconds > 0 && op_seconds < *best) /* 0: the clock did not advance */
            *best = op_seconds;
    }
    exec_free(exec);
    return status;
}

/* "4096 x 768 to 3072" for a linear op, else the dimensions of the first operand. */
static void describe(const struct program *one, struct report_rate *row)
{
    const struct op *op = &one->ops[0];
    const struct shape *s = &one->tensors[op->in[0]].shape;
    tensor_id to = !op_has(op, TRAIT_linear)      ? TENSOR_NONE
                   : op_layer(op) == LAYER_grad_w ? op->in[1]
                                                  : op->out[0];
    int length = 0;
    if (to != TENSOR_NONE) {
        snprintf(row->shape, sizeof row->shape, "%lld x %lld to %lld", (long long)shape_rows(s),
                 (long long)shape_last(s), (long long)shape_last(&one->tensors[to].shape));
        return;
    }
    for (int d = 0; d < s->n_dims && length < (int)sizeof row->shape; d++)
        length += snprintf(row->shape + length, sizeof row->shape - (size_t)length, "%s%lld",
                           d == 0 ? "" : " x ", (long long)s->dim[d]);
}

static enum snug_status run_case(const struct compiled_step *compiled, const struct op *op,
                                 const struct kernel_case *c, const struct device_limits *limits,
                                 struct report_rate *row, struct snug_error *err)
{
    struct compiled_step one;
    struct program prog;
    struct compile_request q = {.program = &prog, .like = compiled};
    double seconds = 0;
    enum snug_status status = extract_op(&compiled->prog, op, c, &prog, err);
    if (status != SNUG_OK)
        program_free(&prog);
    TRY(status);
    TRY(compile_step(&q, &one, err));
    status = best_run(&one, &seconds, err);
    if (status == SNUG_OK) {
        describe(&one.prog, row);
        bench_add_op(row, &one, &one.prog.ops[0], 1, seconds, limits);
    }
    compiled_step_free(&one);
    return status;
}

enum snug_status bench_kernels(const struct compiled_step *compiled, const char *type,
                               const struct device_limits *limits, struct report_bench *bench,
                               struct snug_error *err)
{
    bool is_fp32 = strcmp(type, "fp32") == 0;
    for (int i = 0; i < N_CASES; i++) {
        const struct op *op = largest_op(&compiled->prog, cases[i].kind);
        if (op == NULL || (is_fp32 && cases[i].in_fp32))
            continue;
        struct report_rate *row = &bench->kernels[bench->n_kernels++];
        *row = (struct report_rate){.op = op_infos[op->kind].name,
                                    .type = cases[i].in_fp32 ? "fp32" : type};
        TRY(run_case(compiled, op, &cases[i], limits, row, err));
        double rate = row->flops / row->seconds;
        bool is_gemm = op_has(op, TRAIT_gemm) && !op_has(op, TRAIT_conv);
        if (is_gemm && !cases[i].in_fp32 && rate > bench->best_gemm_flops)
            bench->best_gemm_flops = rate;
    }
    return SNUG_OK;
}
