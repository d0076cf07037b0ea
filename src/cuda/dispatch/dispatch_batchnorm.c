/*
 * dispatch_batchnorm.c -- batchnorm, its running averages and its gradient with batchnorm.cu.
 */
#include "cuda/kernels/batchnorm.h"
#include "cuda/dispatch/dispatch.h"

static bool supports(const struct program *prog, const struct op *op)
{
    return cuda_floats_fit(prog, op, 0, 0);
}

static size_t work_bytes(const struct program *prog, const struct op *op,
                         const struct device_facts *facts)
{
    const struct shape *x = &program_tensor(prog, op->in[0])->shape;
    (void)facts;
    return (size_t)cuda_batchnorm_work(shape_rows(x), shape_last(x)) * sizeof(float);
}

/* Fields common to all of them: input k is x, followed by gamma and beta. */
static struct cuda_batchnorm norm_of(const struct kernel_call *call, int k)
{
    const struct shape *x = &call->in[k].tensor->shape;
    return (struct cuda_batchnorm){.n_rows = shape_rows(x),
                                   .channels = shape_last(x),
                                   .eps = (float)attrs_of(call->op, norm)->eps,
                                   .relu = call->op->attrs.act == ACT_relu,
                                   .x = cuda_array_of(&call->in[k]),
                                   .gamma = cuda_array_of(&call->in[k + 1]),
                                   .beta = cuda_array_of(&call->in[k + 2]),
                                   .work = call->work};
}

static enum snug_status run(const struct kernel_call *call, struct snug_error *err)
{
    struct cuda_batchnorm norm = norm_of(call, 0);
    norm.r = cuda_array_of(&call->in[3]);
    norm.y = cuda_array_of(&call->out[0]);
    norm.mean = cuda_array_of(&call->out[1]);
    norm.var = cuda_array_of(&call->out[2]);
    return cuda_done(call, cuda_batchnorm(&norm, call->stream), err);
}

static enum snug_status run_eval(const struct kernel_call *call, struct snug_error *err)
{
    struct cuda_batchnorm norm = norm_of(call, 0);
    norm.mean = cuda_array_of(&call->in[3]);
    norm.var = cuda_array_of(&call->in[4]);
    norm.r = cuda_array_of(&call->in[5]);
    norm.y = cuda_array_of(&call->out[0]);
    return cuda_done(call, cuda_batchnorm_eval(&norm, call->stream), err);
}

static enum snug_status run_grad(const struct kernel_call *call, struct snug_error *err)
{
    struct cuda_batchnorm norm = norm_of(call, 1);
    norm.dy = cuda_array_of(&call->in[0]);
    norm.mean = cuda_array_of(&call->in[4]);
    norm.var = cuda_array_of(&call->in[5]);
    norm.y = cuda_array_of(&call->in[6]);
    norm.dx = cuda_array_of(&call->out[0]);
    norm.dgamma = cuda_array_of(&call->out[1]);
    norm.dbeta = cuda_array_of(&call->out[2]);
    norm.dr = cuda_array_of(&call->out[3]);
    norm.add = call->add;
    return cuda_done(call, cuda_batchnorm_grad(&norm, call->stream), err);
}

static enum snug_status run_update(const struct kernel_call *call, struct snug_error *err)
{
    return cuda_done(call,
                     cuda_batchnorm_update(
                         shape_rows(&call->in[4].tensor->shape), cuda_elems(&call->in[0]),
                         (float)attrs_of(call->op, norm)->momentum, cuda_array_of(&call->in[0]),
                         cuda_array_of(&call->in[1]), cuda_array_of(&call->out[0]),
                         cuda_array_of(&call->out[1]), call->stream),
                     err);
}

CUDA_KERNELS(batchnorm) = {
    {.kind = OP_batchnorm,
     .name = "cuda",
     .supports = supports,
     .workspace_bytes = work_bytes,
     .run = run},
    {.kind = OP_batchnorm_eval, .name = "cuda", .supports = supports, .run = run_eval},
    {.kind = OP_batchnorm_update, .name = "cuda", .supports = supports, .run = run_update},
    {.kind = OP_batchnorm_grad,
     .name = "cuda",
     .supports = supports,
     .workspace_bytes = work_bytes,
     .run = run_grad},
};
CUDA_KERNELS_END(batchnorm)
