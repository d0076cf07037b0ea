/*
 * gpt2.c -- GPT-2 as OpenAI published it: token and position embeddings, pre-norm blocks of causal
 * attention and a 4x GELU MLP, a final norm, and an LM head tied to the token embedding.
 *
 * Parameter names, shapes and layouts are those of the Hugging Face checkpoints, so weights load
 * and save without conversion.  Weights are initialized from a normal distribution with standard
 * deviation 0.02; the two projections that end a residual branch are scaled down by
 * sqrt(2 x layers).
 */
#include "model/model.h"

#include <math.h>
#include <stdio.h>

static enum snug_status block(struct program *prog, const struct gpt2_shape *g, int64_t layer,
                              tensor_id x, tensor_id *y, struct snug_error *err)
{
    char name[64];
    tensor_id t, qkv, out[2], residual;
    double branch_end = 0.02 / sqrt(2.0 * (double)g->n_layer);
    struct linear_spec linear = {.name = name, .layout = LAYOUT_in_out, .init = INIT_normal};
    struct attrs heads = ATTRS(attention, .heads = g->n_head),
                 act = ATTRS(common, .act = g->activation);
#define NAME(suffix) (snprintf(name, sizeof name, "h.%lld." suffix, (long long)layer), name)

    TRY(build_layernorm(prog, x, NAME("ln_1"), g->layer_norm_epsilon, &t, err));
    NAME("attn.c_attn");
    linear.n_out = 3 * g->n_embd, linear.init_scale = 0.02;
    TRY(build_linear(prog, t, &linear, &qkv, err));
    TRY(program_emit(prog, OP_attention, &heads, 1, &qkv, NAME("attn"), 2, out, err));
    NAME("attn.c_proj");
    linear.n_out = g->n_embd, linear.init_scale = branch_end;
    TRY(build_linear(prog, out[0], &linear, &t, err));
    TRY(program_emit(prog, OP_add, NULL, 2, (tensor_id[]){x, t}, NAME("attn.residual"), 1,
                     &residual, err));

    TRY(build_layernorm(prog, residual, NAME("ln_2"), g->layer_norm_epsilon, &t, err));
    NAME("mlp.c_fc");
    linear.n_out = 4 * g->n_embd, linear.init_scale = 0.02;
    TRY(build_linear(prog, t, &linear, &t, err));
    TRY(program_emit(prog, OP_act, &act, 1, &t, NAME("mlp.act"), 1, out, err));
    NAME("mlp.c_proj");
    linear.n_out = g->n_embd, linear.init_scale = branch_end;
    TRY(build_linear(prog, out[0], &linear, &t, err));
    return program_emit(prog, OP_add, NULL, 2, (tensor_id[]){residual, t}, NAME("mlp.residual"), 1,
                        y, err);
#undef NAME
}

/* For the loss: the LM head fused with cross-entropy.  For logits: those of the position
 * scalars[SCALAR_row]. */
static enum snug_status head(struct program *prog, enum model_purpose purpose, tensor_id x,
                             tensor_id tokens, tensor_id wte, struct snug_error *err)
{
    tensor_id out[2];
    if (purpose == MODEL_FOR_LOSS) {
        tensor_id targets;
        TRY(build_input(prog, "target", DTYPE_i32, &prog->tensors[tokens].shape, &targets, err));
        TRY(program_emit(prog, OP_linear_cross_entropy, NULL, 3, (tensor_id[]){x, wte, targets},
                         "loss", 2, out, err));
        prog->loss = out[0];
        prog->tensors[out[0]].is_output = true;
        return SNUG_OK;
    }
    tensor_id row, scalars;
    TRY(program_scalars(prog, &scalars, err));
    TRY(program_emit(prog, OP_take_row, NULL, 2, (tensor_id[]){x, scalars}, "last", 1, &row, err));
    TRY(program_emit(prog, OP_linear, NULL, 2, (tensor_id[]){row, wte}, "logits", 1, out, err));
    prog->tensors[out[0]].is_output = true;
    return SNUG_OK;
}

enum snug_status gpt2_forward(const struct gpt2_shape *g, enum model_purpose purpose, int64_t seq,
                              struct program *prog, struct snug_error *err)
{
    tensor_id tokens, wte, wpe, x;
    TRY(build_input(prog, "tokens", DTYPE_i32, &(struct shape){2, {1, seq}}, &tokens, err));
    TRY(build_parameter(prog, "wte.weight", &(struct shape){2, {g->vocab_size, g->n_embd}},
                        INIT_normal, 0.02, &wte, err));
    TRY(build_parameter(prog, "wpe.weight", &(struct shape){2, {g->n_positions, g->n_embd}},
                        INIT_normal, 0.02, &wpe, err));
    TRY(program_emit(prog, OP_embedding, NULL, 3, (tensor_id[]){tokens, wte, wpe}, "embedding", 1,
                     &x, err));
    for (int64_t layer = 0; layer < g->n_layer; layer++)
        TRY(block(prog, g, layer, x, &x, err));
    TRY(build_layernorm(prog, x, "ln_f", g->layer_norm_epsilon, &x, err));
    return head(prog, purpose, x, tokens, wte, err);
}
