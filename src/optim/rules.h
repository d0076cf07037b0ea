/*
 * rules.h -- the functions of every rule of ir/rules.def, for the kernels.  Define RULE_REAL first.
 *
 * A rule that is missing here is a compile error in the kernel tables.
 */
#ifndef SNUG_OPTIM_RULES_H
#define SNUG_OPTIM_RULES_H

#include "base/device_fn.h"
#include "ir/program.h"

/* NOLINTBEGIN(bugprone-suspicious-include): a rule is written once, in a file of its own */
#include "optim/adadelta.c"
#include "optim/adafactor.c"
#include "optim/adagrad.c"
#include "optim/adam.c"
#include "optim/adamw.c"
#include "optim/amsgrad.c"
#include "optim/generalized_adam.c"
#include "optim/lion.c"
#include "optim/momentum.c"
#include "optim/nadamp.c"
#include "optim/nadamw.c"
#include "optim/rmsprop.c"
#include "optim/schedule_free_adamw.c"
#include "optim/schedule_free_prodigy.c"
#include "optim/sgd.c"
#include "optim/soap.c"
/* NOLINTEND(bugprone-suspicious-include) */

/* The input of PREPARE for an op `update` with these attributes. */
DEVICE_FN struct rule_now rule_now(enum direction direction, double lr_factor, double decay,
                                   const double *scalars)
{
    struct rule_now now;
    now.lr = direction == DIRECTION_scaled ? scalars[SCALAR_direction_lr]
                                           : scalars[SCALAR_lr] * lr_factor;
    now.decay = decay;
    now.t = scalars[SCALAR_update_count];
    now.n_steps = scalars[SCALAR_n_steps];
    now.average_share = scalars[SCALAR_average_share];
    now.d = scalars[SCALAR_d];
    now.d_before = scalars[SCALAR_d_before];
    return now;
}

/* The factor by which an update multiplies its gradient or direction. */
DEVICE_FN double rule_factor(enum direction direction, const double *scalars)
{
    switch (direction) {
    case DIRECTION_scaled:
        return scalars[SCALAR_direction_scale];
    case DIRECTION_as_is:
        return 1;
    case DIRECTION_none:
        break;
    }
    return scalars[SCALAR_clip];
}

#endif
