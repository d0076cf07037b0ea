/*
 * dispatch_attention_cudnn.c -- attention and its gradient with cuDNN.
 *
 * The op alone tells whether cuDNN can support it at all: 16-bit types, no dropout, no documents,
 * no cache, as many keys as queries, head sizes that are a multiple of 8 up to 128.  Whether it
 * runs on this GPU is known only when the op is prepared.  If cuDNN rejects it, the fallback kernel
 * runs; the workspace is large enough for both.
 */
#include <stdlib.h>

#include "cuda/dispatch/attention_args.h"
#include "cuda/dispatch/attention_parts.h"
#include "cuda/dispatch/dispatch.h"
#include "cuda/dispatch/fallback.h"
#include "cuda/dispatch/workspace.h"

struct prepared {
    struct cuda_attention *library; /* NULL if cuDNN rejected the op */
    struct cuda_fallback fallback;
};

static struct cuda_attention_shape shape_of(const struct program *prog, const struct op *op)
{
    struct attention_sizes sizes = attention_sizes_of(prog, op);
    struct attention_layout layout = attention_layout(&sizes);
    return (struct cuda_attention_shape){
        .n_batch = sizes.n_batch,
        .n_heads = sizes.heads,
        .n_kv_heads = sizes.kv_heads,
        .n_time = sizes.n_queries,
        .depth = sizes.depth,
        .q_row = layout.q_row,
        .kv_row = layout.kv_row,
        .window = sizes.window < sizes.n_keys ? sizes.window : 0,
        .type = program_tensor(prog, attention_input(op, ATTENTION_Q))->dtype,
        .causal = sizes.causal,
        .is_grad = op_has(op, TRAIT_grad)};
}

/* All operands but lse have one 16-bit type; all begin at multiples of 16 bytes. */
static bool operand_fits(const struct program *prog, tensor_id id, enum dtype type, tensor_id lse)
{
    if (id == TENSOR_NONE)
        return false;
    const struct tensor *t = program_tensor(prog, id);
    return (id == lse ? t->dtype == DTYPE_f32 : t->dtype == type) &&
           t->offset_elems * (int64_t)dtype_bytes(t->dtype) % 16 == 0;
}

static bool supports(const struct program *prog, const struct op *op)
{
    struct attention_sizes sizes = attention_sizes_of(prog, op);
    struct cuda_attention_shape shape = shape_of(prog, op);
    tensor_id lse = shape.is_grad ? op->in[ATTENTION_LSE] : op->out[1];
    bool fits = sizes.n_queries == sizes.n_keys && attrs_of(op, attention)->dropout == 0.0 &&
                attention_input(op, ATTENTION_STARTS) == TENSOR_NONE &&
                attention_input(op, ATTENTION_LENGTHS) == TENSOR_NONE && shape.n_time > 1 &&
                shape.depth % 8 == 0 && shape.depth <= 128 &&
                (shape.type == DTYPE_bf16 || shape.type == DTYPE_f16);
    int n_operands = sizes.packed ? 1 : 3; /* of q, k, v, and of their gradients */
    for (int k = 0; k < attention_index(op, n_operands); k++)
        fits = fits && operand_fits(prog, op->in[k], shape.type, lse);
    for (int k = 0; k < (shape.is_grad ? n_operands : 2); k++)
        fits = fits && operand_fits(prog, op->out[k], shape.type, lse);
    return fits;
}

static size_t workspace_bytes(const struct program *prog, const struct op *op,
                              const struct device_facts *facts)
{
    struct cuda_attention_shape shape = shape_of(prog, op);
    size_t bytes = cuda_work_bytes(cuda_attention_work_bytes(&shape));
    return cuda_fallback_workspace(cuda_kernels_attention, bytes, prog, op, facts);
}

static void release(void *prepared)
{
    struct prepared *p = prepared;
    if (p != NULL) {
        cuda_fallback_release(&p->fallback);
        cuda_attention_release(p->library);
    }
    free(p);
}

static enum snug_status prepare(const struct program *prog, const struct op *op,
                                const struct device_facts *facts, void **prepared,
                                struct snug_error *err)
{
    struct cuda_attention_shape shape = shape_of(prog, op);
    struct prepared *p = calloc(1, sizeof *p);
    if (p == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "attention: out of memory while preparing it");
    shape.nondeterministic = facts->nondeterministic;
    enum snug_status status =
        cuda_attention_prepare(&shape, cuda_attention_work_bytes(&shape), &p->library, err);
    if (status == SNUG_OK && p->library == NULL)
        status = cuda_fallback_prepare(cuda_kernels_attention, prog, op, facts, &p->fallback, err);
    if (status == SNUG_OK)
        *prepared = p;
    else
        release(p);
    return status;
}

static enum snug_status run(const struct kernel_call *call, struct snug_error *err)
{
    const struct prepared *p = call->prepared;
    if (p->library == NULL)
        return cuda_fallback_run(&p->fallback, call, err);
    bool is_grad = op_has(call->op, TRAIT_grad);
    const struct operand *in = call->in + attention_index(call->op, ATTENTION_Q), *out = call->out;
    struct attention_sizes sizes = attention_call_sizes(call);
    struct attention_layout layout = attention_layout(&sizes);
    int k = sizes.packed ? ATTENTION_Q : ATTENTION_K, v = sizes.packed ? ATTENTION_Q : ATTENTION_V;
    struct cuda_attention_call attention = {.q = in[ATTENTION_Q].data,
                                            .k = operand_after(&in[k], layout.k_column),
                                            .v = operand_after(&in[v], layout.v_column),
                                            .dy = is_grad ? call->in[ATTENTION_DY].data : NULL,
                                            .y = is_grad ? call->in[ATTENTION_Y].data : out[0].data,
                                            .lse = is_grad ? call->in[ATTENTION_LSE].data
                                                           : out[1].data,
                                            .work = cuda_work_at(call->work, 0),
                                            .stream = call->stream};
    if (is_grad) {
        attention.dq = out[0].data;
        attention.dk = operand_after(&out[k], layout.k_column);
        attention.dv = operand_after(&out[v], layout.v_column);
    }
    return cuda_attention_run(p->library, &attention, err);
}

#define ATTENTION_KERNEL(op_kind)                                                              \
    {                                                                                          \
        .kind = OP_##op_kind, .name = "cudnn", .supports = supports,                           \
        .workspace_bytes = workspace_bytes, .prepare = prepare, .release = release, .run = run \
    }
CUDA_KERNELS(attention_cudnn) = {ATTENTION_KERNEL(attention), ATTENTION_KERNEL(attention_grad)};
CUDA_KERNELS_END(attention_cudnn)
