/*
 * sgd.c -- stochastic gradient descent: W -= lr (g + decay W).
 *
 * state: none.
 */
#include "optim/rule.h"

NO_STATES(sgd)
NO_OPTIONS(sgd)
CONSTANTS(sgd, lr, keep)

PREPARE(sgd)
{
    k->lr = now->lr;
    k->keep = 1 - now->lr * now->decay;
}

STEP(sgd)
{
    *w = k->keep * *w - k->lr * g;
}

OPTIMIZER(sgd, .about = "plain gradient descent", .default_lr = 0.1)
