/*
 * rules.h -- every rule of ir/rules.def as functions, for the kernels: set RULE_REAL first.
 *
 * A rule that is listed there but not here does not compile in the tables of the kernels.
 */
#ifndef SNUG_OPTIM_RULES_H
#define SNUG_OPTIM_RULES_H

#include "ir/program.h"

/* NOLINTBEGIN(bugprone-suspicious-include): a rule is written once, in a file of its own */
#include "optim/adadelta.c"
#include "optim/adafactor.c"
#include "optim/adagrad.c"
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

/* What PREPARE may read, for one op `update`. */
static inline struct rule_now rule_now(const struct attrs *attrs, const double *scalars)
{
    return (struct rule_now){.lr = attrs->direction == DIRECTION_scaled
                                       ? scalars[SCALAR_direction_lr]
                                       : scalars[SCALAR_lr] * attrs->lr_factor,
                             .decay = attrs->decay,
                             .t = scalars[SCALAR_update_count],
                             .n_steps = scalars[SCALAR_n_steps],
                             .average_share = scalars[SCALAR_average_share],
                             .d = scalars[SCALAR_d],
                             .d_before = scalars[SCALAR_d_before]};
}

/* What gradients, or directions, are multiplied with. */
static inline double rule_factor(const struct attrs *attrs, const double *scalars)
{
    switch (attrs->direction) {
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
