/*
 * dispatch_collective.c -- collectives and p2p; the executor provides the implementation.
 *
 * With NCCL the work goes on the copy stream (nccl.c).  Through the host, the copy thread makes the
 * call and returns when it is done.  Both use the bucket that the plan reserves for such ops.
 */
#include "cuda/dispatch/dispatch.h"

static enum snug_status run_collective(const struct kernel_call *call, struct snug_error *err)
{
    return call->collective_runner != NULL
               ? call->collective_runner->run(call->collective_runner, call, err)
               : snug_fail(err, SNUG_BAD_ARGUMENT,
                           "%s needs other ranks, but this process runs alone",
                           op_infos[call->op->kind].name);
}

CUDA_KERNELS(collective) = {
    {.kind = OP_all_reduce, .name = "cuda", .run = run_collective},
    {.kind = OP_reduce_scatter, .name = "cuda", .run = run_collective},
    {.kind = OP_all_gather, .name = "cuda", .run = run_collective},
    {.kind = OP_send, .name = "cuda", .run = run_collective},
    {.kind = OP_sent, .name = "cuda", .run = run_collective},
    {.kind = OP_recv, .name = "cuda", .run = run_collective},
};
CUDA_KERNELS_END(collective)
