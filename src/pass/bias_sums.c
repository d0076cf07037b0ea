/*
 * bias_sums.c -- the gradient of a bias is summed up where dy is made, not where it is read again.
 *
 * The gradient of a bias is the sum of dy's columns.  linear_grad_w reads all of dy for it once
 * more; the kernel that has just made dy has it in registers:
 *
 *     d = linear_grad_x e, w, p          d, db = linear_grad_x e, w, p
 *     dv, db = linear_grad_w x, d   ->   dv = linear_grad_w x, d
 *
 *     d, dg, dt = layernorm_grad ...     d, dg, dt, db = layernorm_grad ...
 *     dv, db = linear_grad_w x, d   ->   dv = linear_grad_w x, d
 *
 * Only where the backend says that its kernel does so for nearly nothing.  A kernel may sum dy
 * before it is rounded, where linear_grad_w sums what was stored: the bits differ, by less than
 * those roundings.
 *
 * db is then written earlier.  So nothing in between may touch it, and both ops are in one section,
 * run in the same micro-batches and agree on += or =.  Passes that look for the op that completes a
 * gradient (shard, in_backward, offload) have done so: this is the last one but for the booking of
 * workspaces, which has to see the sums.
 *
 * needs: the final list of ops, but for workspaces    keeps: ids, order    breaks: nothing
 * cost:  O(ops x the ops between the two, which are few)
 */
#include "pass/pass.h"
#include "pass/rewriter.h"

static bool writes(const struct program *prog, const struct op *op, tensor_id id)
{
    return op_names_root(prog, op->n_out, op->out, tensor_root(prog, id));
}

static bool touches(const struct program *prog, const struct op *op, tensor_id id)
{
    return op_names_root(prog, op->n_in, op->in, tensor_root(prog, id)) || writes(prog, op, id);
}

/* Which output has the sums of output 0; 0: none. */
static int sums_place(enum op_kind kind)
{
    return kind == OP_linear_grad_x ? 1 : kind == OP_layernorm_grad ? 3 : 0;
}

/* One attribute says += or = for all outputs of an op: do those that it has leave it free? */
static bool may_accumulate(const struct op *op, enum accumulate how)
{
    for (int k = 0; k < op->n_out; k++)
        if ((op_infos[op->kind].accumulates >> k & 1) && op->out[k] != TENSOR_NONE)
            return op->attrs.accumulate == how;
    return true;
}

/* The op that makes what op `at` sums up, if nothing stands between the two; -1: there is none. */
static int maker_of(const struct program *prog, int at)
{
    const struct op *grad = &prog->ops[at];
    tensor_id dy = grad->in[1], dbias = grad->out[1];
    int begin = at >= program_body_end(prog) ? program_body_end(prog)
                : at >= prog->body_begin     ? prog->body_begin
                                             : 0;
    for (int i = at - 1; i >= begin; i--) {
        const struct op *op = &prog->ops[i];
        if (touches(prog, op, dbias))
            return -1;
        if (writes(prog, op, dy))
            return op->out[0] == dy && op->in_last == grad->in_last ? i : -1;
    }
    return -1;
}

static void move_sums(struct program *prog, struct pass_env *env, int at)
{
    struct op *grad = &prog->ops[at];
    int maker = maker_of(prog, at);
    int place = maker < 0 ? 0 : sums_place(prog->ops[maker].kind);
    if (place == 0 || !may_accumulate(&prog->ops[maker], grad->attrs.accumulate))
        return;
    struct op summing = prog->ops[maker];
    if (summing.n_out > place && summing.out[place] != TENSOR_NONE)
        return; /* it sums them already, for another bias */
    summing.n_out = place + 1;
    summing.out[place] = grad->out[1];
    summing.attrs.accumulate = grad->attrs.accumulate;
    if (!env->device.sums_columns(env->device.handle, prog, &summing))
        return;
    prog->ops[maker] = summing;
    grad->n_out = 1;
    grad->out[1] = TENSOR_NONE;
}

enum snug_status pass_bias_sums(struct program *prog, struct pass_env *env)
{
    if (env->device.sums_columns == NULL)
        return SNUG_OK;
    bool *gone = arena_zeros(env->scratch, (size_t)prog->n_ops + 1, sizeof *gone);
    if (gone == NULL)
        return snug_fail(env->err, SNUG_NO_MEMORY, "bias_sums: no scratch for %d flags",
                         prog->n_ops);
    for (int i = 0; i < prog->n_ops; i++) {
        struct op *op = &prog->ops[i];
        if (op->kind != OP_linear_grad_w || op->n_out < 2 || op->out[1] == TENSOR_NONE)
            continue;
        move_sums(prog, env, i);
        gone[i] = op->out[0] == TENSOR_NONE && op->n_out < 2; /* the bias alone was trained */
    }
    rewriter_drop(prog, gone);
    return SNUG_OK;
}
