/*
 * dispatch_conv.c -- conv2d and its gradients with conv.cu, where dispatch_conv_cudnn.c does not
 * take them.
 */
#include "cuda/kernels/conv.h"
#include "cuda/dispatch/dispatch.h"
#include "cuda/kernels/sums.h"
#include "cuda/dispatch/workspace.h"

static bool supports(const struct program *prog, const struct op *op)
{
    return cuda_floats_fit(prog, op, 0, 0);
}

/* From the shapes of x and y, and of w unless the attributes have the kernel size (w is NULL). */
static struct cuda_conv_shape conv_of(const struct op *op, const struct shape *x,
                                      const struct shape *y, const struct shape *w)
{
    const struct image_attrs *a = attrs_of(op, image);
    return (struct cuda_conv_shape){.n = x->dim[0],
                                    .x_h = x->dim[1],
                                    .x_w = x->dim[2],
                                    .x_c = x->dim[3],
                                    .y_h = y->dim[1],
                                    .y_w = y->dim[2],
                                    .y_c = y->dim[3],
                                    .kernel_h = w != NULL ? w->dim[2] : a->kernel_h,
                                    .kernel_w = w != NULL ? w->dim[3] : a->kernel_w,
                                    .stride = a->stride,
                                    .pad = a->pad,
                                    .groups = a->groups};
}

static enum snug_status run_conv(const struct kernel_call *call, struct snug_error *err)
{
    const struct operand *x = &call->in[0], *w = &call->in[1], *y = &call->out[0];
    struct cuda_conv_shape shape =
        conv_of(call->op, &x->tensor->shape, &y->tensor->shape, &w->tensor->shape);
    return cuda_done(call,
                     cuda_conv(&shape, cuda_array_of(x), cuda_array_of(w),
                               cuda_array_of(&call->in[2]), cuda_array_of(y), call->stream),
                     err);
}

static enum snug_status run_grad_x(const struct kernel_call *call, struct snug_error *err)
{
    const struct operand *dy = &call->in[0], *w = &call->in[1], *dx = &call->out[0];
    struct cuda_conv_shape shape =
        conv_of(call->op, &dx->tensor->shape, &dy->tensor->shape, &w->tensor->shape);
    return cuda_done(call,
                     cuda_conv_grad_x(&shape, cuda_array_of(dy), cuda_array_of(w),
                                      cuda_array_of(dx), call->stream),
                     err);
}

struct layout {
    struct cuda_conv_shape shape;
    int64_t n_pixels;
    size_t parts, columns, total;
};

static struct layout grad_w_layout(const struct op *op, const struct shape *x,
                                   const struct shape *dy)
{
    struct layout l = {.shape = conv_of(op, x, dy, NULL), .n_pixels = shape_rows(dy)};
    const struct cuda_conv_shape *s = &l.shape;
    int64_t n_weights = s->y_c * (s->x_c / s->groups) * s->kernel_h * s->kernel_w;
    if (op->out[0] != TENSOR_NONE)
        l.parts = cuda_work_take(
            &l.total, (size_t)(cuda_conv_parts(l.n_pixels, s->groups) * n_weights) * sizeof(float));
    if (op->n_out > 1 && op->out[1] != TENSOR_NONE)
        l.columns = cuda_work_take(&l.total, (size_t)cuda_sum_columns_work(l.n_pixels, s->y_c) *
                                                 sizeof(float));
    return l;
}

static size_t grad_w_bytes(const struct program *prog, const struct op *op,
                           const struct device_facts *facts)
{
    (void)facts;
    return cuda_work_bytes(grad_w_layout(op, &program_tensor(prog, op->in[0])->shape,
                                         &program_tensor(prog, op->in[1])->shape)
                               .total);
}

static enum snug_status run_grad_w(const struct kernel_call *call, struct snug_error *err)
{
    const struct operand *x = &call->in[0], *dy = &call->in[1];
    const struct operand *dw = &call->out[0], *dbias = &call->out[1];
    struct layout l = grad_w_layout(call->op, &x->tensor->shape, &dy->tensor->shape);
    int error = 0;
    if (dw->data != NULL)
        error = cuda_conv_grad_w(&l.shape, cuda_array_of(x), cuda_array_of(dy),
                                 cuda_work_at(call->work, l.parts), cuda_array_of(dw), call->add,
                                 call->stream);
    if (error == 0 && dbias->data != NULL)
        error = cuda_sum_columns(cuda_array_of(dy), l.n_pixels, l.shape.y_c,
                                 cuda_work_at(call->work, l.columns), cuda_array_of(dbias),
                                 call->add, call->stream);
    return cuda_done(call, error, err);
}

CUDA_KERNELS(conv) = {
    {.kind = OP_conv2d, .name = "cuda", .supports = supports, .run = run_conv},
    {.kind = OP_conv2d_grad_x, .name = "cuda", .supports = supports, .run = run_grad_x},
    {.kind = OP_conv2d_grad_w,
     .name = "cuda",
     .supports = supports,
     .workspace_bytes = grad_w_bytes,
     .run = run_grad_w},
};
CUDA_KERNELS_END(conv)
