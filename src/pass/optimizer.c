/*
 * optimizer.c -- the end of a step: the norm of all gradients, then the updates.
 *
 * The norm is always computed: it is in the metrics, it clips where asked, and a step whose
 * gradients are not finite (fp16 overflow, a diverged run) must not touch the weights.
 * 16-bit weights get an fp32 master, booked as optimizer state, unless the recipe wants none.
 *
 * A program without a loss (psi:N) has no numbers to compute with: only the states are added.
 *
 * needs: gradients of the parameters    keeps: ops so far, ids    breaks: nothing
 * cost:  O(ops + tensors)
 */
#include "optim/optim.h"
#include "pass/autodiff.h"

#include <string.h>

static enum snug_status out_of_memory(const struct pass_env *env)
{
    return snug_fail(env->err, SNUG_NO_MEMORY, "optimizer: out of memory");
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

/* What parameters are to the model, for optimizers that treat kinds apart; other tensors get a kind
 * that nobody reads.  The head is the product that the loss reads, a convolution too.  A table that is also the head (tied) is an embedding. */
static void mark_kinds(const struct program *prog, enum optim_kind *kinds, bool *in_out)
{
    tensor_id logits = TENSOR_NONE;
    for (int i = 0; i < prog->n_tensors; i++)
        kinds[i] = prog->tensors[i].shape.n_dims < 2 ? OPTIM_vector : OPTIM_matrix;
    for (int i = prog->n_ops - 1; i >= 0; i--) { /* embeddings last: they come first in a model */
        const struct op *op = &prog->ops[i];
        if (op->kind == OP_cross_entropy || op->kind == OP_mse)
            logits = op->in[0];
        bool is_product = op->kind == OP_linear || op->kind == OP_conv2d;
        bool is_table = op->kind == OP_embedding || op->kind == OP_add_positions;
        bool is_head = op->kind == OP_linear_cross_entropy || (is_product && op->out[0] == logits);
        if (op->kind == OP_linear)
            in_out[op->in[1]] = op->attrs.in_out != 0;
        if (is_head)
            kinds[op->in[1]] = OPTIM_head;
        for (int k = 1; is_table && k < op->n_in; k++)
            if (op->in[k] != TENSOR_NONE)
                kinds[op->in[k]] = OPTIM_embedding;
    }
}

static enum snug_status make_target(struct program *prog, struct pass_env *env, tensor_id weight,
                                    tensor_id grad, tensor_id scalars, struct optim_target *target)
{
    const struct tensor *t = &prog->tensors[weight];
    *target = (struct optim_target){.prog = prog,
                                    .grad = grad,
                                    .scalars = scalars,
                                    .weight = weight,
                                    .master = TENSOR_NONE,
                                    .optimizer = env->optimizer,
                                    .options = env->options,
                                    .decay = t->decays ? env->weight_decay : 0,
                                    .lr_factor = 1,
                                    .lr = env->lr,
                                    .state_bits = env->state_bits,
                                    .err = env->err};
    if (!env->master || t->dtype == DTYPE_f32)
        return SNUG_OK;
    TRY(optim_add_state(target, "master", DTYPE_f32, NULL, &target->master));
    prog->tensors[target->master].init = INIT_weight;
    return SNUG_OK;
}

static enum snug_status emit_updates(const struct optimizer *optimizer,
                                     const struct optim_target *targets, int n)
{
    if (optimizer->emit_all != NULL)
        return optimizer->emit_all(targets, n);
    for (int i = 0; i < n; i++)
        TRY(optimizer->emit(&targets[i]));
    return SNUG_OK;
}

enum snug_status pass_optimizer(struct program *prog, struct pass_env *env)
{
    tensor_id scalars = TENSOR_NONE;
    int n_tensors = prog->n_tensors, n_gradients = 0, n_targets = 0;
    for (int i = 0; i < n_tensors; i++)
        n_gradients += prog->tensors[i].role == ROLE_gradient;
    if (prog->loss != TENSOR_NONE) {
        TRY(program_scalars(prog, &scalars, env->err));
        TRY(emit_norm(prog, env, n_gradients, scalars));
    }
    struct optim_target *targets =
        arena_zeros(env->scratch, (size_t)n_gradients + 1, sizeof *targets);
    enum optim_kind *kinds = arena_zeros(env->scratch, (size_t)prog->n_tensors, sizeof *kinds);
    bool *in_out = arena_zeros(env->scratch, (size_t)prog->n_tensors, sizeof *in_out);
    if (targets == NULL || kinds == NULL || in_out == NULL)
        return out_of_memory(env);
    mark_kinds(prog, kinds, in_out);
    for (int i = 0; i < n_tensors; i++) {
        tensor_id grad;
        TRY(autodiff_gradient_of(prog, env, i, &grad));
        if (grad == TENSOR_NONE)
            continue;
        TRY(make_target(prog, env, i, grad, scalars, &targets[n_targets]));
        targets[n_targets].in_out = in_out[i];
        targets[n_targets++].kind = kinds[i];
    }
    return emit_updates(env->optimizer, targets, n_targets);
}
