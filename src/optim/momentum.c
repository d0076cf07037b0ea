/*
 * momentum.c -- gradient descent with momentum (Polyak, or Nesterov by option), as PyTorch's SGD:
 *
 *     g += decay W      m = mu m + g      W -= lr m, or with nesterov=1: W -= lr (g + mu m)
 *
 * state: m: 4 bytes per parameter.
 */
#include "optim/rule.h"

STATES(momentum, m)
OPTIONS(momentum, mu, nesterov)
CONSTANTS(momentum, lr, decay, mu, of_g, of_m)

PREPARE(momentum)
{
    k->lr = now->lr;
    k->decay = now->decay;
    k->mu = o->mu;
    k->of_g = o->nesterov != 0 ? 1 : 0;
    k->of_m = o->nesterov != 0 ? o->mu : 1;
}

STEP(momentum)
{
    g += k->decay * *w;
    s->m = k->mu * s->m + g;
    *w -= k->lr * (k->of_g * g + k->of_m * s->m);
}

OPTIMIZER(momentum, .about = "gradient descent with momentum", .default_lr = 0.01,
          .defaults = {0.9, 0})
