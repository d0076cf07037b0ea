/*
 * collective_options.h -- how the ops that ranks carry out together are written: which ranks, and how tensors are
 * shared among them.
 *
 * The attribute `options` of all_reduce, reduce_scatter and all_gather is: ranks, unit, owner, group.
 * `ranks` is how many the group has.  The option of send and recv is the other rank.  Operand k of the
 * inputs and operand k of the outputs belong together: a tensor that all ranks know as a whole, and this
 * rank's range of it (base/cut.h), a tensor of its own.  Where both are the same tensor the range lies in
 * the whole; where the range is left out, this rank has none.
 */
#ifndef SNUG_IR_COLLECTIVE_OPTIONS_H
#define SNUG_IR_COLLECTIVE_OPTIONS_H

#include "base/cut.h"
#include "ir/program.h"

enum { EXCHANGE_RANKS, EXCHANGE_UNIT, EXCHANGE_OWNER, EXCHANGE_GROUP };
enum { MESSAGE_PEER };

/* Which ranks: all; those with the same stage of a pipeline; the first and the last stage of a pipeline. */
enum exchange_group { GROUP_ALL, GROUP_STAGE, GROUP_ENDS, EXCHANGE_GROUPS };

static inline bool op_is_exchange(enum op_kind kind)
{
    return kind == OP_all_reduce || kind == OP_reduce_scatter || kind == OP_all_gather;
}

static inline bool op_is_message(enum op_kind kind)
{
    return kind == OP_send || kind == OP_sent || kind == OP_recv;
}

static inline int message_peer(const struct op *op)
{
    return (int)op->attrs.options.value[MESSAGE_PEER];
}

static inline struct attrs message_attrs(int peer)
{
    struct attrs attrs = ATTRS();
    attrs.options.value[MESSAGE_PEER] = peer;
    return attrs;
}

static inline enum exchange_group exchange_group(const struct op *op)
{
    return (enum exchange_group)op->attrs.options.value[EXCHANGE_GROUP];
}

static inline struct attrs exchange_attrs(int n_ranks, struct cut cut, enum exchange_group group)
{
    struct attrs attrs = ATTRS();
    attrs.options.value[EXCHANGE_RANKS] = n_ranks;
    attrs.options.value[EXCHANGE_UNIT] = (double)cut.unit;
    attrs.options.value[EXCHANGE_OWNER] = cut.owner;
    attrs.options.value[EXCHANGE_GROUP] = group;
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
