/*
 * bias_sums.c -- compute a bias gradient in the kernel that produces dy.
 *
 * The gradient of a bias is the column sums of dy.  linear_grad_w has to read all of dy once more
 * to compute them; the kernel that produces dy has it in registers:
 *
 *     d = linear_grad_x e, w, p          d, db = linear_grad_x e, w, p
 *     dv, db = linear_grad_w x, d   ->   dv = linear_grad_w x, d
 *
 *     d, dg, dt = layernorm_grad ...     d, dg, dt, db = layernorm_grad ...
 *     dv, db = linear_grad_w x, d   ->   dv = linear_grad_w x, d
 *
 * We do this only where the backend reports that its kernel can do it at almost no cost.  The
 * kernel may sum dy before rounding, while linear_grad_w sums the stored values, so results can
 * differ by less than those roundings.
 *
 * db is now written earlier.  So no op in between may touch it, and both ops must be in the same
 * section, run in the same micro-batches and agree on += or =.  The passes that look for the op
 * that completes a gradient (shard, in_backward, offload) have already run.  Only book runs later:
 * it has to see the sums to reserve workspaces.
 *
 * needs: the final ops, without workspaces    keeps: ids, order    breaks: nothing
 * cost:  O(ops x distance between the two ops, which is short)
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

/* One attribute selects += or = for all outputs of an op.  Do its present outputs allow `how`? */
static bool may_accumulate(const struct op *op, enum accumulate how)
{
    for (int k = 0; k < op->n_out; k++)
        if ((op_infos[op->kind].accumulates >> k & 1) && op->out[k] != TENSOR_NONE)
            return op->attrs.accumulate == how;
    return true;
}

/* The op that produces the dy of op `at`, or -1 if an op in between touches dbias. */
static int producer_of(const struct program *prog, int at)
{
    const struct op *grad = &prog->ops[at];
    tensor_id dy = grad->in[1], dbias = grad->out[1];
    int begin = at >= program_body_end(prog) ? program_body_end(prog) : 0;
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
    int producer = producer_of(prog, at);
    int output = producer < 0 ? 0 : op_infos[prog->ops[producer].kind].column_sums;
    if (output == 0 || !may_accumulate(&prog->ops[producer], grad->attrs.accumulate))
        return;
    struct op summing = prog->ops[producer];
    if (op_column_sums(&summing) != TENSOR_NONE)
        return; /* it already sums them, for another bias */
    summing.n_out = output + 1;
    summing.out[output] = grad->out[1];
    summing.attrs.accumulate = grad->attrs.accumulate;
    if (!env->device.sums_columns(env->device.handle, prog, &summing))
        return;
    prog->ops[producer] = summing;
    grad->n_out = 1;
    grad->out[1] = TENSOR_NONE;
}

enum snug_status pass_bias_sums(struct program *prog, struct pass_env *env)
{
    if (env->device.sums_columns == NULL)
        return SNUG_OK;
    bool *removed = arena_zeros(env->scratch, (size_t)prog->n_ops + 1, sizeof *removed);
    if (removed == NULL)
        return snug_fail(env->err, SNUG_NO_MEMORY, "bias_sums: no scratch for %d flags",
                         prog->n_ops);
    for (int i = 0; i < prog->n_ops; i++) {
        struct op *op = &prog->ops[i];
        if (op->kind != OP_linear_grad_w || op->n_out < 2 || op->out[1] == TENSOR_NONE)
            continue;
        move_sums(prog, env, i);
        removed[i] = op->out[0] == TENSOR_NONE && op->n_out < 2; /* only the bias is trained */
    }
    rewriter_drop(prog, removed);
    return SNUG_OK;
}
