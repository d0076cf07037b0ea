/*
 * adafactor.c -- Adafactor (Shazeer, Stern): second moments of a matrix as row and column means.
 *
 *     b = 1 - t^-decay_power      R = b R + (1-b) row means of g^2 + eps1      C: columns
 *     U = g / sqrt(R C / mean R)      U /= max(1, RMS(U) / clip_threshold)
 *     m = b1 m + (1-b1) a U           W -= a decay W + (beta1 > 0 ? m : a U)
 *
 * a is --lr.  Without --lr, or if it is 0, a = max(eps2, RMS(W)) min(1/100, 1/sqrt(t)), to which
 * --schedule and --warmup apply as to --lr.  The op adafactor computes U, which may alias the
 * gradient, and a; the op update takes the step.  A tensor with more than two dimensions is
 * treated as the matrix [first, rest].  A vector has a full v in place of R C / mean R.
 *
 * state: rows, cols: n + m elements for n m parameters; v: 4 bytes per parameter of vectors; m,
 * with beta1 > 0: 4 bytes per parameter.
 */
#include "optim/rule.h"

#include <string.h>

STATES(adafactor, m)
OPTIONS(adafactor, beta1)
CONSTANTS(adafactor, keep, beta1, share)

PREPARE(adafactor)
{
    k->keep = 1 - now->lr * now->decay;
    k->beta1 = o->beta1;
    k->share = (1 - o->beta1) * now->lr;
}

STEP(adafactor)
{
    s->m = k->beta1 * s->m + k->share * g;
    *w = k->keep * *w - s->m;
}

#ifndef RULE_REAL
static double relative_lr(double t)
{
    return fmin(1e-2, 1 / sqrt(t));
}

static enum snug_status emit(const struct optim_target *t)
{
    const struct shape *shape = &t->prog->tensors[t->weight].shape;
    struct shape rows = {1, {shape->dim[0]}}, columns = {1, {shape_elems(shape) / shape->dim[0]}};
    bool factored = shape->n_dims >= 2;
    tensor_id in[] = {t->grad, t->scalars, t->master != TENSOR_NONE ? t->master : t->weight,
                      TENSOR_NONE, TENSOR_NONE};
    tensor_id out[] = {TENSOR_NONE, t->scalars, TENSOR_NONE, TENSOR_NONE};
    struct attrs attrs = ATTRS(direction, .relative = t->lr <= 0, .lr_factor = t->lr_factor);
    memcpy(attrs.direction.options.value, t->options, sizeof attrs.direction.options);
    TRY(optim_add_state(t, factored ? "rows" : "v", DTYPE_f32, &rows, &in[3]));
    if (factored)
        TRY(optim_add_state(t, "cols", DTYPE_f32, &columns, &in[4]));
    TRY(optim_add_direction(t, &out[0]));
    memcpy(out + 2, in + 3, 2 * sizeof *out);
    TRY(program_add_op(t->prog, OP_adafactor, &attrs, factored ? 5 : 4, in, factored ? 4 : 3, out,
                       t->err));
    struct optim_target step = *t;
    step.grad = out[0];
    step.direction = DIRECTION_scaled;
    if (t->options[0] <= 0) /* beta1: no m */
        step.optimizer = &optimizer_sgd;
    return optim_emit_rule(&step);
}
#endif

OPTIMIZER(adafactor, .about = "factored second moments: row and column means", .emit = emit,
          .states_if = "beta1", .relative_lr = relative_lr,
          .options = "beta1, decay-power, clip-threshold, eps1, eps2",
          .defaults = {0, 0.8, 1, 1e-30, 1e-3})
