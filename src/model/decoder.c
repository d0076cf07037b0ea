/*
 * decoder.c -- decoder language models: token embedding, blocks of causal attention and an MLP,
 * each after a norm and added to the residual stream, a final norm, and an LM head.
 *
 * GPT-2 has layernorms, learned positions, one packed projection for q, k and v, and a GELU MLP.
 * Llama, Mistral and Qwen have rmsnorms, rotary positions (RoPE), q, k and v apart, with fewer
 * heads of k and v than of q, and a SwiGLU MLP.  struct decoder_shape has the settings.
 *
 * Parameter names, shapes and layouts are those of the Hugging Face checkpoints, so weights load
 * and save without conversion.  Weights start as each family's own code starts them: from a normal
 * distribution, and for GPT-2 the two projections that end a residual branch are scaled down by
 * sqrt(2 x layers).
 */
#include "model/model.h"

#include <math.h>
#include <stdio.h>

/* The names of a family's parameters; %lld is the layer. */
struct names {
    const char *tokens, *positions, *final_norm, *head;
    const char *norm_1, *norm_2, *qkv, *q, *k, *v, *q_norm, *k_norm, *out, *gate, *up, *down;
};

static const struct names gpt2_names = {.tokens = "wte",
                                        .positions = "wpe",
                                        .final_norm = "ln_f",
                                        .head = "lm_head",
                                        .norm_1 = "h.%lld.ln_1",
                                        .norm_2 = "h.%lld.ln_2",
                                        .qkv = "h.%lld.attn.c_attn",
                                        .out = "h.%lld.attn.c_proj",
                                        .up = "h.%lld.mlp.c_fc",
                                        .down = "h.%lld.mlp.c_proj"};

#define LAYER "model.layers.%lld."
static const struct names llama_names = {.tokens = "model.embed_tokens",
                                         .final_norm = "model.norm",
                                         .head = "lm_head",
                                         .norm_1 = LAYER "input_layernorm",
                                         .norm_2 = LAYER "post_attention_layernorm",
                                         .q = LAYER "self_attn.q_proj",
                                         .k = LAYER "self_attn.k_proj",
                                         .v = LAYER "self_attn.v_proj",
                                         .q_norm = LAYER "self_attn.q_norm",
                                         .k_norm = LAYER "self_attn.k_norm",
                                         .out = LAYER "self_attn.o_proj",
                                         .gate = LAYER "mlp.gate_proj",
                                         .up = LAYER "mlp.up_proj",
                                         .down = LAYER "mlp.down_proj"};

enum { NAME_BYTES = 96 };

struct maker {
    struct program *prog;
    const struct decoder_shape *d;
    const struct names *names;
    int64_t layer;
    struct snug_error *err;
};

/* A name of the current layer. */
static const char *in_layer(const struct maker *m, const char *name, char to[NAME_BYTES])
{
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* the tables above */
    snprintf(to, NAME_BYTES, name, (long long)m->layer);
#pragma GCC diagnostic pop
    return to;
}

static bool is_gpt2(const struct maker *m)
{
    return m->d->family == DECODER_gpt2;
}

static enum snug_status linear(const struct maker *m, const char *name, tensor_id x, int64_t n_out,
                               bool has_bias, double std, tensor_id *y)
{
    char full[NAME_BYTES];
    struct linear_spec spec = {.name = in_layer(m, name, full),
                               .n_out = n_out,
                               .layout = is_gpt2(m) ? LAYOUT_in_out : LAYOUT_out_in,
                               .init = INIT_normal,
                               .init_scale = std,
                               .no_bias = !has_bias};
    return build_linear(m->prog, x, &spec, y, m->err);
}

static enum snug_status norm(const struct maker *m, const char *name, tensor_id x, int64_t width,
                             tensor_id *y)
{
    char full[NAME_BYTES];
    in_layer(m, name, full);
    return is_gpt2(m) ? build_layernorm(m->prog, x, full, m->d->norm_eps, y, m->err)
                      : build_rmsnorm(m->prog, x, full, width, m->d->norm_eps, y, m->err);
}

/* An op without parameters that is named after a part of the current layer. */
static enum snug_status emit(const struct maker *m, enum op_kind kind, const struct attrs *attrs,
                             int n_in, const tensor_id *in, const char *name, tensor_id *y)
{
    char full[NAME_BYTES];
    tensor_id out[2];
    int n_out = op_infos[kind].min_out;
    TRY(program_emit(m->prog, kind, attrs, n_in, in, in_layer(m, name, full), n_out, out, m->err));
    *y = out[0];
    return SNUG_OK;
}

/* q or k: projection, norm of each head, rotation. */
static enum snug_status rotated(const struct maker *m, tensor_id x, const char *name,
                                const char *norm_name, const char *rope_name, int64_t heads,
                                tensor_id *y)
{
    const struct decoder_shape *d = m->d;
    struct attrs rope = ATTRS(rope);
    rope.rope = d->rope;
    rope.rope.heads = heads, rope.rope.inverse = false;
    TRY(linear(m, name, x, heads * d->head_dim, d->qkv_bias, d->init_std, y));
    if (d->qk_norm)
        TRY(norm(m, norm_name, *y, d->head_dim, y));
    return emit(m, OP_rope, &rope, 1, y, rope_name, y);
}

/* Writes q, k and v, or the packed qkv alone. */
static enum snug_status project(const struct maker *m, tensor_id x, tensor_id in[3], int *n_in)
{
    const struct decoder_shape *d = m->d;
    *n_in = m->names->qkv != NULL ? 1 : 3;
    if (m->names->qkv != NULL)
        return linear(m, m->names->qkv, x, (d->n_head + 2 * d->n_kv_head) * d->head_dim,
                      d->qkv_bias, d->init_std, &in[0]);
    TRY(rotated(m, x, m->names->q, m->names->q_norm, LAYER "self_attn.q", d->n_head, &in[0]));
    TRY(rotated(m, x, m->names->k, m->names->k_norm, LAYER "self_attn.k", d->n_kv_head, &in[1]));
    return linear(m, m->names->v, x, d->n_kv_head * d->head_dim, d->qkv_bias, d->init_std, &in[2]);
}

/* A window as long as the sequence has no effect. */
static int64_t window_of(const struct maker *m, tensor_id x)
{
    int64_t window = m->d->window;
    return window < m->prog->tensors[x].shape.dim[1] ? window : 0;
}

static enum snug_status attention(const struct maker *m, double out_std, tensor_id x, tensor_id *y)
{
    const struct decoder_shape *d = m->d;
    tensor_id in[3];
    int n_in;
    TRY(project(m, x, in, &n_in));
    struct attrs heads = ATTRS(attention, .heads = d->n_head, .window = window_of(m, x),
                               .kv_heads = d->n_kv_head == d->n_head ? 0 : d->n_kv_head);
    TRY(emit(m, OP_attention, &heads, n_in, in, is_gpt2(m) ? "h.%lld.attn" : LAYER "self_attn", y));
    return linear(m, m->names->out, *y, d->n_embd, d->out_bias, out_std, y);
}

static enum snug_status mlp(const struct maker *m, double out_std, tensor_id x, tensor_id *y)
{
    const struct decoder_shape *d = m->d;
    struct attrs act = ATTRS(common, .act = d->activation);
    tensor_id in[2];
    if (m->names->gate == NULL) {
        TRY(linear(m, m->names->up, x, d->n_inner, d->mlp_bias, d->init_std, y));
        TRY(emit(m, OP_act, &act, 1, y, "h.%lld.mlp.act", y));
    } else {
        TRY(linear(m, m->names->gate, x, d->n_inner, d->mlp_bias, d->init_std, &in[0]));
        TRY(linear(m, m->names->up, x, d->n_inner, d->mlp_bias, d->init_std, &in[1]));
        TRY(emit(m, OP_swiglu, NULL, 2, in, LAYER "mlp.swiglu", y));
    }
    return linear(m, m->names->down, *y, d->n_embd, d->mlp_bias, out_std, y);
}

static enum snug_status block(const struct maker *m, tensor_id x, tensor_id *y)
{
    double out_std = m->d->init_std;
    tensor_id t;
    if (is_gpt2(m))
        out_std /= sqrt(2.0 * (double)m->d->n_layer);
    TRY(norm(m, m->names->norm_1, x, m->d->n_embd, &t));
    TRY(attention(m, out_std, t, &t));
    TRY(emit(m, OP_add, NULL, 2, (tensor_id[]){x, t},
             is_gpt2(m) ? "h.%lld.attn.residual" : LAYER "self_attn.residual", &x));
    TRY(norm(m, m->names->norm_2, x, m->d->n_embd, &t));
    TRY(mlp(m, out_std, t, &t));
    return emit(m, OP_add, NULL, 2, (tensor_id[]){x, t},
                is_gpt2(m) ? "h.%lld.mlp.residual" : LAYER "mlp.residual", y);
}

/* A table with a row of n_embd elements per token or position. */
static enum snug_status table(const struct maker *m, const char *name, int64_t n_rows,
                              tensor_id *id)
{
    char full[NAME_BYTES];
    snprintf(full, sizeof full, "%s.weight", name);
    return build_parameter(m->prog, full, &(struct shape){2, {n_rows, m->d->n_embd}}, INIT_normal,
                           m->d->init_std, id, m->err);
}

/* For the loss: the LM head fused with cross-entropy.  For logits: those of the position
 * scalars[SCALAR_row]. */
static enum snug_status head(const struct maker *m, enum model_purpose purpose, tensor_id x,
                             tensor_id tokens, tensor_id embedding)
{
    struct program *prog = m->prog;
    tensor_id out[2], weight = embedding;
    if (!m->d->tied)
        TRY(table(m, m->names->head, m->d->vocab_size, &weight));
    if (purpose == MODEL_FOR_LOSS) {
        tensor_id targets;
        TRY(build_input(prog, "target", DTYPE_i32, &prog->tensors[tokens].shape, &targets, m->err));
        TRY(program_emit(prog, OP_linear_cross_entropy, NULL, 3, (tensor_id[]){x, weight, targets},
                         "loss", 2, out, m->err));
        prog->loss = out[0];
    } else {
        tensor_id row, scalars;
        TRY(program_scalars(prog, &scalars, m->err));
        TRY(program_emit(prog, OP_take_row, NULL, 2, (tensor_id[]){x, scalars}, "last", 1, &row,
                         m->err));
        TRY(program_emit(prog, OP_linear, NULL, 2, (tensor_id[]){row, weight}, "logits", 1, out,
                         m->err));
    }
    prog->tensors[out[0]].is_output = true;
    return SNUG_OK;
}

enum snug_status decoder_forward(const struct decoder_shape *d, enum model_purpose purpose,
                                 int64_t seq, struct program *prog, struct snug_error *err)
{
    struct maker m = {.prog = prog,
                      .d = d,
                      .names = d->family == DECODER_gpt2 ? &gpt2_names : &llama_names,
                      .err = err};
    tensor_id in[3], x;
    TRY(build_input(prog, "tokens", DTYPE_i32, &(struct shape){2, {1, seq}}, &in[0], err));
    TRY(table(&m, m.names->tokens, d->vocab_size, &in[1]));
    if (m.names->positions != NULL)
        TRY(table(&m, m.names->positions, d->n_positions, &in[2]));
    TRY(program_emit(prog, OP_embedding, NULL, m.names->positions != NULL ? 3 : 2, in, "embedding",
                     1, &x, err));
    for (m.layer = 0; m.layer < d->n_layer; m.layer++)
        TRY(block(&m, x, &x));
    TRY(norm(&m, m.names->final_norm, x, d->n_embd, &x));
    return head(&m, purpose, x, in[0], in[1]);
}
