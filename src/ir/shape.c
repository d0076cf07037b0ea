/*
 * shape.c -- shape inference: the shapes of an op's outputs from the shapes of its inputs.
 *
 * There is one function per SHAPE rule of ops.def; those of attention are in shape_attention.c,
 * those of the optimizer ops in shape_update.c.  A rule sets out[k] for each output, or
 * out[k].n_dims to UNCHECKED (updates in place).  Errors name the op and the operand.
 */
#include "ir/shape_rules.h"

static enum snug_status shape_one(const struct program *prog, const struct op *op,
                                  struct shape *out, struct snug_error *err)
{
    (void)prog, (void)op, (void)err;
    out[0] = vector(1);
    return SNUG_OK;
}

static enum snug_status shape_same(const struct program *prog, const struct op *op,
                                   struct shape *out, struct snug_error *err)
{
    (void)err;
    out[0] = *in_shape(prog, op, 0);
    return SNUG_OK;
}

static enum snug_status shape_same_pair(const struct program *prog, const struct op *op,
                                        struct shape *out, struct snug_error *err)
{
    out[0] = *in_shape(prog, op, 0);
    if (!shape_equal(&out[0], in_shape(prog, op, 1)))
        return wrong(prog, op, 1, "of the same shape as the first", err);
    return SNUG_OK;
}

static enum snug_status shape_embedding(const struct program *prog, const struct op *op,
                                        struct shape *out, struct snug_error *err)
{
    const struct shape *ids = in_shape(prog, op, 0), *table = in_shape(prog, op, 1);
    if (prog->tensors[op->in[0]].dtype != DTYPE_i32 || ids->n_dims < 1 || ids->n_dims >= MAX_DIMS)
        return wrong(prog, op, 0, "i32 ids", err);
    if (table->n_dims != 2)
        return wrong(prog, op, 1, "[vocabulary, width]", err);
    if (op->n_in > 2 && op->in[2] != TENSOR_NONE) {
        const struct shape *positions = in_shape(prog, op, 2);
        if (positions->n_dims != 2 || positions->dim[1] != table->dim[1] ||
            positions->dim[0] < shape_last(ids))
            return wrong(prog, op, 2,
                         "[positions, width of the table], with a position for each time step",
                         err);
    }
    out[0] = *ids;
    out[0].dim[out[0].n_dims++] = table->dim[1];
    return SNUG_OK;
}

static enum snug_status shape_linear(const struct program *prog, const struct op *op,
                                     struct shape *out, struct snug_error *err)
{
    const struct shape *x = in_shape(prog, op, 0), *w = in_shape(prog, op, 1);
    if (x->n_dims < 1 || w->n_dims != 2)
        return wrong(prog, op, 1, "a matrix", err);
    int64_t n_in = w->dim[attrs_of(op, linear)->layout ? 0 : 1],
            n_out = w->dim[attrs_of(op, linear)->layout ? 1 : 0];
    if (shape_last(x) != n_in)
        return wrong(prog, op, 1, "a matrix whose input dimension is the width of x", err);
    if (op->n_in > 2 && op->in[2] != TENSOR_NONE && tensor_elems(prog, op->in[2]) != n_out)
        return wrong(prog, op, 2, "a bias with one element per output", err);
    out[0] = out[1] = with_last(x, n_out);
    if (op->n_in > 3 && op->in[3] != TENSOR_NONE && !shape_equal(in_shape(prog, op, 3), &out[0]))
        return wrong(prog, op, 3, "of the shape of the output", err);
    return SNUG_OK;
}

static enum snug_status check_norm(const struct program *prog, const struct op *op, int gamma,
                                   int64_t width, struct snug_error *err)
{
    for (int k = gamma; k < gamma + 2; k++)
        if (tensor_elems(prog, op->in[k]) != width)
            return wrong(prog, op, k, "a vector with the width of x", err);
    return SNUG_OK;
}

static enum snug_status shape_layernorm(const struct program *prog, const struct op *op,
                                        struct shape *out, struct snug_error *err)
{
    const struct shape *x = in_shape(prog, op, 0);
    TRY(check_norm(prog, op, 1, shape_last(x), err));
    out[0] = *x;
    out[1] = out[2] = vector(shape_rows(x));
    return SNUG_OK;
}

static enum snug_status shape_add_layernorm(const struct program *prog, const struct op *op,
                                            struct shape *out, struct snug_error *err)
{
    const struct shape *x = in_shape(prog, op, 0);
    if (!shape_equal(x, in_shape(prog, op, 1)))
        return wrong(prog, op, 1, "of the same shape as the first", err);
    TRY(check_norm(prog, op, 2, shape_last(x), err));
    out[0] = out[1] = *x;
    out[2] = out[3] = vector(shape_rows(x));
    return SNUG_OK;
}

/* gamma covers a row of x, or a head of it. */
static enum snug_status shape_rmsnorm(const struct program *prog, const struct op *op,
                                      struct shape *out, struct snug_error *err)
{
    const struct shape *x = in_shape(prog, op, 0);
    int64_t width = tensor_elems(prog, op->in[1]);
    if (width < 1 || shape_last(x) % width != 0)
        return wrong(prog, op, 1, "a vector whose width divides that of x", err);
    out[0] = *x;
    out[1] = vector(shape_elems(x) / width);
    return SNUG_OK;
}

static enum snug_status shape_add_rmsnorm(const struct program *prog, const struct op *op,
                                          struct shape *out, struct snug_error *err)
{
    const struct shape *x = in_shape(prog, op, 0);
    if (!shape_equal(x, in_shape(prog, op, 1)))
        return wrong(prog, op, 1, "of the same shape as the first", err);
    if (tensor_elems(prog, op->in[2]) != shape_last(x))
        return wrong(prog, op, 2, "a vector with the width of x", err);
    out[0] = out[1] = *x;
    out[2] = vector(shape_rows(x));
    return SNUG_OK;
}

static enum snug_status shape_rmsnorm_grad(const struct program *prog, const struct op *op,
                                           struct shape *out, struct snug_error *err)
{
    const struct shape *dy = in_shape(prog, op, 0);
    if (!shape_equal(dy, in_shape(prog, op, 1)))
        return wrong(prog, op, 1, "of the same shape as dy", err);
    int64_t width = tensor_elems(prog, op->in[2]);
    if (width < 1 || shape_last(dy) % width != 0)
        return wrong(prog, op, 2, "a vector whose width divides that of dy", err);
    if (tensor_elems(prog, op->in[3]) != shape_elems(dy) / width)
        return wrong(prog, op, 3, "an element for each row that gamma covers", err);
    if (op->n_in > 4 && op->in[4] != TENSOR_NONE && !shape_equal(dy, in_shape(prog, op, 4)))
        return wrong(prog, op, 4, "of the same shape as dy", err);
    out[0] = *dy;
    out[1] = *in_shape(prog, op, 2);
    return SNUG_OK;
}

static enum snug_status shape_rope(const struct program *prog, const struct op *op,
                                   struct shape *out, struct snug_error *err)
{
    const struct shape *x = in_shape(prog, op, 0);
    const struct rope_attrs *rope = attrs_of(op, rope);
    if (x->n_dims != 3 || rope->heads < 1 || x->dim[2] % (2 * rope->heads) != 0)
        return wrong(prog, op, 0, "[batch, time, heads x an even width of a head]", err);
    if (!(rope->theta > 0) || !(rope->rope_factor > 0) || !(rope->low_freq > 0) ||
        !(rope->high_freq > rope->low_freq) || rope->rope_length < 0)
        return snug_fail(err, SNUG_BAD_PROGRAM,
                         "rope: theta and the factors should be above 0, high_freq above low_freq");
    if (op->n_in > 1 && op->in[1] != TENSOR_NONE &&
        (prog->tensors[op->in[1]].dtype != DTYPE_i32 ||
         tensor_elems(prog, op->in[1]) != x->dim[0] * x->dim[1]))
        return wrong(prog, op, 1, "i32 positions [batch, time]", err);
    out[0] = *x;
    return SNUG_OK;
}

static enum snug_status shape_swiglu_grad(const struct program *prog, const struct op *op,
                                          struct shape *out, struct snug_error *err)
{
    for (int k = 1; k < 3; k++)
        if (!shape_equal(in_shape(prog, op, 0), in_shape(prog, op, k)))
            return wrong(prog, op, k, "of the same shape as dy", err);
    out[0] = out[1] = out[2] = *in_shape(prog, op, 0);
    return SNUG_OK;
}

static enum snug_status check_targets(const struct program *prog, const struct op *op, int k,
                                      int64_t rows, struct snug_error *err)
{
    if (prog->tensors[op->in[k]].dtype != DTYPE_i32 || tensor_elems(prog, op->in[k]) != rows)
        return wrong(prog, op, k, "one i32 class per row", err);
    return SNUG_OK;
}

static enum snug_status shape_cross_entropy(const struct program *prog, const struct op *op,
                                            struct shape *out, struct snug_error *err)
{
    int64_t rows = shape_rows(in_shape(prog, op, 0));
    TRY(check_targets(prog, op, 1, rows, err));
    out[0] = vector(1);
    out[1] = vector(rows);
    return SNUG_OK;
}

static enum snug_status shape_mse(const struct program *prog, const struct op *op,
                                  struct shape *out, struct snug_error *err)
{
    if (!shape_equal(in_shape(prog, op, 0), in_shape(prog, op, 1)))
        return wrong(prog, op, 1, "a target of the shape of the prediction", err);
    out[0] = vector(1);
    return SNUG_OK;
}

static enum snug_status check_head(const struct program *prog, const struct op *op,
                                   struct snug_error *err)
{
    const struct shape *x = in_shape(prog, op, 0), *w = in_shape(prog, op, 1);
    if (w->n_dims != 2 || w->dim[1] != shape_last(x))
        return wrong(prog, op, 1, "[vocabulary, width of x]", err);
    return check_targets(prog, op, 2, shape_rows(x), err);
}

static enum snug_status shape_linear_cross_entropy(const struct program *prog, const struct op *op,
                                                   struct shape *out, struct snug_error *err)
{
    TRY(check_head(prog, op, err));
    out[0] = vector(1);
    out[1] = vector(shape_rows(in_shape(prog, op, 0)));
    return SNUG_OK;
}

static enum snug_status shape_linear_cross_entropy_grad(const struct program *prog,
                                                        const struct op *op, struct shape *out,
                                                        struct snug_error *err)
{
    TRY(check_head(prog, op, err));
    out[0] = *in_shape(prog, op, 0);
    out[1] = *in_shape(prog, op, 1);
    return SNUG_OK;
}

static enum snug_status shape_linear_cross_entropy_train(const struct program *prog,
                                                         const struct op *op, struct shape *out,
                                                         struct snug_error *err)
{
    TRY(shape_linear_cross_entropy(prog, op, out, err));
    return shape_linear_cross_entropy_grad(prog, op, out + 2, err);
}

static enum snug_status shape_take_row(const struct program *prog, const struct op *op,
                                       struct shape *out, struct snug_error *err)
{
    const struct shape *x = in_shape(prog, op, 0);
    if (x->n_dims != 3)
        return wrong(prog, op, 0, "[batch, time, width]", err);
    out[0] = (struct shape){2, {x->dim[0], x->dim[2]}};
    return SNUG_OK;
}

static enum snug_status shape_embedding_grad(const struct program *prog, const struct op *op,
                                             struct shape *out, struct snug_error *err)
{
    (void)err;
    out[0] = *in_shape(prog, op, 2);
    out[1].n_dims = UNCHECKED;
    if (op->in[3] != TENSOR_NONE)
        out[1] = *in_shape(prog, op, 3);
    return SNUG_OK;
}

static enum snug_status shape_linear_grad_x(const struct program *prog, const struct op *op,
                                            struct shape *out, struct snug_error *err)
{
    const struct shape *dy = in_shape(prog, op, 0), *w = in_shape(prog, op, 1);
    if (w->n_dims != 2 || w->dim[attrs_of(op, linear)->layout ? 1 : 0] != shape_last(dy))
        return wrong(prog, op, 1, "a matrix whose output dimension is the width of dy", err);
    out[0] = with_last(dy, w->dim[attrs_of(op, linear)->layout ? 0 : 1]);
    if (op->n_in > 2 && op->in[2] != TENSOR_NONE && !shape_equal(&out[0], in_shape(prog, op, 2)))
        return wrong(prog, op, 2, "of the shape of the output", err);
    out[1] = vector(shape_last(&out[0]));
    return SNUG_OK;
}

static enum snug_status shape_linear_grad_w(const struct program *prog, const struct op *op,
                                            struct shape *out, struct snug_error *err)
{
    const struct shape *x = in_shape(prog, op, 0), *dy = in_shape(prog, op, 1);
    if (shape_rows(x) != shape_rows(dy))
        return wrong(prog, op, 1, "a gradient with as many rows as x", err);
    int64_t n_in = shape_last(x), n_out = shape_last(dy);
    out[0] = (struct shape){
        2,
        {attrs_of(op, linear)->layout ? n_in : n_out, attrs_of(op, linear)->layout ? n_out : n_in}};
    out[1] = vector(n_out);
    return SNUG_OK;
}

static enum snug_status shape_layernorm_grad(const struct program *prog, const struct op *op,
                                             struct shape *out, struct snug_error *err)
{
    const struct shape *dy = in_shape(prog, op, 0);
    if (!shape_equal(dy, in_shape(prog, op, 1)))
        return wrong(prog, op, 1, "of the same shape as dy", err);
    out[0] = *dy;
    out[1] = out[2] = out[3] = vector(shape_last(dy));
    return SNUG_OK;
}

/* ---- images -------------------------------------------------------------------------------- */

/* Output size of a sliding window along one side; 0 if the window does not fit. */
static int64_t window_outputs(int64_t side, int64_t kernel, const struct image_attrs *attrs)
{
    int64_t slack = side + 2 * attrs->pad - kernel;
    return slack < 0 ? 0 : slack / attrs->stride + 1;
}

/* The output shape of a window that slides over input 0.  Fails if the window does not fit. */
static enum snug_status slide(const struct program *prog, const struct op *op, int64_t kernel_h,
                              int64_t kernel_w, int64_t channels, struct shape *out,
                              struct snug_error *err)
{
    const struct shape *x = in_shape(prog, op, 0);
    const struct image_attrs *a = attrs_of(op, image);
    if (x->n_dims != 4)
        return wrong(prog, op, 0, "images [count, height, width, channels]", err);
    if (a->stride < 1 || a->pad < 0 || kernel_h < 1 || kernel_w < 1 || a->stride > INT16_MAX ||
        a->pad > INT16_MAX || kernel_h > INT16_MAX || kernel_w > INT16_MAX)
        return snug_fail(err, SNUG_BAD_PROGRAM, "%s: stride, pad or kernel is out of range",
                         op_infos[op->kind].name);
    *out = (struct shape){4,
                          {x->dim[0], window_outputs(x->dim[1], kernel_h, a),
                           window_outputs(x->dim[2], kernel_w, a), channels}};
    if (out->dim[1] < 1 || out->dim[2] < 1)
        return wrong(prog, op, 0, "at least as large as the window", err);
    return SNUG_OK;
}

static enum snug_status shape_conv2d(const struct program *prog, const struct op *op,
                                     struct shape *out, struct snug_error *err)
{
    const struct shape *x = in_shape(prog, op, 0), *w = in_shape(prog, op, 1);
    int64_t groups = attrs_of(op, image)->groups;
    if (x->n_dims != 4)
        return wrong(prog, op, 0, "images [count, height, width, channels]", err);
    if (w->n_dims != 4 || groups < 1 || w->dim[0] % groups != 0 || w->dim[1] * groups != x->dim[3])
        return wrong(prog, op, 1, "[out, channels of x / groups, height, width]", err);
    if (op->n_in > 2 && op->in[2] != TENSOR_NONE && tensor_elems(prog, op->in[2]) != w->dim[0])
        return wrong(prog, op, 2, "a bias with one element per output channel", err);
    return slide(prog, op, w->dim[2], w->dim[3], w->dim[0], &out[0], err);
}

static enum snug_status shape_conv2d_grad_x(const struct program *prog, const struct op *op,
                                            struct shape *out, struct snug_error *err)
{
    const struct shape *dy = in_shape(prog, op, 0), *w = in_shape(prog, op, 1);
    const struct image_attrs *a = attrs_of(op, image);
    if (w->n_dims != 4 || dy->n_dims != 4 || a->stride < 1 || a->groups < 1 ||
        w->dim[0] != dy->dim[3] || window_outputs(a->height, w->dim[2], a) != dy->dim[1] ||
        window_outputs(a->width, w->dim[3], a) != dy->dim[2])
        return wrong(prog, op, 0, "of the output shape of W on a height x width image", err);
    out[0] = (struct shape){4, {dy->dim[0], a->height, a->width, w->dim[1] * a->groups}};
    return SNUG_OK;
}

static enum snug_status shape_conv2d_grad_w(const struct program *prog, const struct op *op,
                                            struct shape *out, struct snug_error *err)
{
    const struct shape *x = in_shape(prog, op, 0), *dy = in_shape(prog, op, 1);
    const struct image_attrs *a = attrs_of(op, image);
    struct shape y;
    TRY(slide(prog, op, a->kernel_h, a->kernel_w, shape_last(dy), &y, err));
    if (!shape_equal(dy, &y) || a->groups < 1 || x->dim[3] % a->groups != 0 ||
        dy->dim[3] % a->groups != 0)
        return wrong(prog, op, 1, "of the shape of the convolution's output on x", err);
    out[0] = (struct shape){4, {dy->dim[3], x->dim[3] / a->groups, a->kernel_h, a->kernel_w}};
    out[1] = vector(dy->dim[3]);
    return SNUG_OK;
}

/* Inputs gamma to end - 1 must have one element per channel; input r, if given, the shape of x. */
static enum snug_status check_batchnorm(const struct program *prog, const struct op *op, int gamma,
                                        int end, int r, struct snug_error *err)
{
    const struct shape *x = in_shape(prog, op, 0);
    if (op->attrs.act != ACT_none && op->attrs.act != ACT_relu)
        return snug_fail(err, SNUG_BAD_PROGRAM, "%s: act should be none or relu",
                         op_infos[op->kind].name);
    for (int k = gamma; k < end; k++)
        if (k != r && tensor_elems(prog, op->in[k]) != shape_last(x))
            return wrong(prog, op, k, "a vector with one element per channel", err);
    if (r > 0 && r < op->n_in && op->in[r] != TENSOR_NONE && !shape_equal(x, in_shape(prog, op, r)))
        return wrong(prog, op, r, "of the same shape as the first", err);
    return SNUG_OK;
}

static enum snug_status shape_batchnorm(const struct program *prog, const struct op *op,
                                        struct shape *out, struct snug_error *err)
{
    TRY(check_batchnorm(prog, op, 1, 3, 3, err));
    out[0] = *in_shape(prog, op, 0);
    out[1] = out[2] = vector(shape_last(&out[0]));
    return SNUG_OK;
}

static enum snug_status shape_batchnorm_eval(const struct program *prog, const struct op *op,
                                             struct shape *out, struct snug_error *err)
{
    TRY(check_batchnorm(prog, op, 1, 5, 5, err));
    out[0] = *in_shape(prog, op, 0);
    return SNUG_OK;
}

static enum snug_status shape_batchnorm_grad(const struct program *prog, const struct op *op,
                                             struct shape *out, struct snug_error *err)
{
    TRY(check_batchnorm(prog, op, 2, 6, 6, err));
    out[0] = out[3] = *in_shape(prog, op, 0);
    if (!shape_equal(&out[0], in_shape(prog, op, 1)))
        return wrong(prog, op, 1, "of the same shape as dy", err);
    out[1] = out[2] = vector(shape_last(&out[0]));
    return SNUG_OK;
}

static enum snug_status shape_maxpool(const struct program *prog, const struct op *op,
                                      struct shape *out, struct snug_error *err)
{
    const struct image_attrs *a = attrs_of(op, image);
    if (a->kernel_h > 15 || a->kernel_w > 15 || 2 * a->pad > a->kernel_h ||
        2 * a->pad > a->kernel_w)
        return snug_fail(err, SNUG_BAD_PROGRAM,
                         "maxpool: the window is at most 15 x 15, and pad at most half of it");
    TRY(slide(prog, op, a->kernel_h, a->kernel_w, shape_last(in_shape(prog, op, 0)), &out[0], err));
    out[1] = out[0];
    return SNUG_OK;
}

static enum snug_status shape_maxpool_grad(const struct program *prog, const struct op *op,
                                           struct shape *out, struct snug_error *err)
{
    const struct shape *dy = in_shape(prog, op, 0);
    const struct image_attrs *a = attrs_of(op, image);
    if (!shape_equal(dy, in_shape(prog, op, 1)) || prog->tensors[op->in[1]].dtype != DTYPE_u8)
        return wrong(prog, op, 1, "u8 indices of the shape of dy", err);
    if (dy->n_dims != 4 || a->stride < 1 ||
        window_outputs(a->height, a->kernel_h, a) != dy->dim[1] ||
        window_outputs(a->width, a->kernel_w, a) != dy->dim[2])
        return wrong(prog, op, 0, "of the output shape of pooling a height x width image", err);
    out[0] = (struct shape){4, {dy->dim[0], a->height, a->width, dy->dim[3]}};
    return SNUG_OK;
}

static enum snug_status shape_meanpool(const struct program *prog, const struct op *op,
                                       struct shape *out, struct snug_error *err)
{
    const struct shape *x = in_shape(prog, op, 0);
    if (x->n_dims < 3)
        return wrong(prog, op, 0, "[count, .., channels]", err);
    out[0] = (struct shape){2, {x->dim[0], shape_last(x)}};
    return SNUG_OK;
}

static enum snug_status shape_meanpool_grad(const struct program *prog, const struct op *op,
                                            struct shape *out, struct snug_error *err)
{
    const struct shape *dy = in_shape(prog, op, 0);
    const struct image_attrs *a = attrs_of(op, image);
    if (dy->n_dims != 2 || a->width < 1 || a->height < 0)
        return wrong(prog, op, 0, "[count, channels]", err);
    out[0] = a->height == 0 ? (struct shape){3, {dy->dim[0], a->width, dy->dim[1]}}
                            : (struct shape){4, {dy->dim[0], a->height, a->width, dy->dim[1]}};
    return SNUG_OK;
}

static enum snug_status shape_add_positions(const struct program *prog, const struct op *op,
                                            struct shape *out, struct snug_error *err)
{
    const struct shape *x = in_shape(prog, op, 0), *positions = in_shape(prog, op, 1);
    if (x->n_dims < 3)
        return wrong(prog, op, 0, "[count, .., channels]", err);
    out[0] = (struct shape){3, {x->dim[0], shape_rows(x) / x->dim[0], shape_last(x)}};
    if (positions->n_dims != 3 || positions->dim[0] != 1 || positions->dim[1] != out[0].dim[1] ||
        positions->dim[2] != out[0].dim[2])
        return wrong(prog, op, 1, "[1, positions of a sample, channels]", err);
    return SNUG_OK;
}

static enum snug_status shape_add_positions_grad(const struct program *prog, const struct op *op,
                                                 struct shape *out, struct snug_error *err)
{
    const struct shape *dy = in_shape(prog, op, 0);
    const struct image_attrs *a = attrs_of(op, image);
    if (dy->n_dims != 3 || (a->height == 0 ? 1 : a->height) * a->width != dy->dim[1])
        return wrong(prog, op, 0, "[count, height x width, channels]", err);
    out[0] =
        a->height == 0 ? *dy : (struct shape){4, {dy->dim[0], a->height, a->width, dy->dim[2]}};
    out[1] = (struct shape){3, {1, dy->dim[1], dy->dim[2]}};
    return SNUG_OK;
}

static enum snug_status shape_channels_last(const struct program *prog, const struct op *op,
                                            struct shape *out, struct snug_error *err)
{
    const struct shape *x = in_shape(prog, op, 0);
    if (x->n_dims != 4)
        return wrong(prog, op, 0, "images [count, channels, height, width]", err);
    out[0] = (struct shape){4, {x->dim[0], x->dim[2], x->dim[3], x->dim[1]}};
    return SNUG_OK;
}

static enum snug_status shape_channels_first(const struct program *prog, const struct op *op,
                                             struct shape *out, struct snug_error *err)
{
    const struct shape *x = in_shape(prog, op, 0);
    if (x->n_dims != 4)
        return wrong(prog, op, 0, "images [count, height, width, channels]", err);
    out[0] = (struct shape){4, {x->dim[0], x->dim[3], x->dim[1], x->dim[2]}};
    return SNUG_OK;
}

enum snug_status op_shapes(const struct program *prog, const struct op *op, struct shape *out,
                           struct snug_error *err)
{
    static shape_rule *const rules[OP_COUNT] = {
#define SHAPE(rule)                                   shape_##rule
#define OP(kind, in, out, shape, gradient, cost, ...) [OP_##kind] = shape,
#include "ir/ops.def"
#undef OP
    };
    const struct op_info *info = &op_infos[op->kind];
    if (op->n_in < info->min_in || op->n_in > info->max_in)
        return snug_fail(err, SNUG_BAD_PROGRAM, "%s: %d inputs, expected %d to %d", info->name,
                         op->n_in, info->min_in, info->max_in);
    for (int k = 0; k < info->min_in; k++)
        if (op->in[k] == TENSOR_NONE && !op_has(op, TRAIT_effect))
            return snug_fail(err, SNUG_BAD_PROGRAM, "%s: input %d is required", info->name, k);
    if (op_dropout(op).dropout > 0 &&
        (op->n_in < info->max_in || op->in[info->max_in - 1] == TENSOR_NONE))
        return snug_fail(err, SNUG_BAD_PROGRAM,
                         "%s: dropout needs the scalar table as the last input", info->name);
    return rules[op->kind](prog, op, out, err);
}

enum snug_status program_set_batch(struct program *prog, int64_t batch, struct snug_error *err)
{
    for (int i = 0; i < prog->n_tensors; i++)
        if (prog->tensors[i].role == ROLE_input)
            prog->tensors[i].shape.dim[0] = batch;
    for (int i = 0; i < prog->n_ops; i++) {
        struct shape shapes[MAX_OUTPUTS];
        const struct op *op = &prog->ops[i];
        TRY(op_shapes(prog, op, shapes, err));
        for (int k = 0; k < op->n_out; k++)
            if (op->out[k] != TENSOR_NONE && shapes[k].n_dims != UNCHECKED)
                prog->tensors[op->out[k]].shape = shapes[k];
    }
    return program_check_sizes(prog, err);
}
