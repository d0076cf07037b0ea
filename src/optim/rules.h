/*
 * rules.h -- every rule of ir/rules.def as functions, for the kernels: set RULE_REAL first.
 *
 * A rule that is listed there but not here does not compile in the tables of the kernels.
 */
#ifndef SNUG_OPTIM_RULES_H
#define SNUG_OPTIM_RULES_H

/* NOLINTBEGIN(bugprone-suspicious-include): a rule is written once, in a file of its own */
#include "optim/adadelta.c"
#include "optim/adagrad.c"
#include "optim/adamw.c"
#include "optim/amsgrad.c"
#include "optim/generalized_adam.c"
#include "optim/lion.c"
#include "optim/momentum.c"
#include "optim/nadamp.c"
#include "optim/nadamw.c"
#include "optim/rmsprop.c"
#include "optim/sgd.c"
/* NOLINTEND(bugprone-suspicious-include) */

#endif
