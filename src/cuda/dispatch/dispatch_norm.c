/*
 * dispatch_norm.c -- layernorm, rmsnorm, each also after an add, and their gradients with norm.cu.
 */
#include "cuda/dispatch/dropout_args.h"
#include "cuda/kernels/norm.h"
#include "cuda/dispatch/dispatch.h"

static bool is_type(const struct program *prog, tensor_id id, enum dtype dtype)
{
    return id == TENSOR_NONE || program_tensor(prog, id)->dtype == dtype;
}

/* Rows and weights have one type, statistics are fp32, gradients of weights may have any type.  Bit
 * k of a mask stands for operand k. */
static bool supports_rows(const struct program *prog, const struct op *op, unsigned statistics_in,
                          unsigned statistics_out, unsigned gradients_out)
{
    const struct tensor *x = program_tensor(prog, op->in[0]);
    if (x->dtype == DTYPE_f64 || shape_last(&x->shape) > CUDA_NORM_WIDTH_MOST)
        return false;
    for (int k = 0; k < op->n_in; k++)
        if (op->in[k] != prog->scalars &&
            !is_type(prog, op->in[k], statistics_in >> k & 1 ? DTYPE_f32 : x->dtype))
            return false;
    for (int k = 0; k < op->n_out; k++)
        if (!(gradients_out >> k & 1) &&
            !is_type(prog, op->out[k], statistics_out >> k & 1 ? DTYPE_f32 : x->dtype))
            return false;
    return true;
}

static bool supports_layernorm(const struct program *prog, const struct op *op)
{
    return supports_rows(prog, op, 0, 6, 0);
}

static bool supports_add_layernorm(const struct program *prog, const struct op *op)
{
    return supports_rows(prog, op, 0, 12, 0);
}

static bool supports_rmsnorm(const struct program *prog, const struct op *op)
{
    return supports_rows(prog, op, 0, 2, 0);
}

static bool supports_add_rmsnorm(const struct program *prog, const struct op *op)
{
    return supports_rows(prog, op, 0, 4, 0);
}

static bool sums_dx(const struct op *op)
{
    return op_column_sums(op) != TENSOR_NONE;
}

static bool supports_layernorm_grad(const struct program *prog, const struct op *op)
{
    return supports_rows(prog, op, 24, 0, 14) && (!sums_dx(op) || op->out[0] != TENSOR_NONE);
}

static bool supports_rmsnorm_grad(const struct program *prog, const struct op *op)
{
    return supports_rows(prog, op, 8, 0, 2);
}

/* Nearly free: dx is in registers, like the operands of the other column sums. */
static bool sums_columns(const struct program *prog, const struct op *op)
{
    (void)prog;
    return sums_dx(op);
}

/* Input k is gamma. */
static struct cuda_norm norm_of(const struct kernel_call *call, int k)
{
    int64_t width = cuda_elems(&call->in[k]);
    return (struct cuda_norm){.n_rows = cuda_elems(&call->in[0]) / width,
                              .width = (int)width,
                              .dtype = call->in[0].tensor->dtype,
                              .eps = (float)attrs_of(call->op, norm)->eps,
                              .a = call->in[0].data,
                              .gamma = call->in[k].data};
}

static enum snug_status run_layernorm(const struct kernel_call *call, struct snug_error *err)
{
    struct cuda_norm norm = norm_of(call, 1);
    norm.beta = call->in[2].data;
    norm.y = call->out[0].data;
    norm.mean = call->out[1].data;
    norm.rstd = call->out[2].data;
    return cuda_done(call, cuda_norm(&norm, call->stream), err);
}

static enum snug_status run_add_layernorm(const struct kernel_call *call, struct snug_error *err)
{
    struct cuda_norm norm = norm_of(call, 2);
    norm.b = call->in[1].data;
    norm.beta = call->in[3].data;
    norm.sum = call->out[0].data;
    norm.y = call->out[1].data;
    norm.mean = call->out[2].data;
    norm.rstd = call->out[3].data;
    norm.dropout = cuda_dropout_of(call, 4);
    return cuda_done(call, cuda_norm(&norm, call->stream), err);
}

static enum snug_status run_rmsnorm(const struct kernel_call *call, struct snug_error *err)
{
    struct cuda_norm norm = norm_of(call, 1);
    norm.y = call->out[0].data;
    norm.rstd = call->out[1].data;
    return cuda_done(call, cuda_norm(&norm, call->stream), err);
}

static enum snug_status run_add_rmsnorm(const struct kernel_call *call, struct snug_error *err)
{
    struct cuda_norm norm = norm_of(call, 2);
    norm.b = call->in[1].data;
    norm.sum = call->out[0].data;
    norm.y = call->out[1].data;
    norm.rstd = call->out[2].data;
    norm.dropout = cuda_dropout_of(call, 3);
    return cuda_done(call, cuda_norm(&norm, call->stream), err);
}

static size_t grad_bytes(const struct program *prog, const struct op *op,
                         const struct device_facts *facts)
{
    int64_t width = tensor_elems(prog, op->in[2]), n_rows = tensor_elems(prog, op->in[1]) / width;
    int n_sums = op->kind == OP_rmsnorm_grad ? 1 : sums_dx(op) ? 3 : 2;
    (void)facts;
    return (size_t)cuda_norm_parts(n_rows, width, n_sums) * sizeof(float);
}

static struct cuda_norm_grad grad_of(const struct kernel_call *call)
{
    int64_t width = cuda_elems(&call->in[2]);
    return (struct cuda_norm_grad){.n_rows = cuda_elems(&call->in[1]) / width,
                                   .width = (int)width,
                                   .dtype = call->in[1].tensor->dtype,
                                   .dy = call->in[0].data,
                                   .x = call->in[1].data,
                                   .gamma = call->in[2].data,
                                   .dx = call->out[0].data,
                                   .dgamma = cuda_array_of(&call->out[1]),
                                   .add = call->add,
                                   .parts = call->work};
}

static enum snug_status run_layernorm_grad(const struct kernel_call *call, struct snug_error *err)
{
    struct cuda_norm_grad grad = grad_of(call);
    grad.mean = call->in[3].data;
    grad.rstd = call->in[4].data;
    grad.r = call->in[5].data;
    grad.dbeta = cuda_array_of(&call->out[2]);
    grad.dsum = cuda_array_of(&call->out[3]);
    return cuda_done(call, cuda_norm_grad(&grad, call->stream), err);
}

static enum snug_status run_rmsnorm_grad(const struct kernel_call *call, struct snug_error *err)
{
    struct cuda_norm_grad grad = grad_of(call);
    grad.rstd = call->in[3].data;
    grad.r = call->in[4].data;
    return cuda_done(call, cuda_norm_grad(&grad, call->stream), err);
}

CUDA_KERNELS(norm) = {
    {.kind = OP_layernorm, .name = "cuda", .supports = supports_layernorm, .run = run_layernorm},
    {.kind = OP_add_layernorm,
     .name = "cuda",
     .supports = supports_add_layernorm,
     .run = run_add_layernorm},
    {.kind = OP_layernorm_grad,
     .name = "cuda",
     .supports = supports_layernorm_grad,
     .sums_columns = sums_columns,
     .workspace_bytes = grad_bytes,
     .run = run_layernorm_grad},
    {.kind = OP_rmsnorm, .name = "cuda", .supports = supports_rmsnorm, .run = run_rmsnorm},
    {.kind = OP_add_rmsnorm,
     .name = "cuda",
     .supports = supports_add_rmsnorm,
     .run = run_add_rmsnorm},
    {.kind = OP_rmsnorm_grad,
     .name = "cuda",
     .supports = supports_rmsnorm_grad,
     .workspace_bytes = grad_bytes,
     .run = run_rmsnorm_grad},
};
CUDA_KERNELS_END(norm)
