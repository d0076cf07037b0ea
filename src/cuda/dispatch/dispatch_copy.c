/*
 * dispatch_copy.c -- fetch and stash between the arena and the store; settle, which only waits; clear.
 *
 * Each runs on a stream of its own (exec/exec_device.c): the executor says what waits for them.
 */
#include "cuda/kernels/copy.h"
#include "cuda/dispatch/dispatch.h"
#include "cuda/pinned_pool.h"
#include "cuda/kernels/sums.h"

static unsigned char *in_store(const struct kernel_call *call, const struct operand *x)
{
    return ((struct cuda_store *)call->store)->base + x->stored_at;
}

static int64_t bytes_of(const struct operand *x)
{
    return shape_elems(&x->tensor->shape) * (int64_t)dtype_bytes(x->tensor->dtype);
}

static enum snug_status run_fetch(const struct kernel_call *call, struct snug_error *err)
{
    const struct operand *x = &call->in[0], *y = &call->out[0];
    return cuda_done(call, cuda_copy(y->data, in_store(call, x), bytes_of(y), call->stream), err);
}

static enum snug_status run_stash(const struct kernel_call *call, struct snug_error *err)
{
    const struct operand *x = &call->in[0], *y = &call->out[0];
    return cuda_done(call, cuda_copy(in_store(call, y), x->data, bytes_of(y), call->stream), err);
}

static enum snug_status run_clear(const struct kernel_call *call, struct snug_error *err)
{
    const struct operand *y = &call->out[0];
    return cuda_done(call, cuda_clear(y->data, (size_t)bytes_of(y), call->stream), err);
}

static enum snug_status run_settle(const struct kernel_call *call, struct snug_error *err)
{
    (void)call;
    (void)err;
    return SNUG_OK;
}

CUDA_ROWS(copy) = {
    {.kind = OP_fetch, .name = "cuda", .run = run_fetch},
    {.kind = OP_stash, .name = "cuda", .run = run_stash},
    {.kind = OP_clear, .name = "cuda", .run = run_clear},
    {.kind = OP_settle, .name = "cuda", .run = run_settle},
};
CUDA_ROWS_END(copy)
