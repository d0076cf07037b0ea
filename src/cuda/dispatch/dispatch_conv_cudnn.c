/*
 * dispatch_conv_cudnn.c -- conv2d and its gradients with cuDNN.
 *
 * cuDNN uses channels-last weights.  Weights are transposed into the workspace before the call, and
 * their gradient out of it afterwards; for 1 x 1 kernels both layouts are the same.  The bias is
 * added to the result in a second kernel, and its gradient is a column sum.
 *
 * A weight gradient is rounded to the type of the images before it is accumulated.
 */
#include <stdlib.h>

#include "cuda/dispatch/fallback.h"
#include "cuda/kernels/bias.h"
#include "cuda/lib/conv_cudnn.h"
#include "cuda/dispatch/dispatch.h"
#include "cuda/kernels/sums.h"
#include "cuda/kernels/transpose.h"
#include "cuda/dispatch/workspace.h"

struct layout {
    struct cuda_conv_shape shape;
    enum dtype type;
    int64_t n_pixels, n_weights; /* pixels of y; elements of w */
    bool transposes;             /* false if only the bias gradient is wanted */
    size_t library_bytes;
    size_t library, weights, columns, total;
};

struct prepared {
    struct layout layout;
    struct cuda_conv *conv; /* NULL if only the bias gradient is wanted, or cuDNN rejected the op */
    struct cuda_fallback fallback;
};

static const struct tensor *input(const struct program *prog, const struct op *op, int k)
{
    return k < op->n_in && op->in[k] != TENSOR_NONE ? program_tensor(prog, op->in[k]) : NULL;
}

static const struct tensor *output(const struct program *prog, const struct op *op, int k)
{
    return k < op->n_out && op->out[k] != TENSOR_NONE ? program_tensor(prog, op->out[k]) : NULL;
}

/* The tensors in the roles of the forward convolution; NULL if a gradient does not have it. */
struct conv_tensors {
    const struct tensor *x, *w, *y;
};

static struct conv_tensors conv_tensors_of(const struct program *prog, const struct op *op)
{
    switch (op->kind) {
    case OP_conv2d:
        return (struct conv_tensors){input(prog, op, 0), input(prog, op, 1), output(prog, op, 0)};
    case OP_conv2d_grad_x:
        return (struct conv_tensors){output(prog, op, 0), input(prog, op, 1), input(prog, op, 0)};
    default:
        return (struct conv_tensors){input(prog, op, 0), NULL, input(prog, op, 1)};
    }
}

static bool is_aligned(const struct tensor *t)
{
    return t->offset_elems * (int64_t)dtype_bytes(t->dtype) % 16 == 0;
}

static bool supports(const struct program *prog, const struct op *op)
{
    struct conv_tensors tensors = conv_tensors_of(prog, op);
    return cuda_floats_fit(prog, op, 0, 0) && tensors.x->dtype == tensors.y->dtype &&
           is_aligned(tensors.x) && is_aligned(tensors.y) &&
           (tensors.w == NULL || (tensors.w->dtype == tensors.x->dtype && is_aligned(tensors.w)));
}

static struct cuda_conv_shape shape_of(const struct op *op, const struct conv_tensors *tensors)
{
    const int64_t *x = tensors->x->shape.dim, *y = tensors->y->shape.dim;
    const struct image_attrs *a = attrs_of(op, image);
    static const enum cuda_conv_kind kinds[] = {
        [LAYER_forward] = CONV_forward, [LAYER_grad_x] = CONV_grad_x, [LAYER_grad_w] = CONV_grad_w};
    return (struct cuda_conv_shape){
        .kind = kinds[op_layer(op)],
        .n = x[0],
        .x_h = x[1],
        .x_w = x[2],
        .x_c = x[3],
        .y_h = y[1],
        .y_w = y[2],
        .y_c = y[3],
        .kernel_h = tensors->w != NULL ? tensors->w->shape.dim[2] : a->kernel_h,
        .kernel_w = tensors->w != NULL ? tensors->w->shape.dim[3] : a->kernel_w,
        .stride = a->stride,
        .pad = a->pad,
        .groups = a->groups};
}

/* Engines copy operands that are not in the layout they need: both images with channels rounded up
 * to 8, and several copies of the weights, in fp32 if their gradient is split. */
size_t cuda_conv_work_bytes(const struct cuda_conv_shape *s, enum dtype type)
{
    const size_t least = (size_t)1 << 20, n_weight_copies = 8;
    int64_t x = s->n * s->x_h * s->x_w * ((s->x_c + 7) / 8 * 8);
    int64_t y = s->n * s->y_h * s->y_w * ((s->y_c + 7) / 8 * 8);
    int64_t w = (s->y_c + 7) / 8 * 8 * s->kernel_h * s->kernel_w * ((s->x_c + 7) / 8 * 8);
    return least + (size_t)(x + y) * dtype_bytes(type) +
           n_weight_copies * (size_t)w * sizeof(float);
}

static struct layout layout_of(const struct program *prog, const struct op *op)
{
    struct conv_tensors tensors = conv_tensors_of(prog, op);
    bool is_grad_w = op_layer(op) == LAYER_grad_w;
    struct layout layout = {.shape = shape_of(op, &tensors), .type = tensors.x->dtype};
    const struct cuda_conv_shape *s = &layout.shape;
    layout.n_pixels = s->n * s->y_h * s->y_w;
    layout.n_weights = s->y_c * s->kernel_h * s->kernel_w * (s->x_c / s->groups);
    layout.transposes = !is_grad_w || output(prog, op, 0) != NULL;
    if (layout.transposes) {
        layout.library_bytes = cuda_conv_work_bytes(s, layout.type);
        layout.library = cuda_work_take(&layout.total, layout.library_bytes);
        layout.weights =
            cuda_work_take(&layout.total, (size_t)layout.n_weights * dtype_bytes(layout.type));
    }
    if (is_grad_w && output(prog, op, 1) != NULL)
        layout.columns = cuda_work_take(
            &layout.total, (size_t)cuda_sum_columns_work(layout.n_pixels, s->y_c) * sizeof(float));
    return layout;
}

static size_t workspace_bytes(const struct program *prog, const struct op *op,
                              const struct device_facts *facts)
{
    size_t bytes = cuda_work_bytes(layout_of(prog, op).total);
    return cuda_fallback_workspace(cuda_kernels_conv, bytes, prog, op, facts);
}

static void release(void *prepared)
{
    struct prepared *p = prepared;
    if (p != NULL) {
        cuda_fallback_release(&p->fallback);
        cuda_conv_release(p->conv);
    }
    free(p);
}

static enum snug_status prepare(const struct program *prog, const struct op *op,
                                const struct device_facts *facts, void **prepared,
                                struct snug_error *err)
{
    struct prepared *p = calloc(1, sizeof *p);
    if (p == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "convolution: out of memory while preparing it");
    p->layout = layout_of(prog, op);
    enum snug_status status = SNUG_OK;
    if (p->layout.transposes)
        status = cuda_conv_prepare(&p->layout.shape, p->layout.type, p->layout.type,
                                   p->layout.library_bytes, &p->conv, err);
    if (status == SNUG_OK && p->layout.transposes && p->conv == NULL)
        status = cuda_fallback_prepare(cuda_kernels_conv, prog, op, facts, &p->fallback, err);
    if (status == SNUG_OK)
        *prepared = p;
    else
        release(p);
    return status;
}

/* From [O,I,K] to [O,K,I], where K is the kernel height times width. */
static int transpose_in(const struct kernel_call *call, const struct operand *w, void *to)
{
    const struct layout *layout = &((const struct prepared *)call->prepared)->layout;
    const struct cuda_conv_shape *s = &layout->shape;
    struct cuda_array y = {.dtype = layout->type, .data = to};
    return cuda_transpose(s->y_c, s->x_c / s->groups, s->kernel_h * s->kernel_w, cuda_array_of(w),
                          y, false, call->stream);
}

static int transpose_out(const struct kernel_call *call, void *from, const struct operand *w)
{
    const struct layout *layout = &((const struct prepared *)call->prepared)->layout;
    const struct cuda_conv_shape *s = &layout->shape;
    struct cuda_array x = {.dtype = layout->type, .data = from};
    return cuda_transpose(s->y_c, s->kernel_h * s->kernel_w, s->x_c / s->groups, x,
                          cuda_array_of(w), call->add, call->stream);
}

static enum snug_status run_library(const struct kernel_call *call, void *x, void *w, void *y,
                                    struct snug_error *err)
{
    const struct prepared *p = call->prepared;
    struct cuda_conv_call conv = {.x = x,
                                  .w = w,
                                  .y = y,
                                  .work = cuda_work_at(call->work, p->layout.library),
                                  .stream = call->stream};
    return cuda_conv_run(p->conv, &conv, err);
}

/* conv2d and conv2d_grad_x: the result is an image. */
static enum snug_status run_image(const struct kernel_call *call, struct snug_error *err)
{
    const struct prepared *p = call->prepared;
    const struct cuda_conv_shape *s = &p->layout.shape;
    if (p->fallback.kernel != NULL)
        return cuda_fallback_run(&p->fallback, call, err);
    const struct operand *w = &call->in[1], *bias = &call->in[2], *y = &call->out[0];
    void *weights = w->data;
    if (s->kernel_h * s->kernel_w > 1) {
        weights = cuda_work_at(call->work, p->layout.weights);
        TRY(cuda_done(call, transpose_in(call, w, weights), err));
    }
    if (s->kind == CONV_grad_x)
        return run_library(call, y->data, weights, call->in[0].data, err);
    TRY(run_library(call, call->in[0].data, weights, y->data, err));
    if (bias->data == NULL)
        return SNUG_OK;
    struct cuda_array image = cuda_array_of(y), none = {.dtype = DTYPE_f32};
    return cuda_done(call,
                     cuda_add_bias(p->layout.n_pixels, s->y_c, image, cuda_array_of(bias), none,
                                   image, call->stream),
                     err);
}

static enum snug_status run_grad_w(const struct kernel_call *call, struct snug_error *err)
{
    const struct prepared *p = call->prepared;
    if (p->fallback.kernel != NULL)
        return cuda_fallback_run(&p->fallback, call, err);
    const struct operand *dy = &call->in[1], *dw = &call->out[0], *dbias = &call->out[1];
    if (dw->data != NULL) {
        void *weights = cuda_work_at(call->work, p->layout.weights);
        TRY(run_library(call, call->in[0].data, weights, dy->data, err));
        TRY(cuda_done(call, transpose_out(call, weights, dw), err));
    }
    if (dbias->data == NULL)
        return SNUG_OK;
    return cuda_done(call,
                     cuda_sum_columns(cuda_array_of(dy), p->layout.n_pixels, p->layout.shape.y_c,
                                      cuda_work_at(call->work, p->layout.columns),
                                      cuda_array_of(dbias), call->add, call->stream),
                     err);
}

#define CONV_KERNEL(op_kind, runner)                                                              \
    {                                                                                             \
        .kind = OP_##op_kind, .name = "cudnn", .supports = supports,                              \
        .workspace_bytes = workspace_bytes, .prepare = prepare, .release = release, .run = runner \
    }
CUDA_KERNELS(conv_cudnn) = {CONV_KERNEL(conv2d, run_image), CONV_KERNEL(conv2d_grad_x, run_image),
                            CONV_KERNEL(conv2d_grad_w, run_grad_w)};
CUDA_KERNELS_END(conv_cudnn)
