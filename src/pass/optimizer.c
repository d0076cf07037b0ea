/*
 * optimizer.c -- the end of a step: the norm of all gradients, then the updates.
 *
 * The norm is always computed: it is in the metrics, it clips where asked, and a step whose
 * gradients are not finite (fp16 overflow, a diverged run) must not touch the weights.
 * 16-bit weights get an fp32 master, booked as optimizer state.
 *
 * A program without a loss (psi:N) has no numbers to compute with: only the states are added.
 *
 * needs: gradients of the parameters    keeps: ops so far, ids    breaks: nothing
 * cost:  O(tensors)
 */
#include "optim/optim.h"
#include "pass/pass.h"

#include <string.h>

/* gradient of each parameter: tensors are found by the name that autodiff gives them */
static tensor_id gradient_of(const struct program *prog, struct pass_env *env, tensor_id parameter)
{
    char *name = arena_format(env->scratch, "d.%s", prog->tensors[parameter].name);
    tensor_id id = name == NULL ? TENSOR_NONE : program_find(prog, name);
    return id != TENSOR_NONE && prog->tensors[id].role == ROLE_gradient ? id : TENSOR_NONE;
}

static enum snug_status emit_norm(struct program *prog, struct pass_env *env, int n_parameters,
                                  tensor_id scalars)
{
    struct tensor table = {TENSOR_INIT, .name = "norm.parts", .dtype = DTYPE_f64,
                           .role = ROLE_temporary, .shape = {1, {n_parameters}}};
    tensor_id parts;
    TRY(program_add_tensor(prog, &table, &parts, env->err));
    int n_tensors = prog->n_tensors, at = 0;
    for (int i = 0; i < n_tensors; i++) {
        if (prog->tensors[i].role != ROLE_gradient)
            continue;
        char *name = arena_format(env->scratch, "norm.part.%d", at);
        struct tensor part = {.name = name == NULL ? "norm.part" : name,
                              .dtype = DTYPE_f64,
                              .role = ROLE_temporary,
                              .shape = {1, {1}},
                              .base = parts,
                              .offset_elems = at++};
        tensor_id id;
        TRY(program_add_tensor(prog, &part, &id, env->err));
        TRY(program_add_op(prog, OP_sum_squares, NULL, 1, (tensor_id[]){i}, 1, &id, env->err));
    }
    struct attrs attrs =
        ATTRS(.max_norm = env->max_norm, .dynamic_scale = env->compute == DTYPE_f16);
    return program_add_op(prog, OP_grad_norm, &attrs, 2, (tensor_id[]){parts, scalars}, 1, &scalars,
                          env->err);
}

enum snug_status pass_optimizer(struct program *prog, struct pass_env *env)
{
    tensor_id scalars = TENSOR_NONE;
    int n_tensors = prog->n_tensors, n_gradients = 0;
    for (int i = 0; i < n_tensors; i++)
        n_gradients += prog->tensors[i].role == ROLE_gradient;
    if (prog->loss != TENSOR_NONE) {
        TRY(program_scalars(prog, &scalars, env->err));
        TRY(emit_norm(prog, env, n_gradients, scalars));
    }
    for (int i = 0; i < n_tensors; i++) {
        if (prog->tensors[i].role != ROLE_parameter)
            continue;
        struct optim_target target = {.prog = prog,
                                      .scalars = scalars,
                                      .weight = i,
                                      .master = TENSOR_NONE,
                                      .err = env->err,
                                      .beta1 = env->beta1,
                                      .beta2 = env->beta2,
                                      .eps = env->eps,
                                      .decay = prog->tensors[i].decays ? env->weight_decay : 0};
        target.grad = gradient_of(prog, env, i);
        if (target.grad == TENSOR_NONE)
            continue; /* not trained */
        if (env->master && prog->tensors[i].dtype != DTYPE_f32) {
            TRY(optim_add_state(&target, "master", DTYPE_f32, &target.master));
            prog->tensors[target.master].init = INIT_none; /* starts as the weight */
        }
        TRY(env->optimizer->emit(&target));
    }
    return SNUG_OK;
}
