/*
 * adagrad.c -- Adagrad (Duchi, Hazan and Singer):
 *
 *     g += decay W      v += g^2      W -= lr g / sqrt(v + eps)
 *
 * eps-outside=1 puts eps where PyTorch does: W -= lr g / (sqrt(v) + eps).
 *
 * state: v: 4 bytes per parameter.
 */
#include "optim/rule.h"

STATES(adagrad, v)
OPTIONS(adagrad, eps, eps_outside)
CONSTANTS(adagrad, lr, decay, inside, outside)

PREPARE(adagrad)
{
    k->lr = now->lr;
    k->decay = now->decay;
    k->inside = o->eps_outside != 0 ? 0 : o->eps;
    k->outside = o->eps_outside != 0 ? o->eps : 0;
}

STEP(adagrad)
{
    g += k->decay * *w;
    s->v += g * g;
    *w -= k->lr * (g / (root(s->v + k->inside) + k->outside));
}

OPTIMIZER(adagrad, .about = "divides by the root of summed squared gradients", .default_lr = 0.01,
          .options = "eps, eps-outside", .defaults = {1e-6, 0}, .positive = "v")
