/*
 * dispatch_dequantize.c -- decode over dequantize.cu.
 */
#include "cuda/kernels/dequantize.h"
#include "cuda/dispatch/dispatch.h"

static bool supports(const struct program *prog, const struct op *op)
{
    return cuda_floats_fit(prog, op, 0, 0);
}

static enum snug_status run(const struct kernel_call *call, struct snug_error *err)
{
    struct code_map map;
    code_map_make(&map, (int)call->op->attrs.state_bits, true);
    return cuda_done(call,
                     cuda_decode(&map, cuda_elems(&call->out[0]), call->in[0].data,
                                 call->in[1].data, cuda_array_of(&call->out[0]), call->stream),
                     err);
}

CUDA_ROWS(codes) = {
    {.kind = OP_decode, .name = "cuda", .supports = supports, .run = run},
};
CUDA_ROWS_END(codes)
