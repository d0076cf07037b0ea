/*
 * accumulate.c -- gradient accumulation over micro-batches.
 *
 * Forward and backward become the program's repeated body.  Results that outlive a micro-batch
 * (parameter gradients, the loss) are written by the first micro-batch and added to by the others.
 * The loss is weighted so that its sum over micro-batches and ranks is the mean over the batch.
 *
 * needs: forward and backward, no updates yet    keeps: op order, ids    breaks: nothing
 * cost:  O(ops)
 */
#include "pass/pass.h"

enum snug_status pass_accumulate(struct program *prog, struct pass_env *env)
{
    prog->body_end = prog->n_ops;
    /* PipeDream updates after every micro-batch (pipedream.c) */
    bool updates_each = env->config.pipeline == PIPELINE_pipedream;
    prog->n_repeat = updates_each ? 1 : env->config.n_micro;
    if (prog->n_ops == 0) /* model states only: nothing to repeat */
        prog->n_repeat = 1;
    int n_ranks = env->config.ranks.n_ranks > 1 ? env->config.ranks.n_ranks : 1;
    if (prog->n_repeat == 1 && n_ranks == 1)
        return SNUG_OK;
    for (int i = 0; i < prog->n_ops; i++) {
        struct op *op = &prog->ops[i];
        const struct op_info *info = &op_infos[op->kind];
        if (kind_reads(op->kind, weight))
            attrs_of(op, loss)->weight /= (double)prog->n_repeat * n_ranks;
        for (int k = 0; k < op->n_out; k++) {
            tensor_id id = op->out[k];
            bool outlives =
                id != TENSOR_NONE && (id == prog->loss || prog->tensors[id].role == ROLE_gradient);
            if (prog->n_repeat > 1 && outlives && (info->accumulates >> k & 1) &&
                op->attrs.accumulate == ACC_no)
                op->attrs.accumulate = ACC_after_first;
        }
    }
    return SNUG_OK;
}
