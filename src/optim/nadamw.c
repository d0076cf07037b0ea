/*
 * nadamw.c -- AdamW with Nesterov's momentum (Dozat), the baseline of AlgoPerf:
 *
 *     m = b1 m + (1-b1) g      v = b2 v + (1-b2) g^2      u = (b1 m + (1-b1) g) / (1-b1^t)
 *     W -= lr decay W          W -= lr u / (sqrt(v / (1-b2^t)) + eps)
 *
 * state: m, v: 8 bytes a parameter.
 */
#include "optim/rule.h"

STATES(nadamw, m, v)
OPTIONS(nadamw, beta1, beta2, eps)
CONSTANTS(nadamw, keep, beta1, rest1, beta2, rest2, step, root_scale, eps)

PREPARE(nadamw)
{
    k->keep = 1 - now->lr * now->decay;
    k->beta1 = o->beta1;
    k->rest1 = 1 - o->beta1;
    k->beta2 = o->beta2;
    k->rest2 = 1 - o->beta2;
    k->step = now->lr / (1 - pow(o->beta1, now->t));
    k->root_scale = 1 / sqrt(1 - pow(o->beta2, now->t));
    k->eps = o->eps;
}

STEP(nadamw)
{
    s->m = k->beta1 * s->m + k->rest1 * g;
    s->v = k->beta2 * s->v + k->rest2 * g * g;
    real u = k->beta1 * s->m + k->rest1 * g;
    *w = k->keep * *w - k->step * (u / (root(s->v) * k->root_scale + k->eps));
}

OPTIMIZER(nadamw, .about = "AdamW with Nesterov's momentum", .default_lr = 3e-4,
          .default_decay = 0.1, .defaults = {0.9, 0.999, 1e-8}, .positive = "v")
