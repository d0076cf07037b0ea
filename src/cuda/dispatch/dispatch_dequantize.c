/*
 * dispatch_dequantize.c -- dequantize with dequantize.cu.
 */
#include "cuda/kernels/dequantize.h"
#include "cuda/dispatch/dispatch.h"

static bool supports(const struct program *prog, const struct op *op)
{
    return cuda_floats_fit(prog, op, 0, 0);
}

static enum snug_status run(const struct kernel_call *call, struct snug_error *err)
{
    struct quant_map map;
    quant_map_make(&map, (int)attrs_of(call->op, quant)->state_bits, true);
    return cuda_done(call,
                     cuda_dequantize(&map, cuda_elems(&call->out[0]), call->in[0].data,
                                     call->in[1].data, cuda_array_of(&call->out[0]), call->stream),
                     err);
}

CUDA_KERNELS(dequantize) = {
    {.kind = OP_dequantize, .name = "cuda", .supports = supports, .run = run},
};
CUDA_KERNELS_END(dequantize)
