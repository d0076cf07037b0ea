/*
 * lion.c -- Lion (Chen et al.): the sign of an interpolated momentum, so all steps have one size.
 *
 *     u = sign(b1 m + (1-b1) g)      W -= lr (u + decay W)      m = b2 m + (1-b2) g
 *
 * state: m: 4 bytes per parameter.
 */
#include "optim/rule.h"

STATES(lion, m)
OPTIONS(lion, beta1, beta2)
CONSTANTS(lion, keep, lr, beta1, rest1, beta2, rest2)

PREPARE(lion)
{
    k->keep = 1 - now->lr * now->decay;
    k->lr = now->lr;
    k->beta1 = o->beta1;
    k->rest1 = 1 - o->beta1;
    k->beta2 = o->beta2;
    k->rest2 = 1 - o->beta2;
}

STEP(lion)
{
    real u = sign(k->beta1 * s->m + k->rest1 * g);
    s->m = k->beta2 * s->m + k->rest2 * g;
    *w = k->keep * *w - k->lr * u;
}

OPTIMIZER(lion, .about = "sign of a momentum: all steps have the same size", .default_lr = 1e-4,
          .default_decay = 1, .defaults = {0.9, 0.99})
