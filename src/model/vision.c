/*
 * vision.c -- image classifiers: a small CNN, ResNet-18, ResNet-50 and a small ViT.
 *
 * Parameter names and shapes are torchvision's for ResNets and timm's for the transformer (vit_tiny
 * without a class token, with mean pooling), so weights load and save without conversion.
 * Initialization: convolutions He normal, with standard deviation sqrt(2 / fan out); linear layers
 * as in PyTorch; the transformer normal with standard deviation 0.02.
 *
 * Images with a side above SMALL pixels get the ImageNet stem (a 7 x 7 convolution and a max pool,
 * both with stride 2) or patches of 16 pixels.  Smaller images get the CIFAR stem (a 3 x 3
 * convolution with stride 1, no pool) or patches of 4.
 */
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SMALL = 64, NAME_MAX_BYTES = 96 };

/* The program under construction. */
struct builder {
    struct program *prog;
    struct snug_error *err;
};

static const struct shape *shape_of(const struct builder *m, tensor_id id)
{
    return &m->prog->tensors[id].shape;
}

/* ---- convolutional networks ---------------------------------------------------------------- */

/* relu(bn(conv(x)) (+ r)); without the relu if last_is_norm. */
struct unit {
    const char *conv, *norm; /* layer names */
    int64_t n_out, kernel, stride;
    tensor_id r; /* the residual input, or TENSOR_NONE */
    bool last_is_norm;
};

static enum snug_status unit(const struct builder *m, tensor_id x, struct unit u, tensor_id *y)
{
    tensor_id t;
    struct conv_spec conv = {.name = u.conv,
                             .n_out = u.n_out,
                             .kernel_h = u.kernel,
                             .kernel_w = u.kernel,
                             .stride = u.stride,
                             .pad = u.kernel / 2,
                             .init = INIT_normal,
                             .init_scale = sqrt(2.0 / (double)(u.n_out * u.kernel * u.kernel))};
    TRY(build_conv(m->prog, x, &conv, &t, m->err));
    return build_batchnorm(m->prog, t, u.norm, u.last_is_norm ? ACT_none : ACT_relu, u.r, y,
                           m->err);
}

static enum snug_status maxpool(const struct builder *m, int64_t kernel, int64_t pad, tensor_id *x)
{
    tensor_id out[2];
    struct attrs attrs =
        ATTRS(image, .kernel_h = kernel, .kernel_w = kernel, .stride = 2, .pad = pad);
    TRY(program_emit(m->prog, OP_maxpool, &attrs, 1, x, "pool", 2, out, m->err));
    *x = out[0];
    return SNUG_OK;
}

static enum snug_status linear(const struct builder *m, const char *name, int64_t n_out,
                               tensor_id *x)
{
    double bound = 1 / sqrt((double)shape_last(shape_of(m, *x)));
    struct linear_spec spec = {.name = name,
                               .n_out = n_out,
                               .init = INIT_uniform,
                               .init_scale = bound,
                               .bias_scale = bound};
    return build_linear(m->prog, *x, &spec, x, m->err);
}

/* Three convolutions, each followed by a max pool that halves the image, and a last convolution
 * with a kernel as large as the remaining image: a linear layer over all of it. */
static enum snug_status cnn(const struct builder *m, const struct vision_shape *v, tensor_id *x)
{
    for (int i = 0; i < 3; i++) {
        char conv[NAME_MAX_BYTES], norm[NAME_MAX_BYTES];
        snprintf(conv, sizeof conv, "conv%d", i + 1);
        snprintf(norm, sizeof norm, "bn%d", i + 1);
        TRY(unit(m, *x, (struct unit){conv, norm, 32 << i, 3, 1, TENSOR_NONE, false}, x));
        if (shape_of(m, *x)->dim[1] > 1 && shape_of(m, *x)->dim[2] > 1)
            TRY(maxpool(m, 2, 0, x));
    }
    const struct shape *rest = shape_of(m, *x);
    struct conv_spec last = {.name = "fc",
                             .n_out = v->n_classes,
                             .kernel_h = rest->dim[1],
                             .kernel_w = rest->dim[2],
                             .stride = 1,
                             .has_bias = true,
                             .init = INIT_uniform,
                             .init_scale =
                                 1 / sqrt((double)(rest->dim[1] * rest->dim[2] * rest->dim[3]))};
    return build_conv(m->prog, *x, &last, x, m->err);
}

/* A basic block, with two 3 x 3 convolutions, or a bottleneck, with 1 x 1, 3 x 3 and 1 x 1, the
 * last one four times as wide. */
static enum snug_status residual_block(const struct builder *m, const char *name, int64_t width,
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

static enum snug_status resnet(const struct builder *m, const struct vision_shape *v, tensor_id *x)
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

/* ---- transformer --------------------------------------------------------------------------- */

enum { VIT_WIDTH = 192, VIT_LAYERS = 12, VIT_HEADS = 3 };
static const double vit_eps = 1e-6, vit_deviation = 0.02;

static enum snug_status vit_linear(const struct builder *m, const char *name, int64_t n_out,
                                   tensor_id x, tensor_id *y)
{
    struct linear_spec spec = {
        .name = name, .n_out = n_out, .init = INIT_normal, .init_scale = vit_deviation};
    return build_linear(m->prog, x, &spec, y, m->err);
}

static enum snug_status vit_block(const struct builder *m, int layer, tensor_id *x)
{
    char name[NAME_MAX_BYTES];
    tensor_id t, qkv, out[2], sum;
    struct attrs heads = ATTRS(attention, .heads = VIT_HEADS, .causal = false),
                 gelu = ATTRS(common, .act = ACT_gelu);
#define NAME(suffix) (snprintf(name, sizeof name, "blocks.%d." suffix, layer), name)
    TRY(build_layernorm(m->prog, *x, NAME("norm1"), vit_eps, &t, m->err));
    TRY(vit_linear(m, NAME("attn.qkv"), (int64_t)3 * VIT_WIDTH, t, &qkv));
    TRY(program_emit(m->prog, OP_attention, &heads, 1, &qkv, NAME("attn"), 2, out, m->err));
    TRY(vit_linear(m, NAME("attn.proj"), VIT_WIDTH, out[0], &t));
    TRY(program_emit(m->prog, OP_add, NULL, 2, (tensor_id[]){*x, t}, NAME("attn.residual"), 1, &sum,
                     m->err));
    TRY(build_layernorm(m->prog, sum, NAME("norm2"), vit_eps, &t, m->err));
    TRY(vit_linear(m, NAME("mlp.fc1"), (int64_t)4 * VIT_WIDTH, t, &t));
    TRY(program_emit(m->prog, OP_act, &gelu, 1, &t, NAME("mlp.act"), 1, &t, m->err));
    TRY(vit_linear(m, NAME("mlp.fc2"), VIT_WIDTH, t, &t));
    return program_emit(m->prog, OP_add, NULL, 2, (tensor_id[]){sum, t}, NAME("mlp.residual"), 1, x,
                        m->err);
#undef NAME
}

/* Patch embedding by a convolution with stride = kernel size, then bidirectional attention. */
static enum snug_status vit(const struct builder *m, const struct vision_shape *v, tensor_id *x)
{
    int64_t patch = v->height <= SMALL && v->width <= SMALL ? 4 : 16;
    struct conv_spec conv = {.name = "patch_embed.proj",
                             .n_out = VIT_WIDTH,
                             .kernel_h = patch,
                             .kernel_w = patch,
                             .stride = patch,
                             .has_bias = true,
                             .init = INIT_normal,
                             .init_scale = vit_deviation};
    tensor_id positions;
    TRY(build_conv(m->prog, *x, &conv, x, m->err));
    const struct shape *patches = shape_of(m, *x);
    struct shape table = {3, {1, patches->dim[1] * patches->dim[2], VIT_WIDTH}};
    TRY(build_parameter(m->prog, "pos_embed", &table, INIT_normal, vit_deviation, &positions,
                        m->err));
    m->prog->tensors[positions].decays = false;
    TRY(program_emit(m->prog, OP_add_positions, NULL, 2, (tensor_id[]){*x, positions}, "embedding",
                     1, x, m->err));
    for (int layer = 0; layer < VIT_LAYERS; layer++)
        TRY(vit_block(m, layer, x));
    TRY(program_emit(m->prog, OP_meanpool, NULL, 1, x, "mean", 1, x, m->err));
    TRY(build_layernorm(m->prog, *x, "fc_norm", vit_eps, x, m->err));
    return vit_linear(m, "head", v->n_classes, *x, x);
}

/* ---- all networks -------------------------------------------------------------------------- */

static enum snug_status images(const struct builder *m, const struct vision_shape *v, tensor_id *x)
{
    if (v->channels == 1) /* [N,1,H,W] and [N,H,W,1] have the same bytes */
        return build_input(m->prog, "x", DTYPE_f32, &(struct shape){4, {1, v->height, v->width, 1}},
                           x, m->err);
    TRY(build_input(m->prog, "x", DTYPE_f32,
                    &(struct shape){4, {1, v->channels, v->height, v->width}}, x, m->err));
    return program_emit(m->prog, OP_channels_last, NULL, 1, x, "image", 1, x, m->err);
}

enum snug_status vision_forward(const struct vision_shape *v, struct program *prog,
                                struct snug_error *err)
{
    struct builder m = {prog, err};
    tensor_id x;
    TRY(images(&m, v, &x));
    switch (v->net) {
    case VISION_cnn:
        TRY(cnn(&m, v, &x));
        break;
    case VISION_resnet18:
    case VISION_resnet50:
        TRY(resnet(&m, v, &x));
        break;
    case VISION_vit_tiny:
        TRY(vit(&m, v, &x));
        break;
    }
    return build_class_loss(prog, x, err);
}
