/*
 * dispatch_attention.c -- attention and its gradient with attention.cu.
 */
#include "cuda/kernels/attention.h"
#include "cuda/dispatch/dropout_args.h"
#include "cuda/dispatch/dispatch.h"
#include "ir/attention.h"

static bool is_type(const struct program *prog, tensor_id id, enum dtype dtype)
{
    return program_tensor(prog, id)->dtype == dtype;
}

static bool supports(const struct program *prog, const struct op *op)
{
    bool is_grad = op_has(op, TRAIT_grad);
    const struct tensor *qkv = program_tensor(prog, attention_input(op, ATTENTION_Q));
    if (!attention_is_plain(prog, op) || qkv->dtype == DTYPE_f64 ||
        shape_last(&qkv->shape) / 3 / attrs_of(op, attention)->heads > CUDA_ATTENTION_DEPTH)
        return false;
    if (is_grad)
        return is_type(prog, op->in[ATTENTION_DY], qkv->dtype) &&
               is_type(prog, op->in[ATTENTION_Y], qkv->dtype) &&
               is_type(prog, op->in[ATTENTION_LSE], DTYPE_f32) && is_type(prog, op->out[0], qkv->dtype);
    return is_type(prog, op->out[0], qkv->dtype) && is_type(prog, op->out[1], DTYPE_f32);
}

static struct cuda_attention attention_of(const struct kernel_call *call)
{
    const struct operand *qkv = &call->in[attention_index(call->op, ATTENTION_Q)];
    const int64_t *dim = qkv->tensor->shape.dim;
    const struct attention_attrs *attrs = attrs_of(call->op, attention);
    return (struct cuda_attention){.n_batch = dim[0],
                                   .n_time = dim[1],
                                   .n_heads = (int)attrs->heads,
                                   .depth = (int)(dim[2] / 3 / attrs->heads),
                                   .causal = attrs->causal != 0,
                                   .dtype = qkv->tensor->dtype,
                                   .qkv = qkv->data,
                                   .dropout = cuda_dropout_of(call, attention_index(call->op, ATTENTION_SCALARS))};
}

static enum snug_status run(const struct kernel_call *call, struct snug_error *err)
{
    struct cuda_attention attention = attention_of(call);
    attention.y = call->out[0].data;
    attention.lse = call->out[1].data;
    return cuda_done(call, cuda_attention(&attention, call->stream), err);
}

static size_t grad_bytes(const struct program *prog, const struct op *op,
                         const struct device_facts *facts)
{
    (void)facts;
    return (size_t)tensor_elems(prog, op->in[ATTENTION_LSE]) * sizeof(float);
}

static enum snug_status run_grad(const struct kernel_call *call, struct snug_error *err)
{
    struct cuda_attention attention = attention_of(call);
    attention.dy = call->in[ATTENTION_DY].data;
    attention.y = call->in[ATTENTION_Y].data;
    attention.lse = call->in[ATTENTION_LSE].data;
    attention.dqkv = call->out[0].data;
    attention.delta = call->work;
    return cuda_done(call, cuda_attention_grad(&attention, call->stream), err);
}

CUDA_KERNELS(attention) = {
    {.kind = OP_attention, .name = "cuda", .supports = supports, .run = run},
    {.kind = OP_attention_grad,
     .name = "cuda",
     .supports = supports,
     .workspace_bytes = grad_bytes,
     .run = run_grad},
};
CUDA_KERNELS_END(attention)
