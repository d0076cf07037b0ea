/*
 * nadamw.c -- AdamW with Nesterov momentum (Dozat), AlgoPerf's baseline:
 *
 *     m = b1 m + (1-b1) g      v = b2 v + (1-b2) g^2      u = (b1 m + (1-b1) g) / (1-b1^t)
 *     W -= lr decay W          W -= lr u / (sqrt(v / (1-b2^t)) + eps)
 *
 * state: m, v: 8 bytes per parameter.
 */
#include "optim/moments.h"

STATES(nadamw, m, v)
OPTIONS(nadamw, beta1, beta2, eps)
CONSTANTS(nadamw, MOMENT_CONSTANTS)

PREPARE(nadamw)
{
    PREPARE_MOMENTS(k, o, now);
}

STEP(nadamw)
{
    s->m = k->beta1 * s->m + k->rest1 * g;
    s->v = k->beta2 * s->v + k->rest2 * g * g;
    real u = k->beta1 * s->m + k->rest1 * g;
    *w = k->keep * *w - k->step * (u / (root(s->v) * k->root_scale + k->eps));
}

OPTIMIZER(nadamw, .about = "AdamW with Nesterov momentum", .default_lr = 3e-4, .default_decay = 0.1,
          .defaults = {0.9, 0.999, 1e-8}, .positive = "v")
