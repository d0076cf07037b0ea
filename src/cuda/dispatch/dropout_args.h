/*
 * dropout_args.h -- the dropout mask of an op, from its attributes, for the kernels of several
 * families.
 */
#ifndef SNUG_CUDA_DISPATCH_DROPOUT_ARGS_H
#define SNUG_CUDA_DISPATCH_DROPOUT_ARGS_H

#include "cuda/kernels/dropout.h"
#include "exec/backend.h"

/* Input k is the scalar table; it may be missing if the dropout rate is 0. */
static inline struct cuda_dropout cuda_dropout_of(const struct kernel_call *call, int k)
{
    struct dropout_attrs attrs = op_dropout(call->op);
    if (!(attrs.dropout > 0))
        return (struct cuda_dropout){.scale = 1.0f};
    return (struct cuda_dropout){.scalars = call->in[k].data,
                                 .site = attrs.site,
                                 .micro = call->op->micro,
                                 .below = (uint32_t)(attrs.dropout * 0x1p32),
                                 .scale = (float)(1.0 / (1.0 - attrs.dropout))};
}

#endif
