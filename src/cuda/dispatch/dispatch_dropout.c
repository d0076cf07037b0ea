/*
 * dispatch_dropout.c -- dropout with dropout.cu.
 */
#include "cuda/dispatch/dropout_args.h"
#include "cuda/dispatch/dispatch.h"

static bool supports(const struct program *prog, const struct op *op)
{
    return cuda_floats_fit(prog, op, 2, 0);
}

static enum snug_status run(const struct kernel_call *call, struct snug_error *err)
{
    return cuda_done(call,
                     cuda_dropout(cuda_dropout_of(call, 1), cuda_elems(&call->out[0]),
                                  cuda_array_of(&call->in[0]), cuda_array_of(&call->out[0]),
                                  call->stream),
                     err);
}

CUDA_KERNELS(dropout) = {
    {.kind = OP_dropout, .name = "cuda", .supports = supports, .run = run},
};
CUDA_KERNELS_END(dropout)
