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

#include <stdlib.h>

enum snug_status rewrite_no_memory(const struct rewrite *r)
{
    return snug_fail(r->env->err, SNUG_NO_MEMORY, "offload: out of memory");
}

enum snug_status rewrite_append(struct rewrite *r, const struct op *op)
{
    return op_list_append(&r->list, op, "offload", r->env->err);
}

enum snug_status rewrite_append_copy(struct rewrite *r, enum op_kind kind, tensor_id from,
                                     tensor_id to, bool in_last)
{
    struct op op = {.kind = kind,
                    .n_in = 1,
                    .n_out = 1,
                    .in = {from},
                    .out = {to},
                    .work = TENSOR_NONE,
                    .in_last = in_last,
                    .attrs = ATTRS()};
    return rewrite_append(r, &op);
}

void rewrite_reach(struct rewrite *r, int i)
{
    if (i == r->prog->body_begin)
        r->body_begin = r->list.n_ops;
    if (i == r->prog->body_end)
        r->body_end = r->list.n_ops;
}

enum snug_status rewrite_finish(struct rewrite *r, enum snug_status status)
{
    if (status != SNUG_OK) {
        free(r->list.ops);
        return status;
    }
    bool all_is_body = r->prog->body_end == 0;
    program_set_ops(r->prog, r->list.ops, r->list.n_ops);
    r->prog->body_begin = r->body_begin;
    r->prog->body_end = all_is_body ? 0 : r->body_end;
    return SNUG_OK;
}

enum snug_status rewrite_add_like(struct rewrite *r, const char *prefix, tensor_id like,
                                  enum role role, bool offloaded, tensor_id *id)
{
    const struct tensor *t = &r->prog->tensors[like];
    struct tensor made = {TENSOR_INIT, .dtype = t->dtype, .role = role, .shape = t->shape,
                          .offloaded = offloaded};
    made.name = arena_format(r->env->scratch, "%s.%s", prefix, t->name);
    if (made.name == NULL)
        return rewrite_no_memory(r);
    return program_add_tensor(r->prog, &made, id, r->env->err);
}

enum snug_status pass_offload(struct program *prog, struct pass_env *env)
{
    if (env->train && (env->offload & OFFLOAD_activations))
        TRY(offload_activations(prog, env));
    if (env->offload & OFFLOAD_states)
        TRY(offload_states(prog, env));
    return SNUG_OK;
}
