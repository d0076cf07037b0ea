/*
 * vision.c -- networks for images: a small one, ResNet 18 and 50, a small vision transformer.
 *
 * Names and shapes of the residual networks are torchvision's, those of the transformer timm's
 * (vit_tiny without a class token, mean pooling), so that weights go in and out as they are.  Start values:
 * convolutions normal with deviation sqrt(2 / fan out) (He), linear layers as PyTorch has them, the
 * transformer normal 0.02.
 *
 * Images of more than SMALL pixels a side get ImageNet's stem (a 7 x 7 convolution and a pool, both of
 * stride 2; patches of 16), smaller ones that of CIFAR (3 x 3, stride 1, no pool; patches of 4).
 */
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SMALL = 64, NAME_MAX_BYTES = 96 };

/* The program under construction: one image tensor after the other. */
struct maker {
    struct program *prog;
    struct snug_error *err;
};

static const struct shape *shape_of(const struct maker *m, tensor_id id)
{
    return &m->prog->tensors[id].shape;
}

/* ---- convolutional networks ---------------------------------------------------------------- */

/* relu(bn(conv(x)) (+ r)); no relu if `last_is_norm`. */
struct unit {
    const char *conv, *norm; /* names */
    int64_t n_out, kernel, stride;
    tensor_id r; /* TENSOR_NONE: none */
    bool last_is_norm;
};

static enum snug_status unit(const struct maker *m, tensor_id x, struct unit u, tensor_id *y)
{
    tensor_id t;
    struct conv_spec conv = {.name = u.conv,
                             .n_out = u.n_out,
                             .kernel = u.kernel,
                             .stride = u.stride,
                             .pad = u.kernel / 2,
                             .init = INIT_normal,
                             .init_scale = sqrt(2.0 / (double)(u.n_out * u.kernel * u.kernel))};
    TRY(build_conv(m->prog, x, &conv, &t, m->err));
    return build_batchnorm(m->prog, t, u.norm, u.last_is_norm ? ACT_none : ACT_relu, u.r, y,
                           m->err);
}

static enum snug_status maxpool(const struct maker *m, int64_t kernel, int64_t pad, tensor_id *x)
{
    tensor_id out[2];
    struct attrs attrs = ATTRS(.kernel_h = kernel, .kernel_w = kernel, .stride = 2, .pad = pad);
    TRY(program_emit(m->prog, OP_maxpool, &attrs, 1, x, "pool", 2, out, m->err));
    *x = out[0];
    return SNUG_OK;
}

static enum snug_status linear(const struct maker *m, const char *name, int64_t n_out, tensor_id *x)
{
    double bound = 1 / sqrt((double)shape_last(shape_of(m, *x)));
    struct linear_spec spec = {.name = name,
                               .n_out = n_out,
                               .init = INIT_uniform,
                               .init_scale = bound,
                               .bias_scale = bound};
    return build_linear(m->prog, *x, &spec, x, m->err);
}

/* Three convolutions, halving the image after each of the first two. */
static enum snug_status cnn(const struct maker *m, const struct vision_shape *v, tensor_id *x)
{
    for (int i = 0; i < 3; i++) {
        char conv[NAME_MAX_BYTES], norm[NAME_MAX_BYTES];
        snprintf(conv, sizeof conv, "conv%d", i + 1);
        snprintf(norm, sizeof norm, "bn%d", i + 1);
        TRY(unit(m, *x, (struct unit){conv, norm, 32 << i, 3, 1, TENSOR_NONE, false}, x));
        if (i < 2 && shape_of(m, *x)->dim[1] > 1 && shape_of(m, *x)->dim[2] > 1)
            TRY(maxpool(m, 2, 0, x));
    }
    TRY(program_emit(m->prog, OP_meanpool, NULL, 1, x, "mean", 1, x, m->err));
    return linear(m, "fc", v->n_classes, x);
}

/* Two 3 x 3 convolutions, or 1 x 1, 3 x 3 and 1 x 1 with four times the width at the end. */
static enum snug_status residual_block(const struct maker *m, const char *name, int64_t width,
                                       int64_t stride, bool bottleneck, tensor_id *x)
{
    char conv[NAME_MAX_BYTES], norm[NAME_MAX_BYTES];
    int64_t n_out = bottleneck ? 4 * width : width;
    int n_convs = bottleneck ? 3 : 2;
    tensor_id t = *x, r = *x;
    for (int i = 1; i <= n_convs; i++) {
        bool is_last = i == n_convs, is_wide = !bottleneck || i == 2;
        snprintf(conv, sizeof conv, "%s.conv%d", name, i);
        snprintf(norm, sizeof norm, "%s.bn%d", name, i);
        struct unit u = {conv,
                         norm,
                         is_last ? n_out : width,
                         is_wide ? 3 : 1,
                         i == (bottleneck ? 2 : 1) ? stride : 1,
                         TENSOR_NONE,
                         false};
        if (is_last && (stride != 1 || shape_last(shape_of(m, *x)) != n_out)) {
            char down[NAME_MAX_BYTES], down_norm[NAME_MAX_BYTES];
            snprintf(down, sizeof down, "%s.downsample.0", name);
            snprintf(down_norm, sizeof down_norm, "%s.downsample.1", name);
            TRY(unit(m, *x, (struct unit){down, down_norm, n_out, 1, stride, TENSOR_NONE, true},
                     &r));
        }
        u.r = is_last ? r : TENSOR_NONE;
        TRY(unit(m, t, u, &t));
    }
    *x = t;
    return SNUG_OK;
}

static enum snug_status resnet(const struct maker *m, const struct vision_shape *v, tensor_id *x)
{
    static const int blocks[2][4] = {{2, 2, 2, 2}, {3, 4, 6, 3}};
    bool deep = v->net == VISION_resnet50, small = v->height <= SMALL && v->width <= SMALL;
    TRY(unit(m, *x,
             (struct unit){"conv1", "bn1", 64, small ? 3 : 7, small ? 1 : 2, TENSOR_NONE, false},
             x));
    if (!small)
        TRY(maxpool(m, 3, 1, x));
    for (int stage = 0; stage < 4; stage++)
        for (int i = 0; i < blocks[deep][stage]; i++) {
            char name[32];
            snprintf(name, sizeof name, "layer%d.%d", stage + 1, i);
            TRY(residual_block(m, name, 64 << stage, stage > 0 && i == 0 ? 2 : 1, deep, x));
        }
    TRY(program_emit(m->prog, OP_meanpool, NULL, 1, x, "avgpool", 1, x, m->err));
    return linear(m, "fc", v->n_classes, x);
}

/* ---- all of them --------------------------------------------------------------------------- */

static enum snug_status images(const struct maker *m, const struct vision_shape *v, tensor_id *x)
{
    if (v->channels == 1) /* its only plane is both layouts */
        return build_input(m->prog, "x", DTYPE_f32, &(struct shape){4, {1, v->height, v->width, 1}},
                           x, m->err);
    TRY(build_input(m->prog, "x", DTYPE_f32,
                    &(struct shape){4, {1, v->channels, v->height, v->width}}, x, m->err));
    return program_emit(m->prog, OP_channels_last, NULL, 1, x, "image", 1, x, m->err);
}

enum snug_status vision_forward(const struct vision_shape *v, struct program *prog,
                                struct snug_error *err)
{
    struct maker m = {prog, err};
    tensor_id x, target, out[2];
    TRY(images(&m, v, &x));
    TRY(v->net == VISION_cnn ? cnn(&m, v, &x) : resnet(&m, v, &x));
    TRY(build_input(prog, "target", DTYPE_i32, &(struct shape){1, {1}}, &target, err));
    TRY(program_emit(prog, OP_cross_entropy, NULL, 2, (tensor_id[]){x, target}, "loss", 2, out,
                     err));
    prog->loss = out[0];
    prog->tensors[out[0]].is_output = true;
    return SNUG_OK;
}
