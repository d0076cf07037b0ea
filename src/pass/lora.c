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
 * states.  The layers of a block are chosen by their roles (ir/linear_roles.h), alone or in groups,
 * or as PEFT's target_modules, by the end of their names: gate, attention, gate_proj.
 *
 * Frozen matrices that only linear layers read can be stored in fewer bits.  They are chosen here,
 * before other passes add readers, and rewritten by dequantize.c.
 *
 * needs: a forward program, with dropout inserted    keeps: tensor ids, results    breaks: nothing
 * leaves: results.quantized
 * cost:  O(ops x words of --lora-on + tensors)
 */
#include "base/nearest.h"
#include "base/text.h"
#include "ir/linear_roles.h"
#include "pass/pass.h"
#include "pass/rewriter.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The words of --lora-on that name several roles. */
static const struct group {
    const char *name;
    unsigned roles;
    const char *layers; /* for the message when a model has none */
} groups[] = {
#define BIT(role) (1u << LINEAR_##role)
    {"attention", BIT(q) | BIT(k) | BIT(v) | BIT(qkv), "linear layer that feeds attention"},
    {"mlp", BIT(gate) | BIT(up) | BIT(down), "MLP linear layer (next to an activation)"},
    {"all", ~1u, "attention or MLP linear layer"}};
#undef BIT
enum { N_GROUPS = (int)(sizeof groups / sizeof *groups) };

struct selection {
    const struct program *prog;
    struct pass_env *env;
    enum linear_role *roles; /* per op; other if it cannot have an adapter */
    bool *adapted;           /* per op */
};

static const char ending[] = ".weight";

/* The length of the layer's name in the name of its weight: "h.0.attn.c_attn.weight". */
static size_t layer_length(const char *weight)
{
    size_t n = strlen(weight), m = sizeof ending - 1;
    return n > m && strcmp(weight + n - m, ending) == 0 ? n - m : n;
}

/* Does the name of the layer end in the word, after a dot or as a whole? */
static bool ends_in(const char *weight, const char *word)
{
    size_t length = layer_length(weight), n = strlen(word);
    return length >= n && strncmp(weight + length - n, word, n) == 0 &&
           (length == n || weight[length - n - 1] == '.');
}

/* Selects the layers that a word of --lora-on names; returns how many. */
static int select_word(struct selection *s, const char *word)
{
    const struct group *group = NULL;
    int n = 0;
    for (int i = 0; i < N_GROUPS; i++)
        if (strcmp(groups[i].name, word) == 0)
            group = &groups[i];
    for (int i = 0; i < s->prog->n_ops; i++) {
        if (s->roles[i] == LINEAR_other)
            continue;
        bool named = group != NULL
                         ? (group->roles >> s->roles[i] & 1) != 0
                         : strcmp(linear_role_name(s->roles[i]), word) == 0 ||
                               ends_in(s->prog->tensors[s->prog->ops[i].in[1]].name, word);
        s->adapted[i] |= named;
        n += named;
    }
    return n;
}

static unsigned roles_of(const struct selection *s)
{
    unsigned roles = 0;
    for (int i = 0; i < s->prog->n_ops; i++)
        roles |= 1u << s->roles[i];
    return roles & ~1u;
}

static enum snug_status no_such_layer(const struct selection *s, const char *word)
{
    struct snug_error *err = s->env->err;
    unsigned roles = roles_of(s);
    for (int i = 0; i < N_GROUPS; i++)
        if (roles == 0 || strcmp(groups[i].name, word) == 0)
            return snug_fail(err, SNUG_UNSUPPORTED, "--lora: %s has no %s%s", s->prog->name,
                             groups[roles == 0 ? N_GROUPS - 1 : i].layers,
                             roles == 0 ? "; convolutions and embeddings do not support adapters"
                                        : "; --lora-on all adapts the linear layers it has");
    const char *words[LINEAR_ROLE_COUNT + N_GROUPS] = {NULL};
    struct text names = {0};
    for (int role = 1; role < LINEAR_ROLE_COUNT; role++)
        if (roles >> role & 1) {
            words[role] = linear_role_name((enum linear_role)role);
            text_add(&names, "%s%s", names.length > 0 ? ", " : "", words[role]);
        }
    for (int i = 0; i < N_GROUPS; i++)
        words[LINEAR_ROLE_COUNT + i] = groups[i].name;
    bool is_part = (roles >> LINEAR_qkv & 1) && strchr("qkv", word[0]) != NULL && word[1] == '\0';
    const char *nearest = is_part ? "qkv" : nearest_word(word, words, LINEAR_ROLE_COUNT + N_GROUPS);
    enum snug_status status = snug_fail(
        err, SNUG_BAD_ARGUMENT,
        "--lora-on %s: %s has no layer of that name%s%s%s has %s (or attention, mlp, all)", word,
        s->prog->name, nearest != NULL ? "; did you mean " : "", nearest != NULL ? nearest : "",
        nearest != NULL ? "? It" : "; it", names.data);
    text_free(&names);
    return status;
}

static enum snug_status select_layers(struct selection *s)
{
    char word[LORA_ON_WORD_MAX];
    for (const char *at = s->env->config.lora_on; *at != '\0';) {
        size_t n = strcspn(at, ",");
        snprintf(word, sizeof word, "%.*s", (int)n, at);
        if (select_word(s, word) == 0)
            return no_such_layer(s, word);
        at += n + (at[n] == ',');
    }
    return SNUG_OK;
}

/* Leaves the roles of the layers that can have an adapter. */
static enum snug_status selection_init(struct selection *s, const struct program *prog,
                                       struct pass_env *env)
{
    *s = (struct selection){.prog = prog, .env = env};
    s->adapted = arena_zeros(env->scratch, (size_t)prog->n_ops + 1, sizeof *s->adapted);
    if (s->adapted == NULL)
        return snug_fail(env->err, SNUG_NO_MEMORY, "lora: no memory for %d ops", prog->n_ops);
    TRY(linear_roles_find(prog, env->scratch, &s->roles, env->err));
    for (int i = 0; i < prog->n_ops; i++) {
        const struct op *op = &prog->ops[i];
        if (op->kind != OP_linear || op->n_in > 3 ||
            prog->tensors[op->in[1]].role != ROLE_parameter)
            s->roles[i] = LINEAR_other;
    }
    return SNUG_OK;
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
    return arena_format(env->scratch, "%.*s%s", (int)layer_length(weight), weight, suffix);
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

static enum snug_status rewrite(struct rewriter *rw, const struct selection *s)
{
    for (int i = 0; i < rw->prog->n_ops; i++) {
        if (!s->adapted[i]) {
            TRY(rewriter_copy(rw, i));
            continue;
        }
        TRY(check_rank(rw->prog, s->env, &rw->prog->ops[i]));
        TRY(adapt(rw, s->env, i));
    }
    return SNUG_OK;
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
    struct selection selection;
    TRY(selection_init(&selection, prog, env));
    TRY(select_layers(&selection));
    struct rewriter rw = rewriter_begin(prog, "lora", env->err);
    return rewriter_finish(&rw, rewrite(&rw, &selection));
}
