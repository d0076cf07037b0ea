/*
 * autodiff.h -- the interface between autodiff.c and the gradient rules of gradients.c.
 */
#ifndef SNUG_PASS_AUTODIFF_H
#define SNUG_PASS_AUTODIFF_H

#include "pass/pass.h"

struct autodiff {
    struct program *prog;
    struct pass_env *env;
    tensor_id *grad; /* per forward tensor: its gradient so far, or TENSOR_NONE */
    bool *wanted;    /* per forward tensor: needs a gradient (depends on a trained parameter) */
    tensor_id scalars;
};

/* The gradient accumulated so far for a tensor, or TENSOR_NONE. */
tensor_id autodiff_of(const struct autodiff *ad, tensor_id id);
bool autodiff_wants(const struct autodiff *ad, tensor_id id); /* false for TENSOR_NONE */

/* Emits an op whose outputs are new tensors "d.NAME" and adds output k to the gradient of to[k].
 * Outputs that the op can accumulate (+=) go straight into a parameter's gradient.  Output k is
 * omitted if to[k] is TENSOR_NONE or not wanted; if all are, the op is not emitted. */
enum snug_status autodiff_emit(struct autodiff *ad, enum op_kind kind, const struct attrs *attrs,
                               int n_in, const tensor_id *in, int n_out, const tensor_id *to);
/* Adds an existing tensor to the gradient of `to` (dy reaches both inputs of an add). */
enum snug_status autodiff_give(struct autodiff *ad, tensor_id to, tensor_id grad);

/* gradients.c: the rule of an op; NULL where ops.def has GRADIENT(none). */
typedef enum snug_status gradient_rule(struct autodiff *ad, const struct op *op);
gradient_rule *gradient_rule_of(enum op_kind kind);

#endif
