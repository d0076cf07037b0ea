/*
 * nadamp.c -- NadamW with the p-th root in place of the square root (AlgoPerf's NadamP):
 *
 *     m, v, u as in nadamw.c      W -= lr decay W      W -= lr u / ((v / (1-b2^t))^(1/p) + eps)
 *
 * state: m, v: 8 bytes per parameter.
 */
#include "optim/moments.h"

STATES(nadamp, m, v)
OPTIONS(nadamp, beta1, beta2, eps, p)
CONSTANTS(nadamp, MOMENT_CONSTANTS, unbias, exponent)

PREPARE(nadamp)
{
    PREPARE_MOMENTS(k, o, now);
    k->unbias = 1 / (1 - pow(o->beta2, now->t));
    k->exponent = 1 / o->p;
}

STEP(nadamp)
{
    s->m = k->beta1 * s->m + k->rest1 * g;
    s->v = k->beta2 * s->v + k->rest2 * g * g;
    real u = k->beta1 * s->m + k->rest1 * g;
    *w = k->keep * *w - k->step * (u / (power(s->v * k->unbias, k->exponent) + k->eps));
}

OPTIMIZER(nadamp, .about = "NadamW with a p-th root", .default_lr = 3e-4, .default_decay = 0.1,
          .defaults = {0.9, 0.999, 1e-8, 2}, .positive = "v")
