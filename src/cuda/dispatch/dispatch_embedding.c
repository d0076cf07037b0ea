/*
 * dispatch_embedding.c -- embedding and its gradient with embedding.cu; sums.cu sums the gradient
 * of the positions.
 */
#include "cuda/kernels/embedding.h"
#include "cuda/dispatch/dispatch.h"
#include "cuda/kernels/sums.h"

static bool supports(const struct program *prog, const struct op *op)
{
    return cuda_floats_fit(prog, op, 0, 0);
}

static enum snug_status check_positions(const struct operand *ids, const struct operand *positions,
                                        struct snug_error *err)
{
    if (positions->tensor == NULL ||
        shape_last(&ids->tensor->shape) <= shape_rows(&positions->tensor->shape))
        return SNUG_OK;
    return snug_fail(err, SNUG_BAD_ARGUMENT, "%s: %lld positions, but %s has %lld rows",
                     ids->tensor->name, (long long)shape_last(&ids->tensor->shape),
                     positions->tensor->name, (long long)shape_rows(&positions->tensor->shape));
}

static enum snug_status run_embedding(const struct kernel_call *call, struct snug_error *err)
{
    const struct shape *ids = &call->in[0].tensor->shape, *table = &call->in[1].tensor->shape;
    TRY(check_positions(&call->in[0], &call->in[2], err));
    return cuda_done(call,
                     cuda_embedding(shape_elems(ids), shape_last(ids), shape_rows(table),
                                    (int)shape_last(table), call->in[0].data,
                                    cuda_array_of(&call->in[1]), cuda_array_of(&call->in[2]),
                                    cuda_array_of(&call->out[0]), call->stream),
                     err);
}

static size_t grad_bytes(const struct program *prog, const struct op *op,
                         const struct device_facts *facts)
{
    (void)facts;
    if (op->out[0] == TENSOR_NONE)
        return 0;
    return cuda_embedding_layout(tensor_elems(prog, op->in[0]),
                                 shape_last(&program_tensor(prog, op->in[1])->shape))
        .total;
}

/* dpositions[t] (+)= the sum over sequences; rows beyond the sequence length get 0. */
static int positions_grad(const struct kernel_call *call)
{
    struct cuda_array dy = cuda_array_of(&call->in[1]), to = cuda_array_of(&call->out[1]);
    int64_t n_time = shape_last(&call->in[0].tensor->shape);
    int64_t reached = n_time * shape_last(&call->in[1].tensor->shape);
    int64_t rest = cuda_elems(&call->out[1]) - reached;
    int error = cuda_sum_rows(dy, cuda_elems(&call->in[0]) / n_time, reached, reached, to,
                              call->add, call->stream);
    if (error != 0 || call->add || rest == 0)
        return error;
    return cuda_clear((char *)to.data + (size_t)reached * dtype_bytes(to.dtype),
                      (size_t)rest * dtype_bytes(to.dtype), call->stream);
}

static enum snug_status run_grad(const struct kernel_call *call, struct snug_error *err)
{
    const struct operand *ids = &call->in[0], *dy = &call->in[1];
    int error = 0;
    TRY(check_positions(ids, &call->out[1], err));
    if (call->out[0].data != NULL) {
        struct cuda_embedding_grad grad = {.n_ids = cuda_elems(ids),
                                           .n_rows = shape_rows(&call->out[0].tensor->shape),
                                           .width = (int)shape_last(&dy->tensor->shape),
                                           .ids = ids->data,
                                           .dy = cuda_array_of(dy),
                                           .dtable = cuda_array_of(&call->out[0]),
                                           .add = call->add,
                                           .work = call->work};
        error = cuda_embedding_grad(&grad, call->stream);
    }
    if (error == 0 && call->out[1].data != NULL)
        error = positions_grad(call);
    return cuda_done(call, error, err);
}

CUDA_KERNELS(embedding) = {
    {.kind = OP_embedding, .name = "cuda", .supports = supports, .run = run_embedding},
    {.kind = OP_embedding_grad,
     .name = "cuda",
     .supports = supports,
     .workspace_bytes = grad_bytes,
     .run = run_grad},
};
CUDA_KERNELS_END(embedding)
