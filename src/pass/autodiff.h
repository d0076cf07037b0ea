/*
 * autodiff.h -- what a gradient rule may ask for and give.
 */
#ifndef SNUG_PASS_AUTODIFF_H
#define SNUG_PASS_AUTODIFF_H

#include "pass/pass.h"

struct autodiff {
    struct program *prog;
    struct pass_env *env;
    tensor_id *grad; /* per tensor of the forward program: its gradient so far, or TENSOR_NONE */
    bool *wanted;    /* per tensor: depends on a parameter, so a gradient is of use */
    tensor_id scalars;
};

/* The gradient that has arrived at a tensor; TENSOR_NONE: none ever did. */
tensor_id autodiff_of(const struct autodiff *ad, tensor_id id);
bool autodiff_wants(const struct autodiff *ad, tensor_id id); /* false for TENSOR_NONE */

/* Emits an op whose outputs are new tensors "d.NAME" and hands them to the tensors `to`: summed with
 * what arrived before.  Outputs that the op can accumulate go straight into a parameter's gradient.
 * to[k] TENSOR_NONE, or not wanted: output k is left out; all of them: the op is. */
enum snug_status autodiff_emit(struct autodiff *ad, enum op_kind kind, const struct attrs *attrs,
                               int n_in, const tensor_id *in, int n_out, const tensor_id *to);
/* Hands an existing gradient on to one more tensor (the two sides of an addition). */
enum snug_status autodiff_give(struct autodiff *ad, tensor_id to, tensor_id grad);

/* gradients.c: the rule of each op, NULL where ops.def says none. */
typedef enum snug_status gradient_rule(struct autodiff *ad, const struct op *op);
gradient_rule *gradient_rule_of(enum op_kind kind);

#endif
