/*
 * adadelta.c -- Adadelta (Zeiler): steps have the units of the weights.
 *
 *     g += decay W      v = gamma v + (1-gamma) g^2      u = sqrt(d + eps) / sqrt(v + eps) g
 *     W -= lr u         d = rho d + (1-rho) u^2
 *
 * state: v, delta (d above): 8 bytes per parameter.
 */
#include "optim/rule.h"

STATES(adadelta, v, delta)
OPTIONS(adadelta, gamma, rho, eps)
CONSTANTS(adadelta, lr, decay, gamma, rest_gamma, rho, rest_rho, eps)

PREPARE(adadelta)
{
    k->lr = now->lr;
    k->decay = now->decay;
    k->gamma = o->gamma;
    k->rest_gamma = 1 - o->gamma;
    k->rho = o->rho;
    k->rest_rho = 1 - o->rho;
    k->eps = o->eps;
}

STEP(adadelta)
{
    g += k->decay * *w;
    s->v = k->gamma * s->v + k->rest_gamma * g * g;
    real u = root(s->delta + k->eps) / root(s->v + k->eps) * g;
    s->delta = k->rho * s->delta + k->rest_rho * u * u;
    *w -= k->lr * u;
}

OPTIMIZER(adadelta, .about = "running averages of squared gradients and updates", .default_lr = 1,
          .defaults = {0.9, 0.9, 1e-6}, .positive = "v, delta")
