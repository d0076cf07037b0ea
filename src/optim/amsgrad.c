/*
 * amsgrad.c -- AMSGrad (Reddi, Kale and Kumar), PyTorch's Adam(amsgrad=True):
 *
 *     g += decay W      m, v as in Adam      vmax = max(vmax, v)
 *     W -= lr (m / (1-b1^t)) / (sqrt(vmax / (1-b2^t)) + eps)
 *
 * decoupled=1 selects AdamW's decay: W -= lr decay W in place of g += decay W.
 *
 * state: m, v, vmax: 12 bytes per parameter.
 */
#include "optim/moments.h"

STATES(amsgrad, m, v, vmax)
OPTIONS(amsgrad, beta1, beta2, eps, decoupled)
CONSTANTS(amsgrad, MOMENT_CONSTANTS, coupled)

PREPARE(amsgrad)
{
    PREPARE_MOMENTS(k, o, now);
    PREPARE_COUPLED(k, o, now);
}

STEP(amsgrad)
{
    g += k->coupled * *w;
    s->m = k->beta1 * s->m + k->rest1 * g;
    s->v = k->beta2 * s->v + k->rest2 * g * g;
    s->vmax = larger(s->vmax, s->v);
    *w = k->keep * *w - k->step * (s->m / (root(s->vmax) * k->root_scale + k->eps));
}

OPTIMIZER(amsgrad, .about = "Adam with the maximum of past second moments", .default_lr = 3e-4,
          .defaults = {0.9, 0.999, 1e-8, 0}, .positive = "v, vmax")
