/*
 * book.c -- what kernels ask of the plan: their workspace becomes a tensor of the program, and ops whose
 * kernel cannot work in place are marked.
 *
 * The backend says how many bytes the kernel of an op wants, as a function of shapes and of the
 * declared device.  As a tensor the workspace is placed, checked and counted like everything else.
 *
 * needs: the final list of ops    keeps: ops, ids    breaks: nothing
 * cost:  O(ops)
 */
#include "ir/collective_options.h"
#include "pass/pass.h"

/* Collectives run one after the other, on one lane: they have one bucket, as large as the largest wants. */
static enum snug_status book_collectives(struct program *prog, struct pass_env *env)
{
    size_t most = 0;
    for (int i = 0; i < prog->n_ops; i++)
        if (op_is_collective(prog->ops[i].kind)) {
            size_t bytes = env->workspace_bytes(env->device, prog, &prog->ops[i]);
            most = bytes > most ? bytes : most;
        }
    if (most == 0)
        return SNUG_OK;
    tensor_id id;
    struct tensor work = {TENSOR_INIT, .name = "work.collective", .dtype = DTYPE_u8,
                          .role = ROLE_temporary, .shape = {1, {(int64_t)most}}};
    TRY(program_add_tensor(prog, &work, &id, env->err));
    for (int i = 0; i < prog->n_ops; i++)
        if (op_is_collective(prog->ops[i].kind))
            prog->ops[i].work = id;
    return SNUG_OK;
}

enum snug_status pass_book(struct program *prog, struct pass_env *env)
{
    if (env->workspace_bytes == NULL)
        return SNUG_OK;
    for (int i = 0; i < prog->n_ops; i++) {
        bool is_collective = op_is_collective(prog->ops[i].kind);
        prog->ops[i].no_alias = !is_collective && env->no_alias != NULL &&
                                env->no_alias(env->device, prog, &prog->ops[i]);
        size_t bytes = is_collective ? 0 : env->workspace_bytes(env->device, prog, &prog->ops[i]);
        if (bytes == 0)
            continue;
        char *name = arena_format(env->scratch, "work.%d.%s", i, op_infos[prog->ops[i].kind].name);
        struct tensor work = {TENSOR_INIT, .name = name == NULL ? "work" : name, .dtype = DTYPE_u8,
                              .role = ROLE_temporary, .shape = {1, {(int64_t)bytes}}};
        TRY(program_add_tensor(prog, &work, &prog->ops[i].work, env->err));
    }
    return book_collectives(prog, env);
}
