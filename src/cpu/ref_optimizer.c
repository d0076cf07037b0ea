/*
 * ref_optimizer.c -- reference: the gradient norm, clipping and loss scale, AdamW and SGD.
 *
 * The arithmetic is PyTorch's: clip_grad_norm_, GradScaler's halving, AdamW with decoupled decay.
 * Where there is a master copy, it is updated and the weight is its rounding.
 */
#include <math.h>

#include "cpu/ref_local.h"

enum { GOOD_STEPS_TO_GROW = 2000, LOSS_SCALE_MAX = 1 << 24 };

enum snug_status ref_sum_squares(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *g = &call->in[0];
    store(&call->out[0], 0, dot(g, 0, 1, g, 0, 1, elems(g)));
    return SNUG_OK;
}

/* Non-finite gradients halve the scale at once; two thousand good steps double it. */
static void next_loss_scale(const struct operand *scalars, bool skip)
{
    double scale = load(scalars, SCALAR_loss_scale);
    double good_steps = skip ? 0.0 : load(scalars, SCALAR_good_steps) + 1.0;
    if (skip) {
        scale = fmax(1.0, scale / 2.0);
    } else if (good_steps >= GOOD_STEPS_TO_GROW) {
        scale = fmin(LOSS_SCALE_MAX, scale * 2.0);
        good_steps = 0.0;
    }
    store(scalars, SCALAR_loss_scale, scale);
    store(scalars, SCALAR_good_steps, good_steps);
}

enum snug_status ref_grad_norm(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct attrs *attrs = &call->op->attrs;
    const struct operand *parts = &call->in[0], *scalars = &call->out[0];
    double total = 0.0, loss_scale = load(scalars, SCALAR_loss_scale);
    for (int64_t i = 0, n = elems(parts); i < n; i++)
        total += load(parts, i);

    double norm = sqrt(total) / loss_scale;
    bool skip = !isfinite(norm);
    double clip = attrs->max_norm > 0.0 ? fmin(1.0, attrs->max_norm / (norm + 1e-6)) : 1.0;
    store(scalars, SCALAR_grad_norm, norm);
    store(scalars, SCALAR_skip, skip ? 1.0 : 0.0);
    store(scalars, SCALAR_clip, skip ? 0.0 : clip / loss_scale);
    if (!skip)
        store(scalars, SCALAR_update_count, load(scalars, SCALAR_update_count) + 1.0);
    if (attrs->dynamic_scale)
        next_loss_scale(scalars, skip);
    return SNUG_OK;
}

/* The number that is updated, and where it goes: the master copy if there is one. */
static double load_weight(const struct operand *w, const struct operand *master, int64_t i)
{
    return load(present(master) ? master : w, i);
}

static void store_weight(const struct operand *w, const struct operand *master, int64_t i,
                         double value)
{
    if (present(master)) {
        store(master, i, value);
        value = load(master, i); /* rounded already: w can always be made from master again */
    }
    store(w, i, value);
}

enum snug_status ref_adamw(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct attrs *attrs = &call->op->attrs;
    const struct operand *g = &call->in[0], *scalars = &call->in[1];
    const struct operand *w = &call->out[0], *m = &call->out[1], *v = &call->out[2],
                         *master = &call->out[3];
    if (load(scalars, SCALAR_skip) != 0.0)
        return SNUG_OK;
    double lr = load(scalars, SCALAR_lr), clip = load(scalars, SCALAR_clip);
    double t = load(scalars, SCALAR_update_count);
    double step = lr / (1.0 - pow(attrs->beta1, t));
    double root = sqrt(1.0 - pow(attrs->beta2, t));

    for (int64_t i = 0, n = elems(w); i < n; i++) {
        double slope = load(g, i) * clip;
        double first = attrs->beta1 * load(m, i) + (1.0 - attrs->beta1) * slope;
        double second = attrs->beta2 * load(v, i) + (1.0 - attrs->beta2) * slope * slope;
        double weight = load_weight(w, master, i) * (1.0 - lr * attrs->decay);
        weight -= step * first / (sqrt(second) / root + attrs->eps);
        store(m, i, first);
        store(v, i, second);
        store_weight(w, master, i, weight);
    }
    return SNUG_OK;
}

enum snug_status ref_sgd(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *g = &call->in[0], *scalars = &call->in[1];
    const struct operand *w = &call->out[0], *master = &call->out[1];
    if (load(scalars, SCALAR_skip) != 0.0)
        return SNUG_OK;
    double lr = load(scalars, SCALAR_lr), clip = load(scalars, SCALAR_clip);
    for (int64_t i = 0, n = elems(w); i < n; i++) {
        double weight = load_weight(w, master, i);
        store_weight(w, master, i,
                     weight - lr * (load(g, i) * clip + call->op->attrs.decay * weight));
    }
    return SNUG_OK;
}
