/*
 * collective.c -- run collective, send and recv ops: pass their operands to comm or to NCCL.
 */
#include "exec/collective.h"

static enum snug_status run_over_comm(struct rank_collectives *ranks, struct comm *comm,
                                      const struct kernel_call *call,
                                      const struct comm_tensor *tensors, struct snug_error *err)
{
    void *work = ranks->bucket != NULL ? ranks->bucket : call->work;
    int n = call->op->n_in;
    ranks->work = call->work;
    switch (call->op->kind) {
    case OP_all_reduce:
        return comm->table->all_reduce(comm, tensors, n, work, err);
    case OP_reduce_scatter:
        return comm->table->reduce_scatter(comm, tensors, n, call->add, work, err);
    default:
        return comm->table->all_gather(comm, tensors, n, work, err);
    }
}

/* The tensor that a p2p op names: recv has no input. */
static const struct operand *p2p_tensor(const struct kernel_call *call)
{
    return call->op->n_in == 0 ? &call->out[0] : &call->in[0];
}

/* The operand of a send or recv. */
struct p2p_operand {
    void *tensor;    /* in the arena */
    void *host_data; /* what comm sends, or receives into: the tensor itself, or its p2p buffer */
    int64_t n_bytes;
    bool is_filled; /* host_data needs no copy from or to the tensor */
};

static struct p2p_operand p2p_operand_of(const struct rank_collectives *ranks,
                                         const struct kernel_call *call)
{
    const struct operand *x = p2p_tensor(call);
    struct p2p_operand p2p = {.tensor = x->data, .host_data = x->data, .is_filled = true};
    p2p.n_bytes = shape_elems(&x->tensor->shape) * (int64_t)dtype_bytes(x->tensor->dtype);
    if (ranks->p2p.block != NULL) {
        const struct p2p_buffer *buffer = &ranks->p2p.buffers[call->op - ranks->p2p.ops];
        p2p.host_data = ranks->p2p.block + buffer->at;
        p2p.is_filled = buffer->is_filled;
    }
    return p2p;
}

/* Copies from the device to the host, or back, and waits. */
static enum snug_status copy_and_wait(const struct rank_collectives *ranks, void *to,
                                      const void *from, int64_t n_bytes, struct snug_error *err)
{
    TRY(ranks->hooks->copy(ranks->device, to, from, n_bytes, err));
    return ranks->hooks->finish_copies(ranks->device, err);
}

static enum snug_status p2p_over_comm(const struct rank_collectives *ranks,
                                      const struct kernel_call *call, struct snug_error *err)
{
    struct comm *comm = ranks->comm;
    struct p2p_operand p2p = p2p_operand_of(ranks, call);
    if (comm->table->post == NULL)
        return snug_fail(err, SNUG_UNSUPPORTED, "%s does not support send and recv",
                         comm->table->name);
    switch (call->op->kind) {
    case OP_send:
        if (!p2p.is_filled)
            TRY(copy_and_wait(ranks, p2p.host_data, p2p.tensor, p2p.n_bytes, err));
        return comm->table->post(comm, p2p_peer(call->op), p2p.host_data, p2p.n_bytes, err);
    case OP_sent:
        return comm->table->wait_post(comm, p2p.host_data, err);
    default:
        TRY(comm_recv(comm, p2p_peer(call->op), p2p.host_data, p2p.n_bytes, err));
        return p2p.is_filled ? SNUG_OK
                             : copy_and_wait(ranks, p2p.tensor, p2p.host_data, p2p.n_bytes, err);
    }
}

/* From device to device.  `sent` has nothing to do: the executor made its stream wait for the
 * send. */
static enum snug_status p2p_direct(const struct rank_collectives *ranks,
                                   const struct kernel_call *call, struct snug_error *err)
{
    struct p2p_operand p2p = p2p_operand_of(ranks, call);
    struct direct *direct;
    int peer;
    switch (call->op->kind) {
    case OP_send:
        direct = direct_of_p2p(ranks, call->op, &peer);
        return ranks->hooks->direct->pass(direct, peer, p2p.tensor, p2p.n_bytes, peer, NULL, 0,
                                          call->stream, err);
    case OP_sent:
        return SNUG_OK;
    default:
        direct = direct_of_p2p(ranks, call->op, &peer);
        return ranks->hooks->direct->pass(direct, peer, NULL, 0, peer, p2p.tensor, p2p.n_bytes,
                                          call->stream, err);
    }
}

static enum snug_status run_p2p(const struct rank_collectives *ranks,
                                const struct kernel_call *call, struct snug_error *err)
{
    const struct op *op = call->op;
    struct snug_error why = {0};
    enum snug_status status =
        directs_are_open(ranks) ? p2p_direct(ranks, call, &why) : p2p_over_comm(ranks, call, &why);
    return status == SNUG_OK ? SNUG_OK
                             : snug_fail(err, status, "%.400s (in %s of \"%.60s\")", why.message,
                                         op_infos[op->kind].name, p2p_tensor(call)->tensor->name);
}

static struct comm *group_of(const struct rank_collectives *collective_runner, const struct op *op)
{
    bool is_all = collective_runner->groups == NULL || collective_group(op) == GROUP_ALL;
    return is_all ? collective_runner->comm : collective_runner->groups[collective_group(op)];
}

static enum snug_status run(struct collective_runner *collective_runner,
                            const struct kernel_call *call, struct snug_error *err)
{
    struct rank_collectives *ranks = (struct rank_collectives *)collective_runner;
    const struct op *op = call->op;
    if (op_has(op, TRAIT_p2p))
        return run_p2p(ranks, call, err);
    struct comm *comm = group_of(ranks, op);
    struct comm_tensor tensors[MAX_INPUTS];
    bool reduces = op_has(op, TRAIT_reduces);
    struct snug_error why = {0};
    if (collective_ranks(op) != comm->n_ranks)
        return snug_fail(err, SNUG_MISMATCH, "%s was planned for %d ranks, but there are %d",
                         op_infos[op->kind].name, collective_ranks(op), comm->n_ranks);
    for (int k = 0; k < op->n_in; k++) {
        const struct operand *whole = reduces ? &call->in[k] : &call->out[k];
        const struct operand *piece = reduces ? &call->out[k] : &call->in[k];
        tensors[k] =
            (struct comm_tensor){.whole = whole->data,
                                 .piece = piece->data == whole->data ? NULL : piece->data,
                                 .dtype = whole->tensor->dtype,
                                 .n_elems = shape_elems(&whole->tensor->shape),
                                 .cut = collective_cut(op),
                                 .staging = ranks->bucket == NULL ? NULL : &ranks->staging};
    }
    struct direct *direct =
        ranks->directs[ranks->groups == NULL ? GROUP_ALL : collective_group(op)];
    enum snug_status status = direct != NULL
                                  ? ranks->hooks->direct->run(direct, call, ranks->work_bytes, &why)
                                  : run_over_comm(ranks, comm, call, tensors, &why);
    const struct tensor *first = (reduces ? call->in : call->out)[0].tensor;
    return status == SNUG_OK ? SNUG_OK
                             : snug_fail(err, status, "%.400s (in %s of \"%.60s\")", why.message,
                                         op_infos[op->kind].name, first->name);
}

struct rank_collectives rank_collectives_over(struct comm *comm, struct comm *const *groups)
{
    return (struct rank_collectives){
        .collective_runner = {.run = run}, .comm = comm, .groups = groups};
}
