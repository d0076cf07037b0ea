/*
 * adagrad.c -- Adagrad (Duchi, Hazan and Singer):
 *
 *     g += decay W      v += g^2      W -= lr g / sqrt(v + eps)
 *
 * state: v: 4 bytes a parameter.
 */
#include "optim/rule.h"

STATES(adagrad, v)
OPTIONS(adagrad, eps)
CONSTANTS(adagrad, lr, decay, eps)

PREPARE(adagrad)
{
    k->lr = now->lr;
    k->decay = now->decay;
    k->eps = o->eps;
}

STEP(adagrad)
{
    g += k->decay * *w;
    s->v += g * g;
    *w -= k->lr * (g / root(s->v + k->eps));
}

OPTIMIZER(adagrad, .about = "steps over the root of all squares so far", .default_lr = 0.01,
          .defaults = {1e-6}, .positive = "v")
