/*
 * book.c -- every kernel's workspace becomes a tensor of the program.
 *
 * The backend says how many bytes the kernel of an op wants, as a function of shapes and of the
 * declared device.  As a tensor the workspace is placed, checked and counted like everything else.
 *
 * needs: the final list of ops    keeps: ops, ids    breaks: nothing
 * cost:  O(ops)
 */
#include "pass/pass.h"

enum snug_status pass_book(struct program *prog, struct pass_env *env)
{
    if (env->workspace_bytes == NULL)
        return SNUG_OK;
    for (int i = 0; i < prog->n_ops; i++) {
        size_t bytes = env->workspace_bytes(env->device, prog, &prog->ops[i]);
        if (bytes == 0)
            continue;
        char *name = arena_format(env->scratch, "work.%d.%s", i, op_infos[prog->ops[i].kind].name);
        struct tensor work = {TENSOR_INIT, .name = name == NULL ? "work" : name, .dtype = DTYPE_u8,
                              .role = ROLE_temporary, .shape = {1, {(int64_t)bytes}}};
        TRY(program_add_tensor(prog, &work, &prog->ops[i].work, env->err));
    }
    return SNUG_OK;
}
