/*
 * precision.c -- 16-bit weights and activations.
 *
 * Parameters and activations take the compute type, except outputs that their op's row keeps in fp32
 * (statistics, losses).  Inputs arrive in fp32 and are cast once at the start; a regression target
 * stays fp32.  The fp32 master copy of a weight is an optimizer state and comes with the optimizer.
 *
 * needs: a forward program    keeps: tensor ids    breaks: nothing
 * cost:  O(ops + tensors)
 */
#include "pass/pass.h"

#include <stdlib.h>
#include <string.h>

static bool is_target(const struct op *op, int k)
{
    return op->kind == OP_mse && k == 1;
}

static enum snug_status cast_input(struct program *prog, struct pass_env *env, tensor_id input)
{
    bool used = false;
    for (int i = 0; i < prog->n_ops; i++)
        for (int k = 0; k < prog->ops[i].n_in; k++)
            used |= prog->ops[i].in[k] == input && !is_target(&prog->ops[i], k);
    if (!used)
        return SNUG_OK;
    char *name =
        arena_format(env->scratch, "%s.%s", prog->tensors[input].name, dtype_name(env->compute));
    struct tensor narrow = {TENSOR_INIT, .name = name == NULL ? "cast" : name,
                            .dtype = env->compute, .role = ROLE_activation,
                            .shape = prog->tensors[input].shape};
    tensor_id id;
    TRY(program_add_tensor(prog, &narrow, &id, env->err));
    for (int i = 0; i < prog->n_ops; i++)
        for (int k = 0; k < prog->ops[i].n_in; k++)
            if (prog->ops[i].in[k] == input && !is_target(&prog->ops[i], k))
                prog->ops[i].in[k] = id;
    TRY(program_add_op(prog, OP_cast, NULL, 1, &input, 1, &id, env->err));
    struct op cast = prog->ops[prog->n_ops - 1]; /* the last one goes to the front */
    memmove(prog->ops + 1, prog->ops, (size_t)(prog->n_ops - 1) * sizeof *prog->ops);
    prog->ops[0] = cast;
    return SNUG_OK;
}

enum snug_status pass_precision(struct program *prog, struct pass_env *env)
{
    for (int i = 0; i < prog->n_tensors; i++) {
        struct tensor *t = &prog->tensors[i];
        if (dtype_is_float(t->dtype) && i != prog->scalars &&
            (t->role == ROLE_parameter || t->role == ROLE_activation))
            t->dtype = env->compute;
    }
    for (int i = 0; i < prog->n_ops; i++)
        for (int k = 0; k < prog->ops[i].n_out; k++)
            if (prog->ops[i].out[k] != TENSOR_NONE &&
                (op_infos[prog->ops[i].kind].keeps_f32 >> k & 1))
                prog->tensors[prog->ops[i].out[k]].dtype = DTYPE_f32;
    int n_tensors = prog->n_tensors;
    for (int i = 0; i < n_tensors; i++)
        if (prog->tensors[i].role == ROLE_input && prog->tensors[i].dtype == DTYPE_f32)
            TRY(cast_input(prog, env, i));
    return SNUG_OK;
}
