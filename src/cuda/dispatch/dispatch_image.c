/*
 * dispatch_image.c -- pooling, positions and layouts of images with image.cu, sums.cu and
 * transpose.cu.
 */
#include "cuda/kernels/elementwise.h"
#include "cuda/kernels/image.h"
#include "cuda/dispatch/dispatch.h"
#include "cuda/kernels/sums.h"
#include "cuda/kernels/transpose.h"

static bool supports(const struct program *prog, const struct op *op)
{
    return cuda_floats_fit(prog, op, 0, 0);
}

static struct cuda_conv_shape pool_of(const struct kernel_call *call, const struct operand *x,
                                      const struct operand *y)
{
    const int64_t *from = x->tensor->shape.dim, *to = y->tensor->shape.dim;
    const struct image_attrs *a = attrs_of(call->op, image);
    return (struct cuda_conv_shape){.n = from[0],
                                    .x_h = from[1],
                                    .x_w = from[2],
                                    .x_c = from[3],
                                    .y_h = to[1],
                                    .y_w = to[2],
                                    .y_c = to[3],
                                    .kernel_h = a->kernel_h,
                                    .kernel_w = a->kernel_w,
                                    .stride = a->stride,
                                    .pad = a->pad,
                                    .groups = 1};
}

static enum snug_status run_maxpool(const struct kernel_call *call, struct snug_error *err)
{
    struct cuda_conv_shape shape = pool_of(call, &call->in[0], &call->out[0]);
    return cuda_done(call,
                     cuda_maxpool(&shape, cuda_array_of(&call->in[0]), cuda_array_of(&call->out[0]),
                                  call->out[1].data, call->stream),
                     err);
}

static enum snug_status run_maxpool_grad(const struct kernel_call *call, struct snug_error *err)
{
    struct cuda_conv_shape shape = pool_of(call, &call->out[0], &call->in[0]);
    return cuda_done(call,
                     cuda_maxpool_grad(&shape, cuda_array_of(&call->in[0]), call->in[1].data,
                                       cuda_array_of(&call->out[0]), call->stream),
                     err);
}

static enum snug_status run_meanpool(const struct kernel_call *call, struct snug_error *err)
{
    bool is_grad = op_has(call->op, TRAIT_grad);
    struct cuda_array from = cuda_array_of(&call->in[0]), to = cuda_array_of(&call->out[0]);
    const struct shape *image = &(is_grad ? &call->out[0] : &call->in[0])->tensor->shape;
    int64_t n = image->dim[0], n_pixels = shape_rows(image) / n, channels = shape_last(image);
    return cuda_done(call,
                     is_grad ? cuda_meanpool_grad(n, n_pixels, channels, from, to, call->stream)
                             : cuda_meanpool(n, n_pixels, channels, from, to, call->stream),
                     err);
}

static enum snug_status run_add_positions(const struct kernel_call *call, struct snug_error *err)
{
    return cuda_done(call,
                     cuda_add_repeated(cuda_elems(&call->in[0]), cuda_elems(&call->in[1]),
                                       cuda_array_of(&call->in[0]), cuda_array_of(&call->in[1]),
                                       cuda_array_of(&call->out[0]), call->stream),
                     err);
}

static enum snug_status run_add_positions_grad(const struct kernel_call *call,
                                               struct snug_error *err)
{
    const struct operand *dy = &call->in[0], *dx = &call->out[0], *dpositions = &call->out[1];
    int64_t n = dy->tensor->shape.dim[0], period = cuda_elems(dy) / n;
    int error = 0;
    if (dpositions->data != NULL)
        error = cuda_sum_rows(cuda_array_of(dy), n, period, period, cuda_array_of(dpositions),
                              call->add, call->stream);
    if (error == 0 && dx->data != NULL && dx->data != dy->data)
        error = cuda_scale(1.0f, n * period, cuda_array_of(dy), cuda_array_of(dx), call->stream);
    return cuda_done(call, error, err);
}

/* Each image is transposed as a matrix of a x b. */
static enum snug_status run_transpose(const struct kernel_call *call, int64_t a, int64_t b,
                                      struct snug_error *err)
{
    return cuda_done(call,
                     cuda_transpose(call->in[0].tensor->shape.dim[0], a, b,
                                    cuda_array_of(&call->in[0]), cuda_array_of(&call->out[0]),
                                    false, call->stream),
                     err);
}

static enum snug_status run_channels_last(const struct kernel_call *call, struct snug_error *err)
{
    const int64_t *dim = call->in[0].tensor->shape.dim;
    return run_transpose(call, dim[1], dim[2] * dim[3], err);
}

static enum snug_status run_channels_first(const struct kernel_call *call, struct snug_error *err)
{
    const int64_t *dim = call->in[0].tensor->shape.dim;
    return run_transpose(call, dim[1] * dim[2], dim[3], err);
}

CUDA_KERNELS(image) = {
    {.kind = OP_maxpool, .name = "cuda", .supports = supports, .run = run_maxpool},
    {.kind = OP_maxpool_grad, .name = "cuda", .supports = supports, .run = run_maxpool_grad},
    {.kind = OP_meanpool, .name = "cuda", .supports = supports, .run = run_meanpool},
    {.kind = OP_meanpool_grad, .name = "cuda", .supports = supports, .run = run_meanpool},
    {.kind = OP_add_positions, .name = "cuda", .supports = supports, .run = run_add_positions},
    {.kind = OP_add_positions_grad,
     .name = "cuda",
     .supports = supports,
     .run = run_add_positions_grad},
    {.kind = OP_channels_last, .name = "cuda", .supports = supports, .run = run_channels_last},
    {.kind = OP_channels_first, .name = "cuda", .supports = supports, .run = run_channels_first},
};
CUDA_KERNELS_END(image)
