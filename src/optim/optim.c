/*
 * optim.c -- the list of optimizers, and the making of a state tensor.
 */
#include "optim/optim.h"

#include <stdio.h>
#include <string.h>

static const struct optimizer *const optimizers[] = {
    &optimizer_adamw,
    &optimizer_adam,
    &optimizer_sgd,
};
enum { N_OPTIMIZERS = (int)(sizeof optimizers / sizeof *optimizers) };

const struct optimizer *optimizer_find(const char *name)
{
    for (int i = 0; i < N_OPTIMIZERS; i++)
        if (strcmp(optimizers[i]->name, name) == 0)
            return optimizers[i];
    return NULL;
}

enum snug_status optim_add_state(const struct optim_target *target, const char *prefix,
                                 enum dtype dtype, tensor_id *id)
{
    const struct tensor *weight = &target->prog->tensors[target->weight];
    char *name = arena_format(&target->prog->arena, "%s.%s", prefix, weight->name);
    if (name == NULL)
        return snug_fail(target->err, SNUG_NO_MEMORY, "optimizer: out of memory");
    if (program_find(target->prog, name) != TENSOR_NONE)
        return snug_fail(
            target->err, SNUG_BAD_PROGRAM,
            "the name \"%s\" is taken, but the optimizer needs it for \"%s\": rename one", name,
            weight->name);
    struct tensor state = {TENSOR_INIT,
                           .name = name,
                           .dtype = dtype,
                           .role = ROLE_optimizer,
                           .shape = weight->shape,
                           .persistent = true,
                           .init = INIT_zeros};
    return program_add_tensor(target->prog, &state, id, target->err);
}
