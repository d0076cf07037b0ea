/*
 * book.c -- choose the kernel of every op and reserve its workspace.
 *
 * We ask the backend once per op which kernel runs it, how many bytes of workspace that kernel
 * needs (a function of the shapes and the declared device) and whether its output may alias an
 * input.  The choice is stored in the op, and the executor runs that kernel.  A workspace becomes
 * a tensor of the program, so it is placed, checked and counted like any other.
 *
 * needs: the final ops    keeps: ops, ids    breaks: nothing
 * leaves: op->kernel, op->no_alias, op->work
 * cost:  O(ops)
 */
#include "ir/collective_options.h"
#include "pass/pass.h"

static enum snug_status add_workspace(struct program *prog, struct pass_env *env, const char *name,
                                      size_t bytes, tensor_id *id)
{
    struct tensor work = {TENSOR_INIT, .name = name == NULL ? "work" : name, .dtype = DTYPE_u8,
                          .role = ROLE_temporary, .shape = {1, {(int64_t)bytes}}};
    return program_add_tensor(prog, &work, id, env->err);
}

/* Collectives run one after another on one lane, so they share one workspace. */
static enum snug_status book_collectives(struct program *prog, struct pass_env *env, size_t most)
{
    if (most == 0)
        return SNUG_OK;
    tensor_id id;
    TRY(add_workspace(prog, env, "work.collective", most, &id));
    for (int i = 0; i < prog->n_ops; i++)
        if (op_has(&prog->ops[i], TRAIT_collective))
            prog->ops[i].work = id;
    return SNUG_OK;
}

enum snug_status pass_book(struct program *prog, struct pass_env *env)
{
    size_t most_of_collectives = 0;
    if (env->device.choose_kernel == NULL)
        return SNUG_OK;
    for (int i = 0; i < prog->n_ops; i++) {
        struct op *op = &prog->ops[i];
        struct kernel_choice choice = env->device.choose_kernel(env->device.handle, prog, op);
        op->kernel = choice.kernel;
        op->no_alias = choice.no_alias;
        if (op_has(op, TRAIT_collective)) {
            if (choice.workspace_bytes > most_of_collectives)
                most_of_collectives = choice.workspace_bytes;
        } else if (choice.workspace_bytes > 0) {
            char *name = arena_format(env->scratch, "work.%d.%s", i, op_infos[op->kind].name);
            TRY(add_workspace(prog, env, name, choice.workspace_bytes, &op->work));
        }
    }
    return book_collectives(prog, env, most_of_collectives);
}
