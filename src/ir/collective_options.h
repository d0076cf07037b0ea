/*
 * collective_options.h -- the attribute `options` and the operands of collectives and of send/recv.
 *
 * The options of all_reduce, reduce_scatter and all_gather are ranks (the size of the group), unit,
 * owner (base/cut.h) and group.  The option of send and recv is the rank of the peer.
 *
 * Input k and output k of a collective form a pair: a whole tensor, and this rank's range of it
 * (base/cut.h), which is a tensor of its own.  If both are the same tensor, the range is a part of
 * the whole.  If the range is left out, this rank has no elements.
 */
#ifndef SNUG_IR_COLLECTIVE_OPTIONS_H
#define SNUG_IR_COLLECTIVE_OPTIONS_H

#include "base/cut.h"
#include "ir/program.h"

enum { COLLECTIVE_RANKS, COLLECTIVE_UNIT, COLLECTIVE_OWNER, COLLECTIVE_GROUP };
enum { P2P_PEER };

/* All ranks; the ranks of the same pipeline stage; the first and the last stage of a pipeline. */
enum collective_group { GROUP_ALL, GROUP_STAGE, GROUP_ENDS, COLLECTIVE_GROUPS };

static inline int p2p_peer(const struct op *op)
{
    return (int)attrs_of(op, options)->options.value[P2P_PEER];
}

static inline struct attrs p2p_attrs(int peer)
{
    struct attrs attrs = ATTRS(options);
    attrs.options.options.value[P2P_PEER] = peer;
    return attrs;
}

static inline enum collective_group collective_group(const struct op *op)
{
    return (enum collective_group)attrs_of(op, options)->options.value[COLLECTIVE_GROUP];
}

static inline struct attrs collective_attrs(int n_ranks, struct cut cut,
                                            enum collective_group group)
{
    struct attrs attrs = ATTRS(options);
    attrs.options.options.value[COLLECTIVE_RANKS] = n_ranks;
    attrs.options.options.value[COLLECTIVE_UNIT] = (double)cut.unit;
    attrs.options.options.value[COLLECTIVE_OWNER] = cut.owner;
    attrs.options.options.value[COLLECTIVE_GROUP] = group;
    return attrs;
}

static inline int collective_ranks(const struct op *op)
{
    return (int)attrs_of(op, options)->options.value[COLLECTIVE_RANKS];
}

static inline struct cut collective_cut(const struct op *op)
{
    return (struct cut){.unit = (int64_t)attrs_of(op, options)->options.value[COLLECTIVE_UNIT],
                        .owner = (int)attrs_of(op, options)->options.value[COLLECTIVE_OWNER]};
}

/* The whole tensor and this rank's range of pair k. */
static inline tensor_id collective_whole(const struct op *op, int k)
{
    return op_has(op, TRAIT_reduces) ? op->in[k] : op->out[k];
}

static inline tensor_id collective_piece(const struct op *op, int k)
{
    return op_has(op, TRAIT_reduces) ? op->out[k] : op->in[k];
}

/* Bytes of all whole tensors. */
static inline double collective_bytes(const struct program *prog, const struct op *op)
{
    double bytes = 0;
    for (int k = 0; k < op->n_in; k++)
        bytes += (double)tensor_bytes(prog, collective_whole(op, k));
    return bytes;
}

#endif
