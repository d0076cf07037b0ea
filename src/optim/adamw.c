/*
 * adamw.c -- Adam with decoupled weight decay (Loshchilov and Hutter), and Adam itself: decay 0.
 *
 *     m = b1 m + (1-b1) g      v = b2 v + (1-b2) g^2
 *     W -= lr decay W          W -= lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps)
 *
 * state: m, v in fp32: 8 bytes a parameter.
 */
#include "optim/optim.h"

static enum snug_status emit(const struct optim_target *t)
{
    tensor_id m, v;
    TRY(optim_add_state(t, "m", DTYPE_f32, &m));
    TRY(optim_add_state(t, "v", DTYPE_f32, &v));
    struct attrs attrs =
        ATTRS(.beta1 = t->beta1, .beta2 = t->beta2, .eps = t->eps, .decay = t->decay);
    bool has_master = t->master != TENSOR_NONE;
    return program_add_op(t->prog, OP_adamw, &attrs, has_master ? 6 : 5,
                          (tensor_id[]){t->grad, t->scalars, t->weight, m, v, t->master},
                          has_master ? 4 : 3, (tensor_id[]){t->weight, m, v, t->master}, t->err);
}

const struct optimizer optimizer_adamw = {
    .name = "adamw",
    .about = "Adam with decoupled weight decay",
    .default_lr = 3e-4,
    .default_decay = 0.1,
    .emit = emit,
};

const struct optimizer optimizer_adam = {
    .name = "adam",
    .about = "Adam: adamw without decay",
    .default_lr = 3e-4,
    .default_decay = 0,
    .emit = emit,
};
