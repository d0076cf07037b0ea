/*
 * dispatch_attention_cudnn.c -- attention and its gradient with cuDNN.
 *
 * The op alone tells whether cuDNN can support it at all: 16-bit types, no dropout, head sizes that
 * are a multiple of 8 up to 128.  Whether it runs on this GPU is known only when the op is
 * prepared.  If cuDNN rejects it, the fallback kernel runs; the workspace is large enough for both.
 */
#include <stdlib.h>

#include "cuda/lib/attention_cudnn.h"
#include "cuda/dispatch/fallback.h"
#include "cuda/dispatch/dispatch.h"
#include "cuda/dispatch/workspace.h"
#include "ir/attention.h"

struct prepared {
    struct cuda_attention *library; /* NULL if cuDNN rejected the op */
    struct cuda_fallback fallback;
};

static const struct tensor *qkv_of(const struct program *prog, const struct op *op)
{
    return program_tensor(prog, attention_input(op, ATTENTION_Q));
}

static struct cuda_attention_shape shape_of(const struct program *prog, const struct op *op)
{
    const struct tensor *qkv = qkv_of(prog, op);
    return (struct cuda_attention_shape){.n_batch = qkv->shape.dim[0],
                                         .n_heads = attrs_of(op, attention)->heads,
                                         .n_time = qkv->shape.dim[1],
                                         .depth =
                                             qkv->shape.dim[2] / 3 / attrs_of(op, attention)->heads,
                                         .type = qkv->dtype,
                                         .causal = attrs_of(op, attention)->causal != 0,
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
    struct cuda_attention_shape shape = shape_of(prog, op);
    bool is_grad = shape.is_grad;
    tensor_id lse = is_grad ? op->in[ATTENTION_LSE] : op->out[1];
    bool fits = attention_is_plain(prog, op) && attrs_of(op, attention)->dropout == 0.0 && shape.n_time > 1 &&
                shape.depth % 8 == 0 && shape.depth <= 128 &&
                (shape.type == DTYPE_bf16 || shape.type == DTYPE_f16);
    for (int k = 0; k < (is_grad ? 4 : 1); k++)
        fits = fits && operand_fits(prog, op->in[k], shape.type, lse);
    for (int k = 0; k < (is_grad ? 1 : 2); k++)
        fits = fits && operand_fits(prog, op->out[k], shape.type, lse);
    return fits;
}

/* Forward, an engine needs a few counters.  Backward, it needs delta of each row, and dS of as many
 * heads as 1 GiB holds, with rows rounded up to 128 and columns to 64; more heads are split into
 * parts. Parts cost time: the gradient of 32 sequences of GPT-2 took 0.70 ms with 256 MiB, 0.62
 * with 512, 0.58 in one part (H200). */
size_t cuda_attention_work_bytes(const struct cuda_attention_shape *s)
{
    const size_t counters = (size_t)1 << 20, most = (size_t)1 << 30;
    if (!s->is_grad)
        return counters;
    size_t n_heads = (size_t)(s->n_batch * s->n_heads), n_time = (size_t)s->n_time;
    size_t head = (n_time + 127) / 128 * 128 * ((n_time + 63) / 64 * 64) * dtype_bytes(s->type);
    size_t all = n_heads * head;
    size_t scores = all < most ? all : head > most ? head : most;
    return counters + n_heads * n_time * sizeof(float) + scores;
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
    struct cuda_attention_call attention = {.qkv = call->in[attention_index(call->op, ATTENTION_Q)].data,
                                            .dy = is_grad ? call->in[ATTENTION_DY].data : NULL,
                                            .y = is_grad ? call->in[ATTENTION_Y].data : call->out[0].data,
                                            .lse = is_grad ? call->in[ATTENTION_LSE].data : call->out[1].data,
                                            .dqkv = is_grad ? call->out[0].data : NULL,
                                            .work = cuda_work_at(call->work, 0),
                                            .stream = call->stream};
    return cuda_attention_run(p->library, &attention, err);
}

#define ATTENTION_KERNEL(op_kind)                                                              \
    {                                                                                          \
        .kind = OP_##op_kind, .name = "cudnn", .supports = supports,                           \
        .workspace_bytes = workspace_bytes, .prepare = prepare, .release = release, .run = run \
    }
CUDA_KERNELS(attention_cudnn) = {ATTENTION_KERNEL(attention), ATTENTION_KERNEL(attention_grad)};
CUDA_KERNELS_END(attention_cudnn)
