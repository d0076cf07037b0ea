/*
 * lora.c -- low-rank adapters: freeze the model, train two thin matrices per adapted linear layer.
 *
 *     y = linear x, W, bias     ->  y.down = linear x, A            [.., r]
 *                                   y.scaled = scale y.down         alpha / r
 *                                   y.up = linear y.scaled, B
 *                                   y = linear x, W, bias, y.up
 *
 * A [r, in] is initialized like a linear layer in PyTorch and B [out, r] to zero, so at first the
 * model's results are unchanged, bit for bit.  The scale alpha / r is applied where it is
 * cheapest, to r elements per row.  A and B are named LAYER.lora_A.weight and LAYER.lora_B.weight
 * and have PEFT's layout.
 *
 * All other parameters are frozen: autodiff emits no gradients for them, so they have no optimizer
 * states.  Linear layers are classified by their neighbours: attention reads q, k and v; the output
 * projection reads attention; the layers of an MLP are next to an activation function.
 *
 * Frozen matrices that only linear layers read can be stored in fewer bits.  They are chosen here,
 * before other passes add readers, and rewritten by dequantize.c.
 *
 * needs: a forward program, with dropout inserted    keeps: tensor ids, results    breaks: nothing
 * leaves: results.quantized
 * cost:  O(ops x ops + tensors)
 */
#include "pass/pass.h"
#include "pass/rewriter.h"

#include <math.h>
#include <string.h>

enum place { PLACE_none, PLACE_attention_in, PLACE_attention_out, PLACE_mlp };

/* The op that writes the tensor, looking through dropout; NULL if there is none. */
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
        return env->config.lora_on != LORA_ON_mlp;
    case PLACE_attention_out:
        return env->config.lora_on == LORA_ON_all;
    case PLACE_mlp:
        return env->config.lora_on != LORA_ON_attention;
    }
    return false;
}

static enum snug_status check_rank(const struct program *prog, const struct pass_env *env,
                                   const struct op *op)
{
    const struct tensor *w = &prog->tensors[op->in[1]];
    int64_t most = w->shape.dim[0] < w->shape.dim[1] ? w->shape.dim[0] : w->shape.dim[1];
    if (env->config.lora_rank < 1 || env->config.lora_rank > most)
        return snug_fail(env->err, SNUG_BAD_ARGUMENT,
                         "--lora %d: \"%s\" is %lld x %lld: choose a rank from 1 to %lld",
                         env->config.lora_rank, w->name, (long long)w->shape.dim[0],
                         (long long)w->shape.dim[1], (long long)most);
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

/* Adds the matrix A or B of the adapter of a weight. */
static enum snug_status add_matrix(struct program *prog, struct pass_env *env, tensor_id of,
                                   bool is_a, struct shape shape, tensor_id *id)
{
    const char *weight = prog->tensors[of].name;
    const char *suffix = is_a ? ".lora_A.weight" : ".lora_B.weight";
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
        return snug_fail(
            env->err, SNUG_BAD_PROGRAM,
            "--lora: a tensor \"%s\" already exists, because the model has adapters or two "
            "layers share a matrix: leave --lora out, or rename the tensor",
            t.name);
    TRY(program_add_tensor(prog, &t, id, env->err));
    program_link(prog, *id, LINK_adapter, of);
    return SNUG_OK;
}

/* Emits an op of the adapter; its result is named after y, the output of the adapted layer. */
static enum snug_status emit_part(struct rewriter *rw, struct pass_env *env, enum op_kind kind,
                                  const struct attrs *attrs, tensor_id x, tensor_id matrix,
                                  tensor_id y, const char *suffix, tensor_id *id)
{
    char *name = arena_format(env->scratch, "%s%s", rw->prog->tensors[y].name, suffix);
    if (name == NULL)
        return snug_fail(env->err, SNUG_NO_MEMORY, "lora: out of memory");
    return rewriter_emit(rw, kind, attrs, matrix == TENSOR_NONE ? 1 : 2, (tensor_id[]){x, matrix},
                         name, 1, id);
}

/* Emits the ops of the adapter, then layer i with the adapter's output added. */
static enum snug_status adapt(struct rewriter *rw, struct pass_env *env, int i)
{
    struct program *prog = rw->prog;
    struct op linear = prog->ops[i];
    const struct shape w = prog->tensors[linear.in[1]].shape;
    int64_t rank = env->config.lora_rank;
    bool in_out = attrs_of(&linear, linear)->layout == LAYOUT_in_out;
    int64_t n_in = w.dim[in_out ? 0 : 1], n_out = w.dim[in_out ? 1 : 0];
    tensor_id a, b, down, scaled, y = linear.out[0];
    struct attrs scale = ATTRS(options, .options = {{env->config.lora_scale}});
    TRY(add_matrix(prog, env, linear.in[1], true, (struct shape){2, {rank, n_in}}, &a));
    TRY(add_matrix(prog, env, linear.in[1], false, (struct shape){2, {n_out, rank}}, &b));
    rewriter_reach(rw, i);
    TRY(emit_part(rw, env, OP_linear, NULL, linear.in[0], a, y, ".down", &down));
    TRY(emit_part(rw, env, OP_scale, &scale, down, TENSOR_NONE, y, ".scaled", &scaled));
    if (linear.n_in < 3)
        linear.in[2] = TENSOR_NONE;
    TRY(emit_part(rw, env, OP_linear, NULL, scaled, b, y, ".up", &linear.in[3]));
    linear.n_in = 4;
    return rewriter_replace(rw, i, &linear);
}

static enum snug_status no_place(const struct program *prog, const struct pass_env *env)
{
    static const char *const layers[] = {"linear layer that feeds attention",
                                         "MLP linear layer (next to an activation)",
                                         "attention or MLP linear layer"};
    bool any = false;
    for (int i = 0; i < prog->n_ops; i++)
        any |= prog->ops[i].kind == OP_linear && place_of(prog, &prog->ops[i]) != PLACE_none;
    return snug_fail(env->err, SNUG_UNSUPPORTED, "--lora: %s has no %s%s", prog->name,
                     layers[env->config.lora_on],
                     any ? "; --lora-on all adapts the linear layers it has"
                         : "; convolutions and embeddings do not support adapters");
}

/* Chooses the frozen matrices that only linear layers read. */
static void choose_quantized(const struct program *prog, struct pass_env *env)
{
    for (int i = 0; i < prog->n_tensors; i++)
        env->results.quantized[i] = prog->tensors[i].frozen && prog->tensors[i].shape.n_dims == 2;
    for (int i = 0; i < prog->n_ops; i++)
        for (int k = 0; k < prog->ops[i].n_in; k++)
            if (prog->ops[i].in[k] != TENSOR_NONE && (prog->ops[i].kind != OP_linear || k != 1))
                env->results.quantized[prog->ops[i].in[k]] = false;
}

static enum snug_status rewrite(struct rewriter *rw, struct pass_env *env)
{
    int n_adapters = 0;
    for (int i = 0; i < rw->prog->n_ops; i++) {
        const struct op *op = &rw->prog->ops[i];
        if (!is_adapted(rw->prog, env, op)) {
            TRY(rewriter_copy(rw, i));
            continue;
        }
        TRY(check_rank(rw->prog, env, op));
        TRY(adapt(rw, env, i));
        n_adapters++;
    }
    return n_adapters == 0 ? no_place(rw->prog, env) : SNUG_OK;
}

enum snug_status pass_lora(struct program *prog, struct pass_env *env)
{
    env->results.quantized =
        arena_zeros(env->scratch, (size_t)prog->n_tensors + 1, sizeof *env->results.quantized);
    env->results.n_quantized = prog->n_tensors;
    if (env->results.quantized == NULL)
        return snug_fail(env->err, SNUG_NO_MEMORY, "lora: no memory for %d tensors",
                         prog->n_tensors);
    for (int i = 0; i < prog->n_tensors; i++)
        prog->tensors[i].frozen =
            prog->tensors[i].role == ROLE_parameter || prog->tensors[i].role == ROLE_buffer;
    choose_quantized(prog, env);
    struct rewriter rw = rewriter_begin(prog, "lora", env->err);
    return rewriter_finish(&rw, rewrite(&rw, env));
}
