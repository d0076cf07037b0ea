/*
 * attention_args.h -- what the two dispatch files of attention read from a kernel call.
 */
#ifndef SNUG_CUDA_DISPATCH_ATTENTION_ARGS_H
#define SNUG_CUDA_DISPATCH_ATTENTION_ARGS_H

#include "exec/backend.h"
#include "ir/attention_operands.h"

static inline struct attention_sizes attention_call_sizes(const struct kernel_call *call)
{
    const struct operand *q = &call->in[attention_index(call->op, ATTENTION_Q)];
    const struct tensor *k = q[ATTENTION_K].tensor;
    return attention_sizes(attrs_of(call->op, attention), &q->tensor->shape,
                           k == NULL ? NULL : &k->shape);
}

/* `elems` elements after the beginning of x. */
static inline void *operand_after(const struct operand *x, int64_t elems)
{
    return (char *)x->data + elems * (int64_t)dtype_bytes(x->tensor->dtype);
}

#endif
