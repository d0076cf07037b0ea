/*
 * verify.c -- checks that a program is well-formed; tests and debug builds do so after every pass.
 *
 *   - Every id is in range, and views are inside their base.
 *   - Operand counts and shapes match ops.def, and statistics are fp32.
 *   - A tensor is written before it is read, and by one op.  Exceptions: in-place updates, where it
 *     is input and output of the op; accumulation into what an earlier op wrote; views, where
 *     writing a view counts as writing its base.
 *   - An op that runs in every micro-batch does not read what only the last micro-batch writes.
 *   - Only copies use offloaded tensors.  A copy may write one again if it is persistent.
 */
#include "ir/collective_options.h"

#include <stdlib.h>

struct state {
    const struct program *prog;
    bool *written; /* per tensor; writing a view marks its base too */
    bool *in_last; /* per root tensor: written in the last micro-batch only */
    struct snug_error *err;
    int at; /* the current op */
};

static enum snug_status bad(struct state *s, const char *what, tensor_id id)
{
    return snug_fail(s->err, SNUG_BAD_PROGRAM, "%s: op %d (%s): tensor \"%s\" %s", s->prog->name,
                     s->at, op_infos[s->prog->ops[s->at].kind].name,
                     id == TENSOR_NONE ? "_" : s->prog->tensors[id].name, what);
}

static enum snug_status verify_tensor(const struct program *prog, int i, struct snug_error *err)
{
    const struct tensor *t = &prog->tensors[i];
    const char *wrong = NULL;
    if (t->shape.n_dims < 1 || t->shape.n_dims > MAX_DIMS)
        wrong = "has no dimensions or more than 6";
    for (int d = 0; wrong == NULL && d < t->shape.n_dims; d++)
        if (t->shape.dim[d] < 1)
            wrong = "has a dimension below 1";
    if (wrong == NULL && shape_elems(&t->shape) > TENSOR_ELEMS_MAX)
        wrong = "has more than 1e17 elements";
    if ((t->link == LINK_none) != (t->of == TENSOR_NONE) || t->of < TENSOR_NONE ||
        t->of >= prog->n_tensors || t->of == i)
        wrong = "has an invalid link";
    if (wrong != NULL)
        return snug_fail(err, SNUG_BAD_PROGRAM, "%s: tensor \"%s\" %s", prog->name, t->name, wrong);
    return SNUG_OK;
}

static enum snug_status verify_view(const struct program *prog, int i, struct snug_error *err)
{
    const struct tensor *t = &prog->tensors[i];
    const char *wrong = NULL;
    if (t->base == TENSOR_NONE)
        return SNUG_OK;
    if (t->base < 0 || t->base >= prog->n_tensors || t->base == i)
        wrong = "has an invalid base";
    else if (prog->tensors[t->base].base != TENSOR_NONE)
        wrong = "is a view of a view";
    else if (t->offset_elems < 0 || t->offset_elems > TENSOR_ELEMS_MAX ||
             (t->offset_elems + shape_elems(&t->shape)) * (int64_t)dtype_bytes(t->dtype) >
                 tensor_bytes(prog, t->base))
        wrong = "extends beyond its base";
    else if (t->offloaded != prog->tensors[t->base].offloaded)
        wrong = "and its base must both be offloaded or both not";
    if (wrong != NULL)
        return snug_fail(err, SNUG_BAD_PROGRAM, "%s: tensor \"%s\" %s", prog->name, t->name, wrong);
    return SNUG_OK;
}

static bool is_input_of(const struct op *op, tensor_id id)
{
    for (int k = 0; k < op->n_in; k++)
        if (op->in[k] == id)
            return true;
    return false;
}

static enum snug_status verify_inputs(struct state *s, const struct op *op)
{
    for (int k = 0; k < op->n_in; k++) {
        tensor_id id = op->in[k];
        if (id == TENSOR_NONE)
            continue;
        if (id < 0 || id >= s->prog->n_tensors)
            return bad(s, "does not exist (input id out of range)", TENSOR_NONE);
        const struct tensor *t = &s->prog->tensors[id];
        tensor_id root = tensor_root(s->prog, id);
        if (t->role != ROLE_input && !t->persistent && !s->prog->tensors[root].persistent &&
            !s->written[id] && !s->written[root])
            return bad(s, "is read before it is written", id);
        if (!op->in_last && s->at < program_body_end(s->prog) &&
            s->in_last[tensor_root(s->prog, id)])
            return bad(s, "is written in the last micro-batch only, but read in every one", id);
    }
    return SNUG_OK;
}

static enum snug_status verify_outputs(struct state *s, const struct op *op)
{
    const struct op_info *info = &op_infos[op->kind];
    struct shape shapes[MAX_OUTPUTS];
    TRY(op_shapes(s->prog, op, shapes, s->err));
    if (op->n_out < info->min_out || op->n_out > info->max_out)
        return snug_fail(s->err, SNUG_BAD_PROGRAM, "%s: op %d (%s): %d outputs, expected %d to %d",
                         s->prog->name, s->at, info->name, op->n_out, info->min_out, info->max_out);
    for (int k = 0; k < op->n_out; k++) {
        tensor_id id = op->out[k];
        if (id == TENSOR_NONE)
            continue;
        if (id < 0 || id >= s->prog->n_tensors)
            return bad(s, "does not exist (output id out of range)", TENSOR_NONE);
        const struct tensor *t = &s->prog->tensors[id];
        bool updates = is_input_of(op, id);
        bool adds = (info->accumulates >> k & 1) && op->attrs.accumulate == ACC_yes;
        if (t->role == ROLE_input)
            return bad(s, "is an input of the program and cannot be written", id);
        if (adds && !s->written[id] && !t->persistent)
            return bad(s, "is added to before it is written", id);
        if (op->in_last && (info->accumulates >> k & 1) && op->attrs.accumulate == ACC_after_first)
            return bad(
                s, "is added to in the last micro-batch, but no earlier micro-batch writes it", id);
        if (!adds && !updates && s->written[id] && !(t->offloaded && t->persistent))
            return bad(s, "is written twice", id);
        if (updates && !op_has(op, TRAIT_effect))
            return bad(s, "is input and output of an op that does not update in place", id);
        if (shapes[k].n_dims >= 0 && !shape_equal(&shapes[k], &t->shape))
            return bad(s, "does not have the shape that the op produces", id);
        if ((info->keeps_f32 >> k & 1) && t->dtype != DTYPE_f32 && t->dtype != DTYPE_f64)
            return bad(s, "must stay fp32", id);
        s->written[id] = true;
        s->written[tensor_root(s->prog, id)] = true;
        s->in_last[tensor_root(s->prog, id)] |= op->in_last && !t->persistent;
    }
    return SNUG_OK;
}

/* The outputs of an update are its inputs from UPDATE_WEIGHT on, in the same order. */
static enum snug_status verify_update(struct state *s, const struct op *op)
{
    for (int k = 0; k < op->n_out; k++)
        if (k + UPDATE_WEIGHT >= op->n_in || op->out[k] != op->in[k + UPDATE_WEIGHT])
            return bad(s, "must be the input that this output updates", op->out[k]);
    return SNUG_OK;
}

/* Output 0 of a matrix optimizer is the direction; output k updates input k + 1. */
static enum snug_status verify_direction(struct state *s, const struct op *op)
{
    for (int k = 1; k < op->n_out; k++)
        if (k + 1 >= op->n_in || op->out[k] != op->in[k + 1])
            return bad(s, "must be the input that this output updates", op->out[k]);
    return SNUG_OK;
}

/* Only prefetch reads offloaded tensors, and only evict writes them. */
static enum snug_status verify_offloaded(struct state *s, const struct op *op)
{
    const struct tensor *tensors = s->prog->tensors;
    const struct op_info *info = &op_infos[op->kind];
    for (int k = 0; k < op->n_in; k++) {
        bool in_pool = info->reads_pool >> k & 1, is_read = (info->unread >> k & 1) == 0;
        if (op->in[k] != TENSOR_NONE && is_read && tensors[op->in[k]].offloaded != in_pool)
            return bad(s,
                       in_pool ? "must be offloaded to be prefetched"
                               : "is offloaded: only prefetch may read it",
                       op->in[k]);
    }
    for (int k = 0; k < op->n_out; k++) {
        bool in_pool = info->writes_pool >> k & 1;
        if (op->out[k] != TENSOR_NONE && tensors[op->out[k]].offloaded != in_pool)
            return bad(s,
                       in_pool ? "must be offloaded: evict writes to the offload pool"
                               : "is offloaded: only evict may write it",
                       op->out[k]);
    }
    if (!op_has(op, TRAIT_copy) || op_has(op, TRAIT_collective) || op_has(op, TRAIT_p2p))
        return SNUG_OK;
    if (op->out[0] == TENSOR_NONE || tensors[op->in[0]].dtype != tensors[op->out[0]].dtype)
        return bad(s, "does not have the dtype of the tensor that is copied to it", op->out[0]);
    return SNUG_OK;
}

/* Checks the kinds and counts that the rest of this file uses as array indices. */
static enum snug_status verify_counts(const struct program *prog, struct snug_error *err)
{
    int body_end = program_body_end(prog);
    if (prog->n_repeat < 1 || body_end < 0 || body_end > prog->n_ops)
        return snug_fail(err, SNUG_BAD_PROGRAM, "%s: body 0..%d x %d does not fit %d ops",
                         prog->name, body_end, prog->n_repeat, prog->n_ops);
    if (prog->loss < TENSOR_NONE || prog->loss >= prog->n_tensors || prog->scalars < TENSOR_NONE ||
        prog->scalars >= prog->n_tensors)
        return snug_fail(err, SNUG_BAD_PROGRAM, "%s: the loss or the scalar table does not exist",
                         prog->name);
    for (int i = 0; i < prog->n_ops; i++) {
        const struct op *op = &prog->ops[i];
        if ((int)op->kind < 0 || op->kind >= OP_COUNT || op->n_in < 0 || op->n_in > MAX_INPUTS ||
            op->n_out < 0 || op->n_out > MAX_OUTPUTS)
            return snug_fail(err, SNUG_BAD_PROGRAM,
                             "%s: op %d has an invalid kind or operand count", prog->name, i);
        if (op->in_last && i >= body_end)
            return snug_fail(err, SNUG_BAD_PROGRAM,
                             "%s: op %d (%s) is marked `last` but is not in the body", prog->name,
                             i, op_infos[op->kind].name);
    }
    return SNUG_OK;
}

enum snug_status program_verify(const struct program *prog, struct snug_error *err)
{
    for (int i = 0; i < prog->n_tensors; i++)
        TRY(verify_tensor(prog, i, err));
    for (int i = 0; i < prog->n_tensors; i++)
        TRY(verify_view(prog, i, err));
    TRY(verify_counts(prog, err));
    struct state s = {.prog = prog, .err = err};
    enum snug_status status = SNUG_OK;
    s.written = calloc((size_t)prog->n_tensors + 1, sizeof *s.written);
    s.in_last = calloc((size_t)prog->n_tensors + 1, sizeof *s.in_last);
    if (s.written == NULL || s.in_last == NULL)
        status = snug_fail(err, SNUG_NO_MEMORY, "verify: no memory for %d flags", prog->n_tensors);
    for (s.at = 0; s.at < prog->n_ops && status == SNUG_OK; s.at++) {
        const struct op *op = &prog->ops[s.at];
        status = verify_inputs(&s, op);
        if (status == SNUG_OK)
            status = verify_outputs(&s, op);
        if (status == SNUG_OK)
            status = verify_offloaded(&s, op);
        if (status == SNUG_OK && op_reads_attrs(op, update))
            status = verify_update(&s, op);
        if (status == SNUG_OK && op_has(op, TRAIT_matrix))
            status = verify_direction(&s, op);
        if (status == SNUG_OK && (op->work < TENSOR_NONE || op->work >= prog->n_tensors))
            status = bad(&s, "does not exist (workspace id out of range)", TENSOR_NONE);
    }
    free(s.written);
    free(s.in_last);
    return status;
}
