/*
 * moments.h -- the constants that Adam and its kin share, for CONSTANTS and PREPARE of rule.h:
 *
 *     m = beta1 m + rest1 g      v = beta2 v + rest2 g^2      W = keep W - step m / (root_scale sqrt(v) + eps)
 *
 * Weight decay is decoupled: it is in `keep`.  A rule whose decay is coupled, g += decay W before all this,
 * unless the option `decoupled` says otherwise, has the constant `coupled` too and calls PREPARE_COUPLED.
 */
#ifndef SNUG_OPTIM_MOMENTS_H
#define SNUG_OPTIM_MOMENTS_H

#include "optim/rule.h"

#define MOMENT_CONSTANTS keep, beta1, rest1, beta2, rest2, step, root_scale, eps

/* From the options beta1, beta2, eps.  A macro, because each rule has structs of its own. */
#define PREPARE_MOMENTS(k, o, now)                                 \
    do {                                                           \
        (k)->keep = 1 - (now)->lr * (now)->decay;                  \
        (k)->beta1 = (o)->beta1;                                   \
        (k)->rest1 = 1 - (o)->beta1;                               \
        (k)->beta2 = (o)->beta2;                                   \
        (k)->rest2 = 1 - (o)->beta2;                               \
        (k)->step = (now)->lr / (1 - pow((o)->beta1, (now)->t));   \
        (k)->root_scale = 1 / sqrt(1 - pow((o)->beta2, (now)->t)); \
        (k)->eps = (o)->eps;                                       \
    } while (0)

/* After PREPARE_MOMENTS. */
#define PREPARE_COUPLED(k, o, now)                             \
    do {                                                       \
        (k)->coupled = (o)->decoupled != 0 ? 0 : (now)->decay; \
        (k)->keep = (o)->decoupled != 0 ? (k)->keep : 1;       \
    } while (0)

#endif
