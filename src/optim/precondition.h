/*
 * precondition.h -- what shampoo and caspr share: options in the order of ir/matrix_operands.h, states by blocks.
 */
#ifndef SNUG_OPTIM_PRECONDITION_H
#define SNUG_OPTIM_PRECONDITION_H

#include "ir/matrix_operands.h"
#include "optim/optim.h"

/* A copy of the target's, with whole numbers where they count something; refuses those below 1. */
enum snug_status precondition_options(const struct optim_target *target,
                                      double options[MAX_OPTIONS]);

/* The states m, v, l, r, pl, pr (caspr: l_then), the op and the update. */
enum snug_status precondition_emit(const struct optim_target *target, enum op_kind kind,
                                   const double options[MAX_OPTIONS]);

/* For what they leave alone. */
enum snug_status precondition_emit_nadamw(const struct optim_target *target, double beta1,
                                          double beta2, double eps);

/* The number of the option as a whole one from 1 to `most`. */
enum snug_status optim_whole_option(const struct optim_target *target, const char *name,
                                    double most, double *value);

#endif
