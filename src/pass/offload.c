/*
 * offload.c -- tensors that wait for long wait in the offload pool: a file on disk, or the host's memory.
 *
 * The pass knows of the offload pool only that it is not the arena.  It marks tensors as stored and adds
 * the ops that copy: prefetch, evict, wait_copy.  Copies run beside the other ops, so each prefetch stands
 * early enough to be done when it is needed; how long bytes are taken by a copy is for the planner
 * to find out.
 *
 *     offload_states.c        optimizer states and masters: all of them, brought in for each update
 *     offload_activations.c   what the backward half reads long after the forward half wrote it
 *
 * needs: the final list of ops, but for workspaces    keeps: ids    breaks: nothing
 * cost:  O(ops + tensors), and a sort of the activations that are offloaded
 */
#include "pass/offload.h"

enum snug_status offload_add_copy(struct rewriter *rw, enum op_kind kind, tensor_id from,
                                  tensor_id to, bool in_last)
{
    struct op op = op_make(kind, ATTRS(), 1, &from, 1, &to);
    op.in_last = in_last;
    return rewriter_add(rw, &op);
}

enum snug_status offload_add_like(struct rewriter *rw, struct arena *scratch, const char *prefix,
                                  tensor_id like, enum role role, bool offloaded, tensor_id *id)
{
    const struct tensor *t = &rw->prog->tensors[like];
    struct tensor made = {TENSOR_INIT, .dtype = t->dtype, .role = role, .shape = t->shape,
                          .offloaded = offloaded};
    made.name = arena_format(scratch, "%s.%s", prefix, t->name);
    if (made.name == NULL)
        return offload_no_memory(rw);
    return program_add_tensor(rw->prog, &made, id, rw->err);
}

enum snug_status pass_offload(struct program *prog, struct pass_env *env)
{
    if (env->config.train && (env->config.offload & OFFLOAD_activations))
        TRY(offload_activations(prog, env));
    if (env->config.offload & OFFLOAD_states)
        TRY(offload_states(prog, env));
    return SNUG_OK;
}
