/*
 * moments.h -- the constants shared by Adam and its variants, for CONSTANTS and PREPARE of rule.h:
 *
 *     m = beta1 m + rest1 g      v = beta2 v + rest2 g^2
 *     W = keep W - step m / (root_scale sqrt(v) + eps)
 *
 * Weight decay is decoupled: it is part of `keep`.  A rule with the option `decoupled` has coupled
 * decay by default, g += decay W before the above.  It adds the constant `coupled` and calls
 * PREPARE_COUPLED.
 */
#ifndef SNUG_OPTIM_MOMENTS_H
#define SNUG_OPTIM_MOMENTS_H

#include "optim/rule.h"

#define MOMENT_CONSTANTS keep, beta1, rest1, beta2, rest2, step, root_scale, eps

/* Reads the options beta1, beta2, eps.  A macro, because each rule has its own structs. */
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

/* Call it after PREPARE_MOMENTS. */
#define PREPARE_COUPLED(k, o, now)                             \
    do {                                                       \
        (k)->coupled = (o)->decoupled != 0 ? 0 : (now)->decay; \
        (k)->keep = (o)->decoupled != 0 ? (k)->keep : 1;       \
    } while (0)

#endif
