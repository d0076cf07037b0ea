/*
 * lora.c -- low-rank adapters: the model stays as it is, two thin matrices beside some of its
 * linear layers are trained.
 *
 *     y = linear x, W, bias     ->  y.down = linear x, A            [.., r]
 *                                   y.scaled = scale y.down         alpha / r
 *                                   y.up = linear y.scaled, B
 *                                   y = linear x, W, bias, y.up
 *
 * A [r, in] starts as PyTorch starts a linear layer, B [out, r] at zero: the first step computes
 * what the model computed, to the last bit.  The factor is applied where it is cheapest, on r
 * numbers a row.  A and B are called LAYER.lora_A.weight and LAYER.lora_B.weight and lie as PEFT
 * has them.
 *
 * All other parameters are frozen: autodiff makes no gradient for them, so they have no states.
 * Which linear layers are attention's and which are an mlp's is read off their neighbours: q, k
 * and v are read by attention, its projection reads it, and the layers of an mlp stand before or
 * after an activation.
 *
 * Frozen matrices that only linear layers read may be kept in fewer bits: they are chosen here,
 * before other passes add readers; dequantize.c rewrites them.
 *
 * needs: a forward program, dropout in its place    keeps: tensor ids, results    breaks: nothing
 * cost:  O(ops x ops + tensors)
 */
#include "pass/pass.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum place { PLACE_none, PLACE_attention_in, PLACE_attention_out, PLACE_mlp };

/* The op that writes the tensor, dropout passed over; NULL: none. */
static const struct op *source_of(const struct program *prog, tensor_id id)
{
    for (int i = prog->n_ops - 1; i >= 0; i--)
        for (int k = 0; k < prog->ops[i].n_out; k++) {
            if (prog->ops[i].out[k] != id)
                continue;
            if (prog->ops[i].kind != OP_dropout)
                return &prog->ops[i];
            id = prog->ops[i].in[0];
        }
    return NULL;
}

static bool is_read_by(const struct program *prog, tensor_id id, enum op_kind kind)
{
    for (int i = 0; i < prog->n_ops; i++)
        if (prog->ops[i].kind == kind && prog->ops[i].in[0] == id)
            return true;
    return false;
}

static enum place place_of(const struct program *prog, const struct op *op)
{
    const struct op *source = source_of(prog, op->in[0]);
    if (is_read_by(prog, op->out[0], OP_attention))
        return PLACE_attention_in;
    if (source != NULL && source->kind == OP_attention)
        return PLACE_attention_out;
    if (is_read_by(prog, op->out[0], OP_act) || (source != NULL && source->kind == OP_act) ||
        op->attrs.act != ACT_none)
        return PLACE_mlp;
    return PLACE_none;
}

static bool is_adapted(const struct program *prog, const struct pass_env *env, const struct op *op)
{
    if (op->kind != OP_linear || op->n_in > 3 || prog->tensors[op->in[1]].role != ROLE_parameter)
        return false;
    switch (place_of(prog, op)) {
    case PLACE_none:
        return false;
    case PLACE_attention_in:
        return env->lora_on != LORA_ON_mlp;
    case PLACE_attention_out:
        return env->lora_on == LORA_ON_all;
    case PLACE_mlp:
        return env->lora_on != LORA_ON_attention;
    }
    return false;
}

static enum snug_status check_rank(const struct program *prog, const struct pass_env *env,
                                   const struct op *op)
{
    const struct tensor *w = &prog->tensors[op->in[1]];
    int64_t most = w->shape.dim[0] < w->shape.dim[1] ? w->shape.dim[0] : w->shape.dim[1];
    if (env->lora_rank < 1 || env->lora_rank > most)
        return snug_fail(
            env->err, SNUG_BAD_ARGUMENT,
            "--lora %d: \"%s\" is %lld x %lld, its adapters have a rank from 1 to %lld",
            env->lora_rank, w->name, (long long)w->shape.dim[0], (long long)w->shape.dim[1],
            (long long)most);
    return SNUG_OK;
}

/* "h.0.attn.c_attn.weight" -> "h.0.attn.c_attn" + suffix */
static char *layer_name(struct pass_env *env, const char *weight, const char *suffix)
{
    static const char ending[] = ".weight";
    size_t n = strlen(weight), m = sizeof ending - 1;
    bool ends = n > m && strcmp(weight + n - m, ending) == 0;
    return arena_format(env->scratch, "%.*s%s", (int)(ends ? n - m : n), weight, suffix);
}

static enum snug_status add_matrix(struct program *prog, struct pass_env *env, const char *weight,
                                   const char *suffix, struct shape shape, tensor_id *id)
{
    bool is_a = strcmp(suffix, ".lora_A.weight") == 0;
    struct tensor t = {TENSOR_INIT,
                       .name = layer_name(env, weight, suffix),
                       .dtype = DTYPE_f32,
                       .role = ROLE_parameter,
                       .shape = shape,
                       .persistent = true,
                       .decays = true,
                       .init = is_a ? INIT_uniform : INIT_zeros,
                       .init_scale = is_a ? 1 / sqrt((double)shape.dim[1]) : 0};
    if (t.name == NULL)
        return snug_fail(env->err, SNUG_NO_MEMORY, "lora: out of memory");
    if (program_find(prog, t.name) != TENSOR_NONE)
        return snug_fail(env->err, SNUG_BAD_PROGRAM,
                         "--lora: the name \"%s\" is taken: the model has adapters already, or two "
                         "layers share a matrix",
                         t.name);
    return program_add_tensor(prog, &t, id, env->err);
}

/* A tensor as large as the result, or `width` wide. */
static enum snug_status add_part(struct program *prog, struct pass_env *env, tensor_id result,
                                 const char *suffix, int64_t width, tensor_id *id)
{
    struct tensor t = prog->tensors[result];
    t.name = arena_format(env->scratch, "%s%s", t.name, suffix);
    t.is_output = false;
    t.shape.dim[t.shape.n_dims - 1] = width;
    if (t.name == NULL)
        return snug_fail(env->err, SNUG_NO_MEMORY, "lora: out of memory");
    return program_add_tensor(prog, &t, id, env->err);
}

static struct op op_of(enum op_kind kind, tensor_id a, tensor_id b, tensor_id out)
{
    return (struct op){.kind = kind,
                       .n_in = b == TENSOR_NONE ? 1 : 2,
                       .n_out = 1,
                       .in = {a, b},
                       .out = {out},
                       .work = TENSOR_NONE,
                       .attrs = ATTRS()};
}

enum { OPS_OF_ADAPTER = 4 };

static enum snug_status adapt(struct program *prog, struct pass_env *env, const struct op *linear,
                              struct op ops[OPS_OF_ADAPTER])
{
    const struct shape w = prog->tensors[linear->in[1]].shape;
    const char *name = prog->tensors[linear->in[1]].name;
    int64_t rank = env->lora_rank;
    int64_t n_in = w.dim[attrs_of(linear, linear)->layout ? 0 : 1],
            n_out = w.dim[attrs_of(linear, linear)->layout ? 1 : 0];
    tensor_id a, b, down, scaled, up, y = linear->out[0];
    TRY(add_matrix(prog, env, name, ".lora_A.weight", (struct shape){2, {rank, n_in}}, &a));
    TRY(add_matrix(prog, env, name, ".lora_B.weight", (struct shape){2, {n_out, rank}}, &b));
    TRY(add_part(prog, env, y, ".down", rank, &down));
    TRY(add_part(prog, env, y, ".scaled", rank, &scaled));
    TRY(add_part(prog, env, y, ".up", n_out, &up));
    ops[0] = op_of(OP_linear, linear->in[0], a, down);
    ops[1] = op_of(OP_scale, down, TENSOR_NONE, scaled);
    attrs_of(&ops[1], options)->options.value[0] = env->lora_scale;
    ops[2] = op_of(OP_linear, scaled, b, up);
    ops[3] = *linear;
    if (linear->n_in < 3)
        ops[3].in[2] = TENSOR_NONE;
    ops[3].in[3] = up;
    ops[3].n_in = 4;
    return SNUG_OK;
}

static enum snug_status no_place(const struct program *prog, const struct pass_env *env)
{
    static const char *const layers[] = {"linear layer that attention reads",
                                         "linear layer beside an activation",
                                         "linear layer of attention or of an mlp"};
    bool any = false;
    for (int i = 0; i < prog->n_ops; i++)
        any |= prog->ops[i].kind == OP_linear && place_of(prog, &prog->ops[i]) != PLACE_none;
    return snug_fail(env->err, SNUG_UNSUPPORTED, "--lora: %s has no %s%s", prog->name,
                     layers[env->lora_on],
                     any ? "; --lora-on all takes those that it has"
                         : "; convolutions and embeddings have no adapters");
}

/* Frozen matrices that nothing but linear layers read. */
static void choose_quantized(const struct program *prog, struct pass_env *env)
{
    for (int i = 0; i < prog->n_tensors; i++)
        env->quantized[i] = prog->tensors[i].frozen && prog->tensors[i].shape.n_dims == 2;
    for (int i = 0; i < prog->n_ops; i++)
        for (int k = 0; k < prog->ops[i].n_in; k++)
            if (prog->ops[i].in[k] != TENSOR_NONE && (prog->ops[i].kind != OP_linear || k != 1))
                env->quantized[prog->ops[i].in[k]] = false;
}

/* The new list of ops; *n_ops of them. */
static enum snug_status rewrite(struct program *prog, struct pass_env *env, struct op *ops,
                                int *n_ops)
{
    int n = 0, n_adapters = 0;
    for (int i = 0; i < prog->n_ops; i++) {
        struct op op = prog->ops[i];
        ops[n] = op;
        if (!is_adapted(prog, env, &op)) {
            n++;
            continue;
        }
        TRY(check_rank(prog, env, &op));
        TRY(adapt(prog, env, &op, ops + n));
        n += OPS_OF_ADAPTER;
        n_adapters++;
    }
    *n_ops = n;
    return n_adapters == 0 ? no_place(prog, env) : SNUG_OK;
}

enum snug_status pass_lora(struct program *prog, struct pass_env *env)
{
    struct op *ops = malloc((OPS_OF_ADAPTER * (size_t)prog->n_ops + 1) * sizeof *ops);
    env->quantized = arena_zeros(env->scratch, (size_t)prog->n_tensors + 1, sizeof *env->quantized);
    env->n_quantized = prog->n_tensors;
    if (ops == NULL || env->quantized == NULL) {
        free(ops);
        return snug_fail(env->err, SNUG_NO_MEMORY, "lora: no memory for %d ops", prog->n_ops);
    }
    for (int i = 0; i < prog->n_tensors; i++)
        prog->tensors[i].frozen =
            prog->tensors[i].role == ROLE_parameter || prog->tensors[i].role == ROLE_buffer;
    choose_quantized(prog, env);
    int n_ops = 0;
    enum snug_status status = rewrite(prog, env, ops, &n_ops);
    if (status == SNUG_OK)
        program_set_ops(prog, ops, n_ops);
    else
        free(ops);
    return status;
}
