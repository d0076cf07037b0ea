/*
 * dispatch_copy.c -- prefetch and evict between the arena and the offload pool; wait_copy, which
 * does nothing here; clear.
 *
 * prefetch and evict run on streams of their own (exec/exec_device.c); the executor inserts the
 * waits.
 */
#include "cuda/kernels/copy.h"
#include "cuda/dispatch/dispatch.h"
#include "cuda/pinned_pool.h"
#include "cuda/kernels/sums.h"

static unsigned char *in_pool(const struct kernel_call *call, const struct operand *x)
{
    return ((struct pinned_pool *)call->pool)->base + x->pool_offset;
}

static int64_t bytes_of(const struct operand *x)
{
    return shape_elems(&x->tensor->shape) * (int64_t)dtype_bytes(x->tensor->dtype);
}

static enum snug_status run_prefetch(const struct kernel_call *call, struct snug_error *err)
{
    const struct operand *x = &call->in[0], *y = &call->out[0];
    return cuda_done(call, cuda_copy(y->data, in_pool(call, x), bytes_of(y), call->stream), err);
}

static enum snug_status run_evict(const struct kernel_call *call, struct snug_error *err)
{
    const struct operand *x = &call->in[0], *y = &call->out[0];
    return cuda_done(call, cuda_copy(in_pool(call, y), x->data, bytes_of(y), call->stream), err);
}

static enum snug_status run_clear(const struct kernel_call *call, struct snug_error *err)
{
    const struct operand *y = &call->out[0];
    return cuda_done(call, cuda_clear(y->data, (size_t)bytes_of(y), call->stream), err);
}

static enum snug_status run_wait_copy(const struct kernel_call *call, struct snug_error *err)
{
    (void)call;
    (void)err;
    return SNUG_OK;
}

CUDA_KERNELS(copy) = {
    {.kind = OP_prefetch, .name = "cuda", .run = run_prefetch},
    {.kind = OP_evict, .name = "cuda", .run = run_evict},
    {.kind = OP_clear, .name = "cuda", .run = run_clear},
    {.kind = OP_wait_copy, .name = "cuda", .run = run_wait_copy},
};
CUDA_KERNELS_END(copy)
