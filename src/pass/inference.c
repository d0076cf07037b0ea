/*
 * inference.c -- switch batch norm to its running averages.
 *
 * Outside training, and with a frozen model, batch norm uses the running averages in place of the
 * batch statistics, so that the result for a sample does not depend on the rest of the batch.  The
 * ops that update the averages are removed.
 *
 * needs: a forward program    keeps: tensor ids    breaks: nothing
 * cost:  O(ops + tensors)
 */
#include "pass/pass.h"
#include "pass/rewriter.h"

static enum snug_status use_averages(struct program *prog, struct op *norm, const int *update_of,
                                     struct snug_error *err)
{
    int update = update_of[norm->out[1]];
    if (update < 0)
        return snug_fail(err, SNUG_BAD_PROGRAM,
                         "\"%s\": batchnorm has no running averages to evaluate with: the model "
                         "needs a batchnorm_update op",
                         prog->tensors[norm->out[0]].name);
    const tensor_id *averages = &prog->ops[update].in[2];
    bool has_r = norm->n_in > 3 && norm->in[3] != TENSOR_NONE;
    tensor_id in[] = {norm->in[0], norm->in[1], norm->in[2], averages[0], averages[1], norm->in[3]};
    *norm = op_make(OP_batchnorm_eval, norm->attrs, has_r ? 6 : 5, in, 1, norm->out);
    return SNUG_OK;
}

enum snug_status pass_inference(struct program *prog, struct pass_env *env)
{
    int *update_of = arena_alloc(env->scratch, ((size_t)prog->n_tensors + 1) * sizeof *update_of);
    bool *removed = arena_zeros(env->scratch, (size_t)prog->n_ops + 1, sizeof *removed);
    if (update_of == NULL || removed == NULL)
        return snug_fail(env->err, SNUG_NO_MEMORY, "inference: no scratch for %d tensors",
                         prog->n_tensors);
    for (int i = 0; i < prog->n_tensors; i++)
        update_of[i] = -1;
    for (int i = 0; i < prog->n_ops; i++)
        if (prog->ops[i].kind == OP_batchnorm_update) {
            update_of[prog->ops[i].in[0]] = i;
            removed[i] = true;
        }
    for (int i = 0; i < prog->n_ops; i++)
        if (op_has(&prog->ops[i], TRAIT_batch_statistics))
            TRY(use_averages(prog, &prog->ops[i], update_of, env->err));
    rewriter_drop(prog, removed);
    return SNUG_OK;
}
