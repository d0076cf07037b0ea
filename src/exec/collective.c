/*
 * collective.c -- from the operands of an op to what comm moves.
 */
#include "exec/collective.h"

static enum snug_status collective(struct rank_collectives *ranks, struct comm *comm,
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

/* The tensor of a message: where it lies, and where comm finds it or puts it. */
struct letter {
    void *tensor, *place;
    int64_t n_bytes;
    bool is_there; /* at its place */
};

static struct letter letter_of(const struct rank_collectives *ranks, const struct kernel_call *call)
{
    const struct operand *x = call->op->kind == OP_recv ? &call->out[0] : &call->in[0];
    struct letter letter = {.tensor = x->data, .place = x->data, .is_there = true};
    letter.n_bytes = shape_elems(&x->tensor->shape) * (int64_t)dtype_bytes(x->tensor->dtype);
    if (ranks->room.block != NULL) {
        const struct message_place *place = &ranks->room.places[call->op - ranks->room.ops];
        letter.place = ranks->room.block + place->at;
        letter.is_there = place->is_there;
    }
    return letter;
}

/* From the device to the host, or back. */
static enum snug_status bring(const struct rank_collectives *ranks, void *to, const void *from,
                              int64_t n_bytes, struct snug_error *err)
{
    TRY(ranks->hooks->copy(ranks->device, to, from, n_bytes, err));
    return ranks->hooks->finish_copies(ranks->device, err);
}

static enum snug_status carry(const struct rank_collectives *ranks, const struct kernel_call *call,
                              struct snug_error *err)
{
    struct comm *comm = ranks->comm;
    struct letter letter = letter_of(ranks, call);
    if (comm->table->post == NULL)
        return snug_fail(err, SNUG_UNSUPPORTED, "%s has no messages between two ranks",
                         comm->table->name);
    switch (call->op->kind) {
    case OP_send:
        if (!letter.is_there)
            TRY(bring(ranks, letter.place, letter.tensor, letter.n_bytes, err));
        return comm->table->post(comm, message_peer(call->op), letter.place, letter.n_bytes, err);
    case OP_sent:
        return comm->table->settle(comm, letter.place, err);
    default:
        TRY(comm_recv(comm, message_peer(call->op), letter.place, letter.n_bytes, err));
        return letter.is_there ? SNUG_OK
                               : bring(ranks, letter.tensor, letter.place, letter.n_bytes, err);
    }
}

/* From device to device.  The executor has let the stream of `sent` wait for its send. */
static enum snug_status pass(const struct rank_collectives *ranks, const struct kernel_call *call,
                             struct snug_error *err)
{
    const struct op *op = call->op;
    struct letter letter = letter_of(ranks, call);
    if (op->kind == OP_sent)
        return SNUG_OK;
    int peer;
    struct direct *direct = direct_of_message(ranks, op, &peer);
    return op->kind == OP_send
               ? ranks->hooks->direct->pass(direct, peer, letter.tensor, letter.n_bytes, peer, NULL,
                                            0, call->stream, err)
               : ranks->hooks->direct->pass(direct, peer, NULL, 0, peer, letter.tensor,
                                            letter.n_bytes, call->stream, err);
}

static enum snug_status run_message(const struct rank_collectives *ranks,
                                    const struct kernel_call *call, struct snug_error *err)
{
    const struct op *op = call->op;
    const struct operand *x = op->kind == OP_recv ? &call->out[0] : &call->in[0];
    struct snug_error why = {0};
    enum snug_status status =
        directs_are_open(ranks) ? pass(ranks, call, &why) : carry(ranks, call, &why);
    return status == SNUG_OK ? SNUG_OK
                             : snug_fail(err, status, "%.400s (in %s of \"%.60s\")", why.message,
                                         op_infos[op->kind].name, x->tensor->name);
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
    if (op_is_message(op->kind))
        return run_message(ranks, call, err);
    struct comm *comm = group_of(ranks, op);
    struct comm_tensor tensors[MAX_INPUTS];
    struct snug_error why = {0};
    if (collective_ranks(op) != comm->n_ranks)
        return snug_fail(err, SNUG_MISMATCH, "%s was planned for %d ranks, and there are %d",
                         op_infos[op->kind].name, collective_ranks(op), comm->n_ranks);
    for (int k = 0; k < op->n_in; k++) {
        bool gathers = op->kind == OP_all_gather;
        const struct operand *whole = gathers ? &call->out[k] : &call->in[k];
        const struct operand *piece = gathers ? &call->in[k] : &call->out[k];
        tensors[k] = (struct comm_tensor){.whole = whole->data,
                                          .piece = piece->data == whole->data ? NULL : piece->data,
                                          .dtype = whole->tensor->dtype,
                                          .n_elems = shape_elems(&whole->tensor->shape),
                                          .cut = collective_cut(op),
                                          .reach = ranks->bucket == NULL ? NULL : &ranks->reach};
    }
    struct direct *direct =
        ranks->directs[ranks->groups == NULL ? GROUP_ALL : collective_group(op)];
    enum snug_status status = direct != NULL
                                  ? ranks->hooks->direct->run(direct, call, ranks->work_bytes, &why)
                                  : collective(ranks, comm, call, tensors, &why);
    const struct tensor *first = (op->kind == OP_all_gather ? call->out : call->in)[0].tensor;
    return status == SNUG_OK ? SNUG_OK
                             : snug_fail(err, status, "%.400s (in %s of \"%.60s\")", why.message,
                                         op_infos[op->kind].name, first->name);
}

struct rank_collectives rank_collectives_over(struct comm *comm, struct comm *const *groups)
{
    return (struct rank_collectives){
        .collective_runner = {.run = run}, .comm = comm, .groups = groups};
}
