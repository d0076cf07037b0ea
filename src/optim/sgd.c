/*
 * sgd.c -- stochastic gradient descent: W -= lr (g + decay W).
 *
 * state: none.
 */
#include "optim/optim.h"

static enum snug_status emit(const struct optim_target *t)
{
    struct attrs attrs = ATTRS(.decay = t->decay);
    bool has_master = t->master != TENSOR_NONE;
    return program_add_op(t->prog, OP_sgd, &attrs, has_master ? 4 : 3,
                          (tensor_id[]){t->grad, t->scalars, t->weight, t->master},
                          has_master ? 2 : 1, (tensor_id[]){t->weight, t->master}, t->err);
}

const struct optimizer optimizer_sgd = {
    .name = "sgd",
    .about = "plain gradient descent",
    .default_lr = 0.1,
    .default_decay = 0,
    .emit = emit,
};
