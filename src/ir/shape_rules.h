/*
 * shape_rules.h -- helpers shared by the shape rules in shape.c, shape_attention.c and
 * shape_update.c.
 */
#ifndef SNUG_IR_SHAPE_RULES_H
#define SNUG_IR_SHAPE_RULES_H

#include "ir/program.h"

enum { UNCHECKED = -1 };

typedef enum snug_status shape_rule(const struct program *prog, const struct op *op,
                                    struct shape *out, struct snug_error *err);

static inline const struct shape *in_shape(const struct program *prog, const struct op *op, int k)
{
    return &prog->tensors[op->in[k]].shape;
}

static inline enum snug_status wrong(const struct program *prog, const struct op *op, int k,
                                     const char *expected, struct snug_error *err)
{
    return snug_fail(err, SNUG_BAD_PROGRAM, "%s: operand \"%s\" should be %s",
                     op_infos[op->kind].name, prog->tensors[op->in[k]].name, expected);
}

static inline struct shape vector(int64_t n)
{
    return (struct shape){1, {n}};
}

static inline struct shape with_last(const struct shape *shape, int64_t last)
{
    struct shape out = *shape;
    out.dim[out.n_dims - 1] = last;
    return out;
}

static inline enum snug_status shape_none(const struct program *prog, const struct op *op,
                                          struct shape *out, struct snug_error *err)
{
    (void)prog, (void)err;
    for (int k = 0; k < op->n_out; k++)
        out[k].n_dims = UNCHECKED;
    return SNUG_OK;
}

/* shape_attention.c */
shape_rule shape_attention, shape_attention_grad;
/* shape_update.c */
shape_rule shape_update, shape_adafactor, shape_amos, shape_prodigy_sums, shape_average,
    shape_average_keep, shape_direction, shape_dequantize, shape_collective;

#endif
