/*
 * optim.h -- what an optimizer is: the states it keeps per parameter and the ops that update it.
 */
#ifndef SNUG_OPTIM_OPTIM_H
#define SNUG_OPTIM_OPTIM_H

#include "ir/program.h"

struct optim_target { /* one parameter, ready to be updated */
    struct program *prog;
    tensor_id grad, scalars, weight;
    tensor_id master; /* fp32 copy of a 16-bit weight, or TENSOR_NONE */
    double beta1, beta2, eps, decay;
    struct snug_error *err;
};

struct optimizer {
    const char *name;
    const char *about; /* one line for the help */
    double default_lr, default_decay;
    enum snug_status (*emit)(const struct optim_target *target); /* states, then the update op */
};

extern const struct optimizer optimizer_adamw, optimizer_adam, optimizer_sgd;

const struct optimizer *optimizer_find(const char *name); /* NULL: none of that name */

/* Adds a state tensor PREFIX.WEIGHT of the weight's shape, zero at the start. */
enum snug_status optim_add_state(const struct optim_target *target, const char *prefix,
                                 enum dtype dtype, tensor_id *id);

#endif
