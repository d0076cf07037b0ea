/*
 * matrix_ops.h -- all ops on whole matrices: their workspaces, their products, and running them.
 */
#ifndef SNUG_CPU_MATRIX_OPS_H
#define SNUG_CPU_MATRIX_OPS_H

#include "cpu/matrix_blocks.h"
#include "cpu/matrix_muon.h"
#include "cpu/matrix_soap.h"

struct matrix_layout { /* of the op in work, the others are empty */
    struct muon_layout muon;
    struct blocks_layout blocks;
    struct soap_layout soap;
    size_t total;
};

enum { MOST_MATRIX_STATES = MAX_INPUTS - MATRIX_STATES };

static struct matrix_layout matrix_layout(const struct op *op, const struct tensor *u,
                                          const struct tensor *const states[MOST_MATRIX_STATES])
{
    struct matrix_layout l = {.total = 0};
    if (op->kind == OP_orthogonalize) {
        l.muon = muon_layout(u, states[STATE_m]);
        l.total = l.muon.total;
    } else if (op->kind == OP_soap) {
        l.soap = soap_layout(u, states);
        l.total = l.soap.total;
    } else {
        l.blocks = blocks_layout(u, op->n_in - MATRIX_STATES, states,
                                 (int64_t)op->attrs.options.value[PRECONDITION_block]);
        l.total = l.blocks.total;
    }
    return l;
}

/* For a plan. */
static struct matrix_layout planned_layout(const struct program *prog, const struct op *op)
{
    const struct tensor *states[MOST_MATRIX_STATES] = {NULL};
    for (int k = MATRIX_STATES; k < op->n_in; k++)
        if (op->in[k] != TENSOR_NONE)
            states[k - MATRIX_STATES] = program_tensor(prog, op->in[k]);
    return matrix_layout(op, program_tensor(prog, op->out[0]), states);
}

static enum snug_status matrix_run(struct tools *t)
{
    const struct tensor *states[MOST_MATRIX_STATES];
    const struct kernel_call *call = t->call;
    if (scalar_of(t, SCALAR_skip) != 0) {
        const struct tensor *u = call->out[0].tensor;
        memset(call->out[0].data, 0, (size_t)shape_elems(&u->shape) * dtype_bytes(u->dtype));
        return SNUG_OK;
    }
    for (int k = 0; k < MOST_MATRIX_STATES; k++)
        states[k] = call->in[MATRIX_STATES + k].tensor;
    struct matrix_layout l = matrix_layout(call->op, call->out[0].tensor, states);
    t->after = l.total;
    if (call->op->kind == OP_orthogonalize)
        return muon_run(t, &l.muon);
    return call->op->kind == OP_soap ? soap_run(t, &l.soap) : blocks_run(t, &l.blocks);
}

#endif
