/*
 * rmsprop.c -- RMSProp (Tieleman and Hinton):
 *
 *     g += decay W      v = gamma v + (1-gamma) g^2      W -= lr g / sqrt(v + eps)
 *
 * state: v: 4 bytes a parameter.
 */
#include "optim/rule.h"

STATES(rmsprop, v)
OPTIONS(rmsprop, gamma, eps)
CONSTANTS(rmsprop, lr, decay, gamma, rest, eps)

PREPARE(rmsprop)
{
    k->lr = now->lr;
    k->decay = now->decay;
    k->gamma = o->gamma;
    k->rest = 1 - o->gamma;
    k->eps = o->eps;
}

STEP(rmsprop)
{
    g += k->decay * *w;
    s->v = k->gamma * s->v + k->rest * g * g;
    *w -= k->lr * (g / root(s->v + k->eps));
}

OPTIMIZER(rmsprop, .about = "steps over the root of recent squares", .default_lr = 1e-3,
          .defaults = {0.9, 1e-8}, .positive = "v")
