/*
 * dispatch_attention.c -- attention and its gradient with attention.cu.
 */
#include "cuda/attention/attention.h"
#include "cuda/dispatch/attention_args.h"
#include "cuda/dispatch/dropout_args.h"
#include "cuda/dispatch/dispatch.h"

static bool is_type(const struct program *prog, tensor_id id, enum dtype dtype)
{
    return program_tensor(prog, id)->dtype == dtype;
}

/* The first inputs, which have q's type: in the gradient dy and y, then q, k and v or the packed
 * tensor alone. */
static bool inputs_fit(const struct program *prog, const struct op *op, enum dtype dtype)
{
    bool packed = attention_input(op, ATTENTION_K) == TENSOR_NONE;
    int last = attention_index(op, packed ? ATTENTION_Q : ATTENTION_V);
    for (int k = 0; k <= last; k++) {
        bool is_lse = op_has(op, TRAIT_grad) && k == ATTENTION_LSE;
        if (!is_type(prog, op->in[k], is_lse ? DTYPE_f32 : dtype))
            return false;
    }
    return true;
}

static bool supports(const struct program *prog, const struct op *op)
{
    bool is_grad = op_has(op, TRAIT_grad);
    enum dtype dtype = program_tensor(prog, attention_input(op, ATTENTION_Q))->dtype;
    if (dtype == DTYPE_f64 || attention_sizes_of(prog, op).depth > CUDA_ATTENTION_DEPTH ||
        !inputs_fit(prog, op, dtype))
        return false;
    for (int k = 0; k < op->n_out; k++)
        if (!is_type(prog, op->out[k], !is_grad && k == 1 ? DTYPE_f32 : dtype))
            return false;
    return true;
}

static struct cuda_attention attention_of(const struct kernel_call *call)
{
    const struct operand *in = &call->in[attention_index(call->op, 0)], *q = &in[ATTENTION_Q];
    struct attention_sizes s = attention_call_sizes(call);
    struct attention_layout layout = attention_layout(&s);
    const struct operand *k = s.packed ? q : &in[ATTENTION_K], *v = s.packed ? q : &in[ATTENTION_V];
    bool limited = s.window > 0 && s.window < s.n_keys;
    return (struct cuda_attention){
        .n_batch = s.n_batch,
        .n_queries = (int)s.n_queries,
        .n_keys = (int)s.n_keys,
        .n_heads = (int)s.heads,
        .n_kv_heads = (int)s.kv_heads,
        .depth = (int)s.depth,
        .group = (int)(s.heads / s.kv_heads),
        .window = (int)(limited ? s.window : s.n_keys),
        .causal = s.causal,
        .dtype = q->tensor->dtype,
        .q = q->data,
        .k = operand_after(k, layout.k_column),
        .v = operand_after(v, layout.v_column),
        .q_row = layout.q_row,
        .kv_row = layout.kv_row,
        .starts = in[ATTENTION_STARTS].data,
        .lengths = in[ATTENTION_LENGTHS].data,
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
    struct attention_sizes s = attention_call_sizes(call);
    struct attention_layout layout = attention_layout(&s);
    attention.dq = call->out[0].data;
    attention.dk = operand_after(&call->out[s.packed ? 0 : 1], layout.k_column);
    attention.dv = operand_after(&call->out[s.packed ? 0 : 2], layout.v_column);
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
