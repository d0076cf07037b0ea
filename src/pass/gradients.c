/*
 * gradients.c -- the gradient rule of every op that has one.
 *
 * A rule reads the gradients of the op's outputs and emits the ops that compute the gradients of
 * its inputs.  Weight gradients come before data gradients: a weight gradient is the last reader
 * of the saved input, so the data gradient can reuse that input's bytes.
 */
#include "ir/attention_operands.h"
#include "pass/autodiff.h"

static tensor_id operand(const struct op *op, int k)
{
    return k < op->n_in ? op->in[k] : TENSOR_NONE;
}

static enum snug_status gradient_embedding(struct autodiff *ad, const struct op *op)
{
    tensor_id table = op->in[1], positions = operand(op, 2);
    bool both = positions != TENSOR_NONE;
    tensor_id dy = autodiff_of(ad, op->out[0]);
    if (both &&
        (autodiff_of(ad, table) == TENSOR_NONE) != (autodiff_of(ad, positions) == TENSOR_NONE)) {
        /* tied head: the table's gradient exists and takes +=, the positions' is new and takes = */
        TRY(autodiff_emit(ad, OP_embedding_grad, NULL, 3, (tensor_id[]){op->in[0], dy, table}, 1,
                          &table));
        return autodiff_emit(ad, OP_embedding_grad, NULL, 4,
                             (tensor_id[]){op->in[0], dy, table, positions}, 2,
                             (tensor_id[]){TENSOR_NONE, positions});
    }
    return autodiff_emit(ad, OP_embedding_grad, NULL, both ? 4 : 3,
                         (tensor_id[]){op->in[0], dy, table, positions}, both ? 2 : 1,
                         (tensor_id[]){table, positions});
}

static enum snug_status gradient_linear(struct autodiff *ad, const struct op *op)
{
    tensor_id x = op->in[0], w = op->in[1], bias = operand(op, 2);
    tensor_id dy = autodiff_of(ad, op->out[0]);
    struct attrs layout = ATTRS(linear, .layout = attrs_of(op, linear)->layout);
    if (op->attrs.act != ACT_none) {
        tensor_id before = op->n_out > 1 ? op->out[1] : TENSOR_NONE;
        if (before == TENSOR_NONE)
            return snug_fail(ad->env->err, SNUG_BAD_PROGRAM,
                             "linear with an activation has no gradient without its second output");
        struct attrs act = ATTRS(common, .act = op->attrs.act);
        TRY(autodiff_emit(ad, OP_act_grad, &act, 2, (tensor_id[]){dy, before}, 1, &before));
        dy = autodiff_of(ad, before);
    }
    TRY(autodiff_give(ad, operand(op, 3), dy));
    if (autodiff_wants(ad, w) || autodiff_wants(ad, bias))
        TRY(autodiff_emit(ad, OP_linear_grad_w, &layout, 2, (tensor_id[]){x, dy},
                          autodiff_wants(ad, bias) ? 2 : 1, (tensor_id[]){w, bias}));
    if (autodiff_wants(ad, x))
        TRY(autodiff_emit(ad, OP_linear_grad_x, &layout, 2, (tensor_id[]){dy, w}, 1, &x));
    return SNUG_OK;
}

static enum snug_status gradient_act(struct autodiff *ad, const struct op *op)
{
    return autodiff_emit(ad, OP_act_grad, &op->attrs, 2,
                         (tensor_id[]){autodiff_of(ad, op->out[0]), op->in[0]}, 1, op->in);
}

static enum snug_status gradient_add(struct autodiff *ad, const struct op *op)
{
    tensor_id dy = autodiff_of(ad, op->out[0]);
    TRY(autodiff_give(ad, op->in[0], dy));
    return autodiff_give(ad, op->in[1], dy);
}

/* The same op on dy. */
static enum snug_status gradient_scale(struct autodiff *ad, const struct op *op)
{
    return autodiff_emit(ad, OP_scale, &op->attrs, 1, (tensor_id[]){autodiff_of(ad, op->out[0])}, 1,
                         op->in);
}

/* The same op on dy: the mask is a function of the seed and the site, so it is the same. */
static enum snug_status gradient_dropout(struct autodiff *ad, const struct op *op)
{
    return autodiff_emit(ad, OP_dropout, &op->attrs, 2,
                         (tensor_id[]){autodiff_of(ad, op->out[0]), op->in[1]}, 1, op->in);
}

static enum snug_status gradient_cast(struct autodiff *ad, const struct op *op)
{
    return autodiff_emit(ad, OP_cast, NULL, 1, (tensor_id[]){autodiff_of(ad, op->out[0])}, 1,
                         op->in);
}

static enum snug_status gradient_layernorm(struct autodiff *ad, const struct op *op)
{
    tensor_id x = op->in[0], gamma = op->in[1], beta = op->in[2];
    return autodiff_emit(
        ad, OP_layernorm_grad, NULL, 5,
        (tensor_id[]){autodiff_of(ad, op->out[0]), x, gamma, op->out[1], op->out[2]}, 3,
        (tensor_id[]){x, gamma, beta});
}

static enum snug_status gradient_rmsnorm(struct autodiff *ad, const struct op *op)
{
    tensor_id x = op->in[0], gamma = op->in[1];
    return autodiff_emit(ad, OP_rmsnorm_grad, NULL, 4,
                         (tensor_id[]){autodiff_of(ad, op->out[0]), x, gamma, op->out[1]}, 2,
                         (tensor_id[]){x, gamma});
}

/* The rotation by the opposite angles. */
static enum snug_status gradient_rope(struct autodiff *ad, const struct op *op)
{
    struct attrs attrs = op->attrs;
    attrs.rope.inverse = !attrs.rope.inverse;
    return autodiff_emit(ad, OP_rope, &attrs, op->n_in,
                         (tensor_id[]){autodiff_of(ad, op->out[0]), operand(op, 1)}, 1, op->in);
}

static enum snug_status gradient_swiglu(struct autodiff *ad, const struct op *op)
{
    return autodiff_emit(ad, OP_swiglu_grad, NULL, 3,
                         (tensor_id[]){autodiff_of(ad, op->out[0]), op->in[0], op->in[1]}, 2,
                         op->in);
}

/* Kernels write all of dq, dk and dv, also if adapters need only one of them. */
static enum snug_status gradient_attention(struct autodiff *ad, const struct op *op)
{
    tensor_id in[ATTENTION_GRAD_FIRST + ATTENTION_INPUTS] = {autodiff_of(ad, op->out[0]),
                                                             op->out[0], op->out[1]};
    for (int k = 0; k < op->n_in; k++)
        in[ATTENTION_GRAD_FIRST + k] = op->in[k];
    bool packed = attention_input(op, ATTENTION_K) == TENSOR_NONE;
    for (int k = 0; k < 3 && !packed; k++)
        ad->wanted[op->in[k]] = true;
    return autodiff_emit(ad, OP_attention_grad, &op->attrs, ATTENTION_GRAD_FIRST + op->n_in, in,
                         packed ? 1 : 3, op->in);
}

static enum snug_status gradient_cross_entropy(struct autodiff *ad, const struct op *op)
{
    return autodiff_emit(ad, OP_cross_entropy_grad, &op->attrs, 4,
                         (tensor_id[]){op->in[0], op->in[1], op->out[1], ad->scalars}, 1, op->in);
}

static enum snug_status gradient_mse(struct autodiff *ad, const struct op *op)
{
    return autodiff_emit(ad, OP_mse_grad, &op->attrs, 3,
                         (tensor_id[]){op->in[0], op->in[1], ad->scalars}, 1, op->in);
}

static enum snug_status gradient_linear_cross_entropy(struct autodiff *ad, const struct op *op)
{
    return autodiff_emit(ad, OP_linear_cross_entropy_grad, &op->attrs, 5,
                         (tensor_id[]){op->in[0], op->in[1], op->in[2], op->out[1], ad->scalars}, 2,
                         op->in);
}

static enum snug_status gradient_conv2d(struct autodiff *ad, const struct op *op)
{
    tensor_id x = op->in[0], w = op->in[1], bias = operand(op, 2);
    tensor_id dy = autodiff_of(ad, op->out[0]);
    const struct shape *image = &ad->prog->tensors[x].shape, *kernel = &ad->prog->tensors[w].shape;
    struct attrs attrs = op->attrs;
    attrs.image.kernel_h = kernel->dim[2], attrs.image.kernel_w = kernel->dim[3];
    struct attrs of_image = op->attrs;
    of_image.image.height = image->dim[1], of_image.image.width = image->dim[2];
    if (autodiff_wants(ad, w) || autodiff_wants(ad, bias))
        TRY(autodiff_emit(ad, OP_conv2d_grad_w, &attrs, 2, (tensor_id[]){x, dy},
                          autodiff_wants(ad, bias) ? 2 : 1, (tensor_id[]){w, bias}));
    if (autodiff_wants(ad, x))
        TRY(autodiff_emit(ad, OP_conv2d_grad_x, &of_image, 2, (tensor_id[]){dy, w}, 1, &x));
    return SNUG_OK;
}

/* The relu mask is recomputed from x.  With a residual r it cannot be, so it is taken from y. */
static enum snug_status gradient_batchnorm(struct autodiff *ad, const struct op *op)
{
    tensor_id x = op->in[0], gamma = op->in[1], beta = op->in[2], r = operand(op, 3);
    tensor_id dy = autodiff_of(ad, op->out[0]);
    bool masks = op->attrs.act != ACT_none, masks_r = masks && r != TENSOR_NONE;
    TRY(autodiff_emit(ad, OP_batchnorm_grad, &op->attrs, masks_r ? 7 : 6,
                      (tensor_id[]){dy, x, gamma, beta, op->out[1], op->out[2], op->out[0]},
                      masks_r && autodiff_wants(ad, r) ? 4 : 3, (tensor_id[]){x, gamma, beta, r}));
    return masks ? SNUG_OK : autodiff_give(ad, r, dy);
}

static enum snug_status gradient_maxpool(struct autodiff *ad, const struct op *op)
{
    const struct shape *x = &ad->prog->tensors[op->in[0]].shape;
    struct attrs attrs = op->attrs;
    attrs.image.height = x->dim[1], attrs.image.width = x->dim[2];
    return autodiff_emit(ad, OP_maxpool_grad, &attrs, 2,
                         (tensor_id[]){autodiff_of(ad, op->out[0]), op->out[1]}, 1, op->in);
}

/* The spatial size of x: height and width of an image, or height 0 and a sequence's length. */
static struct attrs attrs_of_rows(const struct shape *x)
{
    bool is_image = x->n_dims == 4;
    return ATTRS(image, .height = is_image ? x->dim[1] : 0,
                 .width = shape_rows(x) / x->dim[0] / (is_image ? x->dim[1] : 1));
}

static enum snug_status gradient_meanpool(struct autodiff *ad, const struct op *op)
{
    struct attrs attrs = attrs_of_rows(&ad->prog->tensors[op->in[0]].shape);
    return autodiff_emit(ad, OP_meanpool_grad, &attrs, 1,
                         (tensor_id[]){autodiff_of(ad, op->out[0])}, 1, op->in);
}

static enum snug_status gradient_add_positions(struct autodiff *ad, const struct op *op)
{
    struct attrs attrs = attrs_of_rows(&ad->prog->tensors[op->in[0]].shape);
    return autodiff_emit(ad, OP_add_positions_grad, &attrs, 1,
                         (tensor_id[]){autodiff_of(ad, op->out[0])}, 2, op->in);
}

static enum snug_status gradient_channels_last(struct autodiff *ad, const struct op *op)
{
    return autodiff_emit(ad, OP_channels_first, NULL, 1, (tensor_id[]){autodiff_of(ad, op->out[0])},
                         1, op->in);
}

static enum snug_status gradient_channels_first(struct autodiff *ad, const struct op *op)
{
    return autodiff_emit(ad, OP_channels_last, NULL, 1, (tensor_id[]){autodiff_of(ad, op->out[0])},
                         1, op->in);
}

/* The gradient of a tensor sent to the next stage is received from that stage. */
static enum snug_status gradient_send(struct autodiff *ad, const struct op *op)
{
    return autodiff_emit(ad, OP_recv, &op->attrs, 0, NULL, 1, op->in);
}

static enum snug_status gradient_recv(struct autodiff *ad, const struct op *op)
{
    return program_add_op(ad->prog, OP_send, &op->attrs, 1,
                          (tensor_id[]){autodiff_of(ad, op->out[0])}, 1, (tensor_id[]){TENSOR_NONE},
                          ad->env->err);
}

#define gradient_none NULL

gradient_rule *gradient_rule_of(enum op_kind kind)
{
    static gradient_rule *const rules[OP_COUNT] = {
#define GRADIENT(rule)                                gradient_##rule
#define OP(name, in, out, shape, gradient, cost, ...) [OP_##name] = gradient,
#include "ir/ops.def"
#undef OP
    };
    return rules[kind];
}
