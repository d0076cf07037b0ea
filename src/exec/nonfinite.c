/*
 * nonfinite.c -- find the first tensor with a non-finite element: run the step again, op by op, and
 * check the result of each.
 */
#include "exec/local.h"

#include <math.h>

/* Piece by piece, so that a copy from a device needs little memory. */
static enum snug_status find_in_tensor(struct exec *exec, tensor_id id, bool *finite,
                                       struct snug_error *err)
{
    enum { PIECE = 4096 };
    double piece[PIECE]; /* large enough for the widest type */
    *finite = true;
    if (id == TENSOR_NONE || exec_place_of(exec, id) == NULL ||
        !dtype_is_float(exec->prog->tensors[id].dtype))
        return SNUG_OK;
    enum dtype dtype = exec->prog->tensors[id].dtype;
    int64_t n = tensor_elems(exec->prog, id), size = (int64_t)dtype_bytes(dtype);
    for (int64_t at = 0; at < n && *finite; at += PIECE) {
        int64_t count = n - at < PIECE ? n - at : PIECE;
        TRY(exec_read(exec, id, at * size, count * size, piece, err));
        for (int64_t i = 0; i < count && *finite; i++)
            *finite = isfinite(dtype_load(dtype, piece, i));
    }
    return SNUG_OK;
}

/* The body may contain updates and evictions of states; the search must not change the run.  A view
 * is persistent if its whole tensor is. */
static bool changes_run(const struct program *prog, const struct op *op)
{
    for (int k = 0; k < op->n_out; k++) {
        if (op->out[k] == TENSOR_NONE)
            continue;
        const struct tensor *whole = &prog->tensors[tensor_root(prog, op->out[k])];
        if (whole->persistent && whole->role != ROLE_buffer)
            return true;
    }
    return false;
}

static enum snug_status run_and_look(struct exec *exec, int i, int micro, const char **name,
                                     struct snug_error *err)
{
    const struct op *op = &exec->prog->ops[i];
    TRY(exec->hooks != NULL ? device_run_alone(exec, i, micro, err)
                            : exec_run_op(exec, i, micro, err));
    for (int k = 0; k < op->n_out && *name == NULL; k++) {
        bool finite;
        TRY(find_in_tensor(exec, op->out[k], &finite, err));
        if (!finite)
            *name = exec->prog->tensors[op->out[k]].name;
    }
    return SNUG_OK;
}

static enum snug_status find_nonfinite(struct exec *exec, exec_feed *feed, void *user,
                                       const char **name, struct snug_error *err)
{
    const struct program *prog = exec->prog;
    bool alone = exec->facts.comm == NULL; /* else all ranks must run to the end together */
    *name = NULL;
    if (exec->hooks != NULL)
        staging_forget_ahead(exec);
    for (int i = 0; i < prog->n_tensors && *name == NULL; i++) {
        bool finite = true;
        if (prog->tensors[i].role == ROLE_parameter)
            TRY(find_in_tensor(exec, i, &finite, err));
        *name = finite ? NULL : prog->tensors[i].name;
    }
    for (int micro = 0; micro < prog->n_repeat && (*name == NULL || !alone); micro++) {
        if (exec->hooks != NULL)
            TRY(staging_feed(exec, feed, user, micro, err));
        else if (feed != NULL)
            TRY(feed(user, micro, err));
        for (int i = 0; i < program_body_end(prog) && (*name == NULL || !alone); i++)
            if (op_runs_in(prog, &prog->ops[i], micro) && !changes_run(prog, &prog->ops[i]))
                TRY(run_and_look(exec, i, micro, name, err));
    }
    return SNUG_OK;
}

enum snug_status exec_find_nonfinite(struct exec *exec, exec_feed *feed, void *user,
                                     const char **name, struct snug_error *err)
{
    struct run_modes modes = exec->backend->run_begin(&exec->facts);
    enum snug_status status = find_nonfinite(exec, feed, user, name, err);
    exec->backend->run_end(&exec->facts, &modes);
    return status;
}
