/*
 * offload.c -- move long-idle tensors to the offload pool: host memory or a file on disk.
 *
 * The pass does not know where the pool is, only that it is not the arena.  It marks tensors as
 * offloaded and adds the copy ops: prefetch, evict, wait_copy.  Copies run concurrently with the
 * other ops, so each prefetch is issued early enough to be done when its result is needed.  The
 * planner determines how long a copy occupies its bytes.
 *
 *     offload_states.c        optimizer states and masters: all of them, prefetched for each update
 *     offload_activations.c   activations that the backward half reads long after they were written
 *
 * needs: the final ops, without workspaces    keeps: ids    breaks: nothing
 * cost:  O(ops + tensors), and a sort of the offloaded activations
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
    struct tensor copy = {TENSOR_INIT, .dtype = t->dtype, .role = role, .shape = t->shape,
                          .offloaded = offloaded};
    copy.name = arena_format(scratch, "%s.%s", prefix, t->name);
    if (copy.name == NULL)
        return offload_no_memory(rw);
    return program_add_tensor(rw->prog, &copy, id, rw->err);
}

enum snug_status pass_offload(struct program *prog, struct pass_env *env)
{
    if (env->config.train && (env->config.offload & OFFLOAD_activations))
        TRY(offload_activations(prog, env));
    if (env->config.offload & OFFLOAD_states)
        TRY(offload_states(prog, env));
    return SNUG_OK;
}
