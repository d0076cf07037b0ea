/*
 * ref_copy.c -- copies between the arena and the offload pool, and collectives, for every device
 * whose memory the host can access.
 */
#include "cpu/ref/ref_common.h"

#include <string.h>

static int64_t n_bytes(const struct operand *x)
{
    return elems(x) * (int64_t)dtype_bytes(x->tensor->dtype);
}

enum snug_status ref_prefetch(const struct kernel_call *call, struct snug_error *err)
{
    const struct operand *from = &call->in[0], *to = &call->out[0];
    return call->pool->read(call->pool, from->pool_offset, to->data, n_bytes(to), err);
}

enum snug_status ref_evict(const struct kernel_call *call, struct snug_error *err)
{
    const struct operand *from = &call->in[0], *to = &call->out[0];
    return call->pool->write(call->pool, to->pool_offset, from->data, n_bytes(from), err);
}

enum snug_status ref_clear(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    memset(call->out[0].data, 0, (size_t)n_bytes(&call->out[0]));
    return SNUG_OK;
}

/* The executor runs collectives if the host can access the arena. */
static enum snug_status collective(const struct kernel_call *call, struct snug_error *err)
{
    return call->collective_runner != NULL
               ? call->collective_runner->run(call->collective_runner, call, err)
               : snug_fail(err, SNUG_BAD_ARGUMENT,
                           "%s needs several ranks, but this run has only one",
                           op_infos[call->op->kind].name);
}

enum snug_status ref_all_reduce(const struct kernel_call *call, struct snug_error *err)
{
    return collective(call, err);
}

enum snug_status ref_reduce_scatter(const struct kernel_call *call, struct snug_error *err)
{
    return collective(call, err);
}

enum snug_status ref_all_gather(const struct kernel_call *call, struct snug_error *err)
{
    return collective(call, err);
}

enum snug_status ref_send(const struct kernel_call *call, struct snug_error *err)
{
    return collective(call, err);
}

enum snug_status ref_sent(const struct kernel_call *call, struct snug_error *err)
{
    return collective(call, err);
}

enum snug_status ref_recv(const struct kernel_call *call, struct snug_error *err)
{
    return collective(call, err);
}

/* Nothing to do: the executor has waited already. */
enum snug_status ref_wait_copy(const struct kernel_call *call, struct snug_error *err)
{
    (void)call;
    (void)err;
    return SNUG_OK;
}
