/*
 * exchange.h -- how the ops that ranks carry out together are written: which ranks, and how tensors are
 * shared among them.
 *
 * The attribute `options` of all_reduce, reduce_scatter and all_gather is: ranks, unit, owner.  Operand k
 * of the inputs and operand k of the outputs belong together: a tensor that all ranks know as a whole,
 * and this rank's range of it (base/cut.h), a tensor of its own.  Where both are the same tensor the
 * range lies in the whole; where the range is left out, this rank has none.
 */
#ifndef SNUG_IR_EXCHANGE_H
#define SNUG_IR_EXCHANGE_H

#include "base/cut.h"
#include "ir/program.h"

enum { EXCHANGE_RANKS, EXCHANGE_UNIT, EXCHANGE_OWNER };

static inline bool op_is_exchange(enum op_kind kind)
{
    return kind == OP_all_reduce || kind == OP_reduce_scatter || kind == OP_all_gather;
}

static inline struct attrs exchange_attrs(int n_ranks, struct cut cut)
{
    struct attrs attrs = ATTRS();
    attrs.options.value[EXCHANGE_RANKS] = n_ranks;
    attrs.options.value[EXCHANGE_UNIT] = (double)cut.unit;
    attrs.options.value[EXCHANGE_OWNER] = cut.owner;
    return attrs;
}

static inline int exchange_ranks(const struct op *op)
{
    return (int)op->attrs.options.value[EXCHANGE_RANKS];
}

static inline struct cut exchange_cut(const struct op *op)
{
    return (struct cut){.unit = (int64_t)op->attrs.options.value[EXCHANGE_UNIT],
                        .owner = (int)op->attrs.options.value[EXCHANGE_OWNER]};
}

/* Of operand k. */
static inline tensor_id exchange_whole(const struct op *op, int k)
{
    return op->kind == OP_all_gather ? op->out[k] : op->in[k];
}

static inline tensor_id exchange_piece(const struct op *op, int k)
{
    return op->kind == OP_all_gather ? op->in[k] : op->out[k];
}

/* Of all operands. */
static inline double exchange_bytes(const struct program *prog, const struct op *op)
{
    double bytes = 0;
    for (int k = 0; k < op->n_in; k++)
        bytes += (double)tensor_bytes(prog, exchange_whole(op, k));
    return bytes;
}

#endif
