/*
 * ref_copy.c -- copies between the arena and the store, for every device whose memory the host can reach.
 */
#include "cpu/ref_local.h"

static int64_t n_bytes(const struct operand *x)
{
    return elems(x) * (int64_t)dtype_bytes(x->tensor->dtype);
}

enum snug_status ref_fetch(const struct kernel_call *call, struct snug_error *err)
{
    const struct operand *from = &call->in[0], *to = &call->out[0];
    return call->store->read(call->store, from->stored_at, to->data, n_bytes(to), err);
}

enum snug_status ref_stash(const struct kernel_call *call, struct snug_error *err)
{
    const struct operand *from = &call->in[0], *to = &call->out[0];
    return call->store->write(call->store, to->stored_at, from->data, n_bytes(from), err);
}

/* The executor has waited. */
enum snug_status ref_settle(const struct kernel_call *call, struct snug_error *err)
{
    (void)call;
    (void)err;
    return SNUG_OK;
}
