/*
 * adadelta.c -- Adadelta (Zeiler): steps in the units of the weights.
 *
 *     g += decay W      v = gamma v + (1-gamma) g^2      u = sqrt(d + eps) / sqrt(v + eps) g
 *     W -= lr u         d = rho d + (1-rho) u^2
 *
 * state: v, d: 8 bytes a parameter.
 */
#include "optim/rule.h"

STATES(adadelta, v, d)
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
    real u = root(s->d + k->eps) / root(s->v + k->eps) * g;
    s->d = k->rho * s->d + k->rest_rho * u * u;
    *w -= k->lr * u;
}

OPTIMIZER(adadelta, .about = "steps in the units of the weights", .default_lr = 1,
          .defaults = {0.9, 0.9, 1e-6}, .positive = "v, d")
