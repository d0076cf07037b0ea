/*
 * dispatch_rope.c -- rope with rope.cu.
 */
#include "cuda/kernels/rope.h"
#include "cuda/dispatch/dispatch.h"
#include "ir/rope_angles.h"

static int64_t pairs_of(const struct shape *x, const struct op *op)
{
    return shape_last(x) / attrs_of(op, rope)->heads / 2;
}

static bool supports(const struct program *prog, const struct op *op)
{
    const struct shape *x = &program_tensor(prog, op->in[0])->shape;
    return cuda_floats_fit(prog, op, 0, 0) && pairs_of(x, op) <= CUDA_ROPE_PAIRS;
}

static enum snug_status run(const struct kernel_call *call, struct snug_error *err)
{
    const double two_pi = 6.283185307179586;
    const struct rope_attrs *attrs = attrs_of(call->op, rope);
    const struct shape *x = &call->in[0].tensor->shape;
    struct cuda_rope rope = {.n_rows = shape_rows(x),
                             .n_time = x->dim[1],
                             .heads = (int)attrs->heads,
                             .n_pairs = (int)pairs_of(x, call->op),
                             .positions = call->in[1].data,
                             .x = cuda_array_of(&call->in[0]),
                             .y = cuda_array_of(&call->out[0])};
    for (int i = 0; i < rope.n_pairs; i++) {
        double turns = rope_frequency(attrs, 2 * rope.n_pairs, i) / two_pi;
        rope.turns[i] = attrs->inverse ? -turns : turns;
    }
    return cuda_done(call, cuda_rope(&rope, call->stream), err);
}

CUDA_KERNELS(rope) = {
    {.kind = OP_rope, .name = "cuda", .supports = supports, .run = run},
};
CUDA_KERNELS_END(rope)
