/*
 * optimizer.c -- the end of a step: the norm of all gradients, then the updates.
 *
 * The norm is always computed: it is in the metrics, it clips where asked, and a step whose
 * gradients are not finite (fp16 overflow, a diverged run) must not touch the weights.
 * 16-bit weights get an fp32 master, booked as optimizer state, unless the recipe wants none.
 *
 * A stage of a pipeline has the gradients of its weights alone.  The table of the norm has a place for every
 * weight of the model, so that a sum over the stages (shard_updates.c) makes it the norm of all; a weight that
 * two stages have counts on the first.  PipeDream's stages do not wait for each other: each has its own norm.
 *
 * A program without a loss (psi:N) has no numbers to compute with: only the states are added.
 *
 * needs: gradients of the parameters    keeps: ops so far, ids    breaks: nothing
 * cost:  O(ops + tensors)
 */
#include "optim/optim.h"
#include "pass/pass.h"

#include <string.h>

static enum snug_status out_of_memory(const struct pass_env *env)
{
    return snug_fail(env->err, SNUG_NO_MEMORY, "optimizer: out of memory");
}

/* Is the weight updated here?  PipeDream's last stage borrows those of the first (unroll.c). */
static bool is_updated(const struct pass_env *env, tensor_id weight)
{
    bool at_ends = env->results.at_ends != NULL && weight < env->results.n_whole &&
                   env->results.at_ends[weight];
    return !at_ends || env->config.pipeline != PIPELINE_pipedream || env->config.ranks.stage == 0;
}

static bool is_counted(const struct pass_env *env, tensor_id weight)
{
    bool at_ends = env->results.at_ends != NULL && weight < env->results.n_whole &&
                   env->results.at_ends[weight];
    return !at_ends || env->config.ranks.stage == 0;
}

static bool norm_is_of_all(const struct pass_env *env)
{
    return env->config.ranks.n_stages > 1 && env->config.pipeline != PIPELINE_pipedream;
}

/* Part `at` of the table: of a gradient, or 0. */
static enum snug_status emit_part(struct program *prog, struct pass_env *env, tensor_id parts,
                                  int at, tensor_id grad)
{
    char *name = arena_format(env->scratch, "norm.part.%d", at);
    struct tensor part = {.name = name == NULL ? "norm.part" : name,
                          .dtype = DTYPE_f64,
                          .role = ROLE_temporary,
                          .shape = {1, {1}},
                          .base = parts,
                          .offset_elems = at};
    tensor_id id;
    TRY(program_add_tensor(prog, &part, &id, env->err));
    return grad == TENSOR_NONE
               ? program_add_op(prog, OP_clear, NULL, 0, NULL, 1, &id, env->err)
               : program_add_op(prog, OP_sum_squares, NULL, 1, &grad, 1, &id, env->err);
}

/* What each part is of, in order; TENSOR_NONE: of a gradient that is not here. */
static int list_parts(const struct program *prog, const struct pass_env *env, tensor_id *parts)
{
    int n = 0;
    for (int i = 0; i < prog->n_tensors; i++) {
        const struct tensor *t = &prog->tensors[i];
        tensor_id grad = program_linked(prog, i, LINK_gradient);
        if (norm_is_of_all(env) && t->role == ROLE_parameter && !t->frozen)
            parts[n++] = is_counted(env, i) ? grad : TENSOR_NONE;
        else if (!norm_is_of_all(env) && t->role == ROLE_gradient)
            parts[n++] = i;
    }
    for (int i = 0; i < env->results.n_whole && !norm_is_of_all(env); i++) {
        tensor_id grad = program_linked(prog, i, LINK_gradient);
        for (int k = 0; k < n && !is_updated(env, i); k++)
            parts[k] = parts[k] == grad ? TENSOR_NONE : parts[k];
    }
    return n;
}

static enum snug_status emit_norm(struct program *prog, struct pass_env *env, tensor_id scalars)
{
    tensor_id *of = arena_alloc(env->scratch, ((size_t)prog->n_tensors + 1) * sizeof *of), parts;
    if (of == NULL)
        return out_of_memory(env);
    int n = list_parts(prog, env, of);
    if (n == 0)
        of[n++] = TENSOR_NONE; /* a stage that trains nothing */
    struct tensor table = {TENSOR_INIT, .name = "norm.parts", .dtype = DTYPE_f64,
                           .role = ROLE_temporary, .shape = {1, {n}}};
    TRY(program_add_tensor(prog, &table, &parts, env->err));
    for (int at = 0; at < n; at++)
        TRY(emit_part(prog, env, parts, at, of[at]));
    struct attrs attrs = ATTRS(grad_norm, .max_norm = env->config.max_norm,
                               .dynamic_scale = env->config.compute == DTYPE_f16);
    return program_add_op(prog, OP_grad_norm, &attrs, 2, (tensor_id[]){parts, scalars}, 1, &scalars,
                          env->err);
}

/* What parameters are to the model, for optimizers that treat kinds apart; other tensors get a kind
 * that nobody reads.  The head is the matmul that the loss reads, a convolution too.  A table that
 * is also the head (tied) is an embedding. */
static void mark_kinds(const struct program *prog, enum optim_kind *kinds,
                       enum weight_layout *layouts)
{
    tensor_id logits = TENSOR_NONE;
    for (int i = 0; i < prog->n_tensors; i++)
        kinds[i] = prog->tensors[i].shape.n_dims < 2 ? OPTIM_vector : OPTIM_matrix;
    for (int i = prog->n_ops - 1; i >= 0; i--) { /* embeddings last: they come first in a model */
        const struct op *op = &prog->ops[i];
        if (op_has(op, TRAIT_loss))
            logits = op->in[0];
        bool is_gemm = op->kind == OP_linear || op->kind == OP_conv2d;
        bool is_table = op_has(op, TRAIT_table);
        bool is_head = op_has(op, TRAIT_lm_head) || (is_gemm && op->out[0] == logits);
        if (op->kind == OP_linear)
            layouts[op->in[1]] = attrs_of(op, linear)->layout;
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
                                    .optimizer = env->config.optimizer,
                                    .options = env->config.options,
                                    .decay = t->decays ? env->config.weight_decay : 0,
                                    .lr_factor = 1,
                                    .lr = env->config.lr,
                                    .state_bits = env->config.state_bits,
                                    .err = env->err};
    return env->config.master && t->dtype != DTYPE_f32 ? optim_add_master(target, &target->master)
                                                       : SNUG_OK;
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
        TRY(emit_norm(prog, env, scalars));
    }
    struct optim_target *targets =
        arena_zeros(env->scratch, (size_t)n_gradients + 1, sizeof *targets);
    enum optim_kind *kinds = arena_zeros(env->scratch, (size_t)prog->n_tensors, sizeof *kinds);
    enum weight_layout *layouts =
        arena_zeros(env->scratch, (size_t)prog->n_tensors, sizeof *layouts);
    if (targets == NULL || kinds == NULL || layouts == NULL)
        return out_of_memory(env);
    mark_kinds(env->results.n_whole > 0 && env->results.whole != NULL ? env->results.whole : prog,
               kinds, layouts);
    for (int i = 0; i < n_tensors; i++) {
        tensor_id grad = program_linked(prog, i, LINK_gradient);
        if (grad == TENSOR_NONE || !is_updated(env, i))
            continue;
        TRY(make_target(prog, env, i, grad, scalars, &targets[n_targets]));
        targets[n_targets].layout = layouts[i];
        targets[n_targets++].kind = kinds[i];
    }
    return emit_updates(env->config.optimizer, targets, n_targets);
}
