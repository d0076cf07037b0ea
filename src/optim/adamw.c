/*
 * adamw.c -- Adam with decoupled weight decay (Loshchilov and Hutter).
 *
 *     m = b1 m + (1-b1) g      v = b2 v + (1-b2) g^2
 *     W -= lr decay W          W -= lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps)
 *
 * state: m, v: 8 bytes per parameter.
 */
#include "optim/moments.h"

STATES(adamw, m, v)
OPTIONS(adamw, beta1, beta2, eps)
CONSTANTS(adamw, MOMENT_CONSTANTS)

PREPARE(adamw)
{
    PREPARE_MOMENTS(k, o, now);
}

STEP(adamw)
{
    s->m = k->beta1 * s->m + k->rest1 * g;
    s->v = k->beta2 * s->v + k->rest2 * g * g;
    *w = k->keep * *w - k->step * (s->m / (root(s->v) * k->root_scale + k->eps));
}

OPTIMIZER(adamw, .about = "Adam with decoupled weight decay", .default_lr = 3e-4,
          .default_decay = 0.1, .defaults = {0.9, 0.95, 1e-8}, .positive = "v")
