/*
 * precondition.h -- shared by shampoo and caspr.  Options are in the order of ir/matrix_operands.h.
 */
#ifndef SNUG_OPTIM_PRECONDITION_H
#define SNUG_OPTIM_PRECONDITION_H

#include "ir/matrix_operands.h"
#include "optim/optim.h"

/* Copies the target's options, rounding block, every and start down to whole numbers.  Fails if
 * block or every is below 1. */
enum snug_status precondition_options(const struct optim_target *target,
                                      double options[MAX_OPTIONS]);

/* Adds the states m, v, l, r, pl, pr (caspr: l_then too), the direction op and the update. */
enum snug_status precondition_emit(const struct optim_target *target, enum op_kind kind,
                                   const double options[MAX_OPTIONS]);

/* Adds a NadamW update, for tensors that are not preconditioned. */
enum snug_status precondition_emit_nadamw(const struct optim_target *target, double beta1,
                                          double beta2, double eps);

/* Rounds an option down to a whole number of at most `most`.  Fails below 1. */
enum snug_status optim_whole_option(const struct optim_target *target, const char *name,
                                    double most, double *value);

#endif
