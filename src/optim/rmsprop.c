/*
 * rmsprop.c -- RMSProp (Tieleman and Hinton):
 *
 *     g += decay W      v = gamma v + (1-gamma) g^2      W -= lr g / sqrt(v + eps)
 *
 * eps-outside=1 puts eps where PyTorch does: W -= lr g / (sqrt(v) + eps).
 *
 * state: v: 4 bytes per parameter.
 */
#include "optim/rule.h"

STATES(rmsprop, v)
OPTIONS(rmsprop, gamma, eps, eps_outside)
CONSTANTS(rmsprop, lr, decay, gamma, rest, inside, outside)

PREPARE(rmsprop)
{
    k->lr = now->lr;
    k->decay = now->decay;
    k->gamma = o->gamma;
    k->rest = 1 - o->gamma;
    k->inside = o->eps_outside != 0 ? 0 : o->eps;
    k->outside = o->eps_outside != 0 ? o->eps : 0;
}

STEP(rmsprop)
{
    g += k->decay * *w;
    s->v = k->gamma * s->v + k->rest * g * g;
    *w -= k->lr * (g / (root(s->v + k->inside) + k->outside));
}

OPTIMIZER(rmsprop, .about = "divides by the root of averaged squared gradients", .default_lr = 1e-3,
          .options = "gamma, eps, eps-outside", .defaults = {0.9, 1e-8, 0}, .positive = "v")
