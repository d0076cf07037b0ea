/*
 * generalized_adam.c -- NadamW with optional parts (AlgoPerf's Generalized Adam):
 *
 *     m = b1 m + (1-b1) g      v = b2 v + (1-b2) g^2      u = nesterov ? b1 m + (1-b1) g : m
 *     W -= lr decay W          W -= lr (u / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps)
 *
 * precondition=0 gives heavy-ball momentum: m = b1 m + g, u = nesterov ? g + b1 m : m, W -= lr
 * decay W + lr u.
 *
 * state: m, v: 8 bytes per parameter.
 */
#include "optim/moments.h"

STATES(generalized_adam, m, v)
OPTIONS(generalized_adam, beta1, beta2, eps, nesterov, precondition)
CONSTANTS(generalized_adam, MOMENT_CONSTANTS, of_m, of_g)

PREPARE(generalized_adam)
{
    PREPARE_MOMENTS(k, o, now);
    if (o->precondition == 0) {
        k->rest1 = 1;
        k->step = now->lr;
        k->root_scale = 0;
        k->eps = 1; /* divides by 1 */
    }
    k->of_m = o->nesterov != 0 ? o->beta1 : 1;
    k->of_g = o->nesterov != 0 ? k->rest1 : 0;
}

STEP(generalized_adam)
{
    s->m = k->beta1 * s->m + k->rest1 * g;
    s->v = k->beta2 * s->v + k->rest2 * g * g;
    real u = k->of_m * s->m + k->of_g * g;
    *w = k->keep * *w - k->step * (u / (root(s->v) * k->root_scale + k->eps));
}

OPTIMIZER(generalized_adam, .name = "generalized-adam",
          .about = "NadamW with optional Nesterov and preconditioner", .default_lr = 3e-4,
          .default_decay = 0.1, .defaults = {0.9, 0.999, 1e-8, 1, 1}, .positive = "v")
