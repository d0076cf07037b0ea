/*
 * drop_dead.c -- remove the ops whose results nobody reads.
 *
 * We walk the ops from last to first with one flag per tensor: "something later reads this".  An
 * op stays if it has an effect (TRAIT_effect) or if one of its results is flagged, and an op that
 * stays flags its inputs.  Outputs and persistent tensors are flagged from the start.  A view and
 * its base share a flag.  Writing a tensor does not clear its flag, so the op that writes it first
 * stays if a later one accumulates (+=).
 *
 * needs: nothing    keeps: op order, tensor ids    breaks: nothing
 * cost:  O(ops + tensors), one bool per tensor of scratch
 */
#include "pass/pass.h"
#include "pass/rewriter.h"

enum snug_status pass_drop_dead(struct program *prog, struct pass_env *env)
{
    bool *read_later = arena_zeros(env->scratch, (size_t)prog->n_tensors + 1, sizeof *read_later);
    bool *dead = arena_zeros(env->scratch, (size_t)prog->n_ops + 1, sizeof *dead);
    if (read_later == NULL || dead == NULL)
        return snug_fail(env->err, SNUG_NO_MEMORY, "drop_dead: no scratch for %d flags",
                         prog->n_tensors);
    for (int i = 0; i < prog->n_tensors; i++)
        if (prog->tensors[i].is_output || prog->tensors[i].persistent)
            read_later[tensor_root(prog, i)] = true;
    for (int i = prog->n_ops - 1; i >= 0; i--) {
        const struct op *op = &prog->ops[i];
        bool wanted = op_has(op, TRAIT_effect);
        for (int k = 0; k < op->n_out; k++)
            if (op->out[k] != TENSOR_NONE)
                wanted |= read_later[tensor_root(prog, op->out[k])];
        dead[i] = !wanted;
        for (int k = 0; wanted && k < op->n_in; k++)
            if (op->in[k] != TENSOR_NONE)
                read_later[tensor_root(prog, op->in[k])] = true;
    }
    int n_dead = 0;
    for (int i = 0; i < prog->n_ops; i++)
        n_dead += dead[i];
    if (n_dead == prog->n_ops && n_dead > 0)
        return snug_fail(env->err, SNUG_BAD_PROGRAM,
                         "drop_dead: all %d ops are dead: the program has no output or update",
                         prog->n_ops);
    rewriter_drop(prog, dead);
    return SNUG_OK;
}
