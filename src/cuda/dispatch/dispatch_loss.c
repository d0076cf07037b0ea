/*
 * dispatch_loss.c -- cross_entropy, mse and their gradients with loss.cu.
 */
#include "cuda/kernels/loss.h"
#include "cuda/dispatch/dispatch.h"
#include "cuda/kernels/sums.h"

static enum dtype dtype_of(const struct program *prog, tensor_id id)
{
    return program_tensor(prog, id)->dtype;
}

static bool supports_cross_entropy(const struct program *prog, const struct op *op)
{
    return cuda_floats_fit(prog, op, 0, 0) && dtype_of(prog, op->out[0]) == DTYPE_f32 &&
           dtype_of(prog, op->out[1]) == DTYPE_f32;
}

static bool supports_cross_entropy_grad(const struct program *prog, const struct op *op)
{
    return cuda_floats_fit(prog, op, 8, 0) && dtype_of(prog, op->in[2]) == DTYPE_f32 &&
           dtype_of(prog, op->in[0]) == dtype_of(prog, op->out[0]);
}

static bool supports_mse(const struct program *prog, const struct op *op)
{
    return cuda_floats_fit(prog, op, 0, 0) && dtype_of(prog, op->in[1]) == DTYPE_f32 &&
           dtype_of(prog, op->out[0]) == DTYPE_f32;
}

static bool supports_mse_grad(const struct program *prog, const struct op *op)
{
    return cuda_floats_fit(prog, op, 4, 0) && dtype_of(prog, op->in[1]) == DTYPE_f32;
}

static struct cuda_softmax softmax_of(const struct kernel_call *call)
{
    const struct shape *logits = &call->in[0].tensor->shape;
    return (struct cuda_softmax){.n_rows = shape_rows(logits),
                                 .n_classes = shape_last(logits),
                                 .pitch = shape_last(logits),
                                 .dtype = call->in[0].tensor->dtype,
                                 .logits = call->in[0].data,
                                 .targets = call->in[1].data,
                                 .smoothing = (float)attrs_of(call->op, loss)->smoothing};
}

static size_t cross_entropy_bytes(const struct program *prog, const struct op *op,
                                  const struct device_facts *facts)
{
    (void)facts;
    return (size_t)shape_rows(&program_tensor(prog, op->in[0])->shape) * sizeof(double);
}

static enum snug_status run_cross_entropy(const struct kernel_call *call, struct snug_error *err)
{
    struct cuda_softmax softmax = softmax_of(call);
    softmax.lse = call->out[1].data;
    softmax.makes_lse = true;
    softmax.losses = call->work;
    int error = cuda_softmax(&softmax, call->stream);
    if (error == 0)
        error = cuda_total(softmax.losses, softmax.n_rows,
                           attrs_of(call->op, loss)->weight / (double)softmax.n_rows,
                           cuda_array_of(&call->out[0]), call->add, call->stream);
    return cuda_done(call, error, err);
}

static enum snug_status run_cross_entropy_grad(const struct kernel_call *call,
                                               struct snug_error *err)
{
    struct cuda_softmax softmax = softmax_of(call);
    softmax.lse = call->in[2].data;
    softmax.dlogits = call->out[0].data;
    softmax.grad_factor = attrs_of(call->op, loss)->weight / (double)softmax.n_rows;
    softmax.scalars = call->in[3].data;
    return cuda_done(call, cuda_softmax(&softmax, call->stream), err);
}

static size_t mse_bytes(const struct program *prog, const struct op *op,
                        const struct device_facts *facts)
{
    (void)facts;
    return (size_t)cuda_square_parts(tensor_elems(prog, op->in[0])) * sizeof(double);
}

static enum snug_status run_mse(const struct kernel_call *call, struct snug_error *err)
{
    int64_t n = cuda_elems(&call->in[0]);
    double *parts = call->work;
    int error =
        cuda_sum_square_gaps(n, cuda_array_of(&call->in[0]), call->in[1].data, parts, call->stream);
    if (error == 0)
        error =
            cuda_total(parts, cuda_square_parts(n), attrs_of(call->op, loss)->weight / (double)n,
                       cuda_array_of(&call->out[0]), call->add, call->stream);
    return cuda_done(call, error, err);
}

static enum snug_status run_mse_grad(const struct kernel_call *call, struct snug_error *err)
{
    int64_t n = cuda_elems(&call->in[0]);
    return cuda_done(call,
                     cuda_mse_grad(n, cuda_array_of(&call->in[0]), call->in[1].data,
                                   2.0 * attrs_of(call->op, loss)->weight / (double)n,
                                   call->in[2].data, cuda_array_of(&call->out[0]), call->stream),
                     err);
}

CUDA_KERNELS(loss) = {
    {.kind = OP_cross_entropy,
     .name = "cuda",
     .supports = supports_cross_entropy,
     .workspace_bytes = cross_entropy_bytes,
     .run = run_cross_entropy},
    {.kind = OP_cross_entropy_grad,
     .name = "cuda",
     .supports = supports_cross_entropy_grad,
     .run = run_cross_entropy_grad},
    {.kind = OP_mse,
     .name = "cuda",
     .supports = supports_mse,
     .workspace_bytes = mse_bytes,
     .run = run_mse},
    {.kind = OP_mse_grad, .name = "cuda", .supports = supports_mse_grad, .run = run_mse_grad},
};
CUDA_KERNELS_END(loss)
