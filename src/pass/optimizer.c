/*
 * optimizer.c -- append the end of a step: the norm of all gradients, then the updates.
 *
 * The norm is always computed: it is reported in the metrics, it is needed for clipping, and a
 * step whose gradients are not finite (fp16 overflow, a diverged run) must not change the weights.
 * 16-bit weights get an fp32 master, counted as optimizer state, unless the recipe wants none.
 *
 * A pipeline stage has only the gradients of its own weights.  Its table of squared norms has an
 * entry for every weight of the model, so that a sum over the stages (shard_updates.c) gives the
 * norm of all gradients.  A weight on two stages is counted by the first.  PipeDream's stages do
 * not wait for each other, so each uses its own norm.
 *
 * A program without a loss (psi:N) computes nothing: its optimizer states are what counts.
 *
 * needs: gradients of the parameters (LINK_gradient)    keeps: existing ops, ids    breaks: nothing
 * cost:  O(ops + tensors)
 */
#include "optim/optim.h"
#include "pass/pass.h"

#include <string.h>

static enum snug_status out_of_memory(const struct pass_env *env)
{
    return snug_fail(env->err, SNUG_NO_MEMORY, "optimizer: out of memory");
}

/* Is the weight updated here?  PipeDream's last stage receives tied weights from the first one
 * (pipedream.c). */
static bool is_updated(const struct pass_env *env, tensor_id weight)
{
    bool at_ends = env->results.at_ends != NULL && weight < env->results.n_whole &&
                   env->results.at_ends[weight];
    return !at_ends || env->config.pipeline != PIPELINE_pipedream || env->config.ranks.stage == 0;
}

/* Does this stage add the weight's gradient to the norm? */
static bool is_counted(const struct pass_env *env, tensor_id weight)
{
    bool at_ends = env->results.at_ends != NULL && weight < env->results.n_whole &&
                   env->results.at_ends[weight];
    return !at_ends || env->config.ranks.stage == 0;
}

static bool norm_spans_stages(const struct pass_env *env)
{
    return env->config.ranks.n_stages > 1 && env->config.pipeline != PIPELINE_pipedream;
}

/* Emits the op that writes entry `at` of the table: the sum of squares of `grad`, or 0. */
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

/* The gradient of each table entry, in order; TENSOR_NONE if this stage does not count it. */
static int list_parts(const struct program *prog, const struct pass_env *env, tensor_id *parts)
{
    int n = 0;
    for (int i = 0; i < prog->n_tensors; i++) {
        const struct tensor *t = &prog->tensors[i];
        tensor_id grad = program_linked(prog, i, LINK_gradient);
        if (norm_spans_stages(env) && t->role == ROLE_parameter && !t->frozen)
            parts[n++] = is_counted(env, i) ? grad : TENSOR_NONE;
        else if (!norm_spans_stages(env) && t->role == ROLE_gradient)
            parts[n++] = i;
    }
    for (int i = 0; i < env->results.n_whole && !norm_spans_stages(env); i++) {
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

/* Classifies the parameters, for optimizers that treat some kinds differently.  The head is the
 * matmul (linear or convolution) whose result the loss reads.  A token table tied to the head is
 * an embedding.  The kinds of other tensors are not used. */
static void mark_kinds(const struct program *prog, enum optim_kind *kinds,
                       enum weight_layout *layouts)
{
    tensor_id logits = TENSOR_NONE;
    for (int i = 0; i < prog->n_tensors; i++)
        kinds[i] = prog->tensors[i].shape.n_dims < 2 ? OPTIM_vector : OPTIM_matrix;
    for (int i = prog->n_ops - 1; i >= 0; i--) { /* backwards: a tied table ends as an embedding */
        const struct op *op = &prog->ops[i];
        if (op_has(op, TRAIT_loss))
            logits = op->in[0];
        bool is_layer = op_layer(op) == LAYER_forward;
        bool is_table = op_has(op, TRAIT_table);
        bool is_head = op_has(op, TRAIT_lm_head) || (is_layer && op->out[0] == logits);
        if (is_layer && op_reads_attrs(op, linear))
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
