/*
 * adam.c -- Adam (Kingma and Ba), as in PyTorch: weight decay is coupled (an L2 penalty).
 *
 *     g += decay W             m = b1 m + (1-b1) g      v = b2 v + (1-b2) g^2
 *     W -= lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps)
 *
 * decoupled=1 selects AdamW's decay: W -= lr decay W in place of g += decay W.
 *
 * state: m, v: 8 bytes per parameter.
 */
#include "optim/moments.h"

STATES(adam, m, v)
OPTIONS(adam, beta1, beta2, eps, decoupled)
CONSTANTS(adam, MOMENT_CONSTANTS, coupled)

PREPARE(adam)
{
    PREPARE_MOMENTS(k, o, now);
    PREPARE_COUPLED(k, o, now);
}

STEP(adam)
{
    g += k->coupled * *w;
    s->m = k->beta1 * s->m + k->rest1 * g;
    s->v = k->beta2 * s->v + k->rest2 * g * g;
    *w = k->keep * *w - k->step * (s->m / (root(s->v) * k->root_scale + k->eps));
}

OPTIMIZER(adam, .about = "Adam with coupled weight decay, as in PyTorch", .default_lr = 3e-4,
          .defaults = {0.9, 0.95, 1e-8, 0}, .positive = "v")
