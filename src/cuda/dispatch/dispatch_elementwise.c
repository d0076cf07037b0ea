/*
 * dispatch_elementwise.c -- act, act_grad, add, scale, cast and accumulate with elementwise.cu;
 * swiglu and its gradient with swiglu.cu.
 */
#include "cuda/kernels/elementwise.h"
#include "cuda/kernels/swiglu.h"
#include "cuda/dispatch/dispatch.h"

static bool supports(const struct program *prog, const struct op *op)
{
    return cuda_floats_fit(prog, op, 0, 0);
}

static enum snug_status run_act(const struct kernel_call *call, struct snug_error *err)
{
    return cuda_done(call,
                     cuda_act(call->op->attrs.act, cuda_elems(&call->out[0]),
                              cuda_array_of(&call->in[0]), cuda_array_of(&call->out[0]),
                              call->stream),
                     err);
}

static enum snug_status run_act_grad(const struct kernel_call *call, struct snug_error *err)
{
    return cuda_done(call,
                     cuda_act_grad(call->op->attrs.act, cuda_elems(&call->out[0]),
                                   cuda_array_of(&call->in[0]), cuda_array_of(&call->in[1]),
                                   cuda_array_of(&call->out[0]), call->stream),
                     err);
}

static enum snug_status run_add(const struct kernel_call *call, struct snug_error *err)
{
    return cuda_done(call,
                     cuda_add(cuda_elems(&call->out[0]), cuda_array_of(&call->in[0]),
                              cuda_array_of(&call->in[1]), cuda_array_of(&call->out[0]),
                              call->stream),
                     err);
}

static enum snug_status scale_by(const struct kernel_call *call, float factor,
                                 struct snug_error *err)
{
    return cuda_done(call,
                     cuda_scale(factor, cuda_elems(&call->out[0]), cuda_array_of(&call->in[0]),
                                cuda_array_of(&call->out[0]), call->stream),
                     err);
}

static enum snug_status run_scale(const struct kernel_call *call, struct snug_error *err)
{
    return scale_by(call, (float)attrs_of(call->op, options)->options.value[0], err);
}

static enum snug_status run_cast(const struct kernel_call *call, struct snug_error *err)
{
    return scale_by(call, 1.0f, err);
}

static enum snug_status run_accumulate(const struct kernel_call *call, struct snug_error *err)
{
    struct cuda_array y = cuda_array_of(&call->out[0]), x = cuda_array_of(&call->in[0]);
    int64_t n = cuda_elems(&call->out[0]);
    int error =
        call->add ? cuda_add(n, x, y, y, call->stream) : cuda_scale(1.0f, n, x, y, call->stream);
    return cuda_done(call, error, err);
}

static enum snug_status run_swiglu(const struct kernel_call *call, struct snug_error *err)
{
    return cuda_done(call,
                     cuda_swiglu(cuda_elems(&call->out[0]), cuda_array_of(&call->in[0]),
                                 cuda_array_of(&call->in[1]), cuda_array_of(&call->out[0]),
                                 call->stream),
                     err);
}

static enum snug_status run_swiglu_grad(const struct kernel_call *call, struct snug_error *err)
{
    return cuda_done(call,
                     cuda_swiglu_grad(cuda_elems(&call->in[0]), cuda_array_of(&call->in[0]),
                                      cuda_array_of(&call->in[1]), cuda_array_of(&call->in[2]),
                                      cuda_array_of(&call->out[0]), cuda_array_of(&call->out[1]),
                                      cuda_array_of(&call->out[2]), call->stream),
                     err);
}

CUDA_KERNELS(elementwise) = {
    {.kind = OP_act, .name = "cuda", .supports = supports, .run = run_act},
    {.kind = OP_act_grad, .name = "cuda", .supports = supports, .run = run_act_grad},
    {.kind = OP_add, .name = "cuda", .supports = supports, .run = run_add},
    {.kind = OP_scale, .name = "cuda", .supports = supports, .run = run_scale},
    {.kind = OP_cast, .name = "cuda", .supports = supports, .run = run_cast},
    {.kind = OP_accumulate, .name = "cuda", .supports = supports, .run = run_accumulate},
    {.kind = OP_swiglu, .name = "cuda", .supports = supports, .run = run_swiglu},
    {.kind = OP_swiglu_grad, .name = "cuda", .supports = supports, .run = run_swiglu_grad},
};
CUDA_KERNELS_END(elementwise)
