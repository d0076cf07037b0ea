/*
 * decoder_shape.h -- the settings of a decoder language model: GPT-2, Llama, Mistral, Qwen...
 *
 * model/decoder.c builds the program; io/hf_config.c (GPT-2) and io/hf_decoder.c (the others) read
 * and write config.json.  Everybody who needs the vocabulary, the length or the width of a language
 * model reads it here.
 */
#ifndef SNUG_IR_DECODER_SHAPE_H
#define SNUG_IR_DECODER_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

#include "ir/op.h"

/* Families differ in the names of their tensors (model/decoder.c) and keys (io/hf_decoder.c). */
enum decoder_family {
    DECODER_gpt2,
    DECODER_llama, /* Llama 2 and 3, TinyLlama, SmolLM2 */
    DECODER_mistral,
    DECODER_qwen2,
    DECODER_qwen3
};

/* Longer models are trained at this length unless --seq says otherwise. */
enum { DECODER_DEFAULT_SEQ = 2048 };

struct decoder_shape {
    enum decoder_family family;
    int64_t n_layer, n_embd, n_positions, vocab_size;
    int64_t n_head, n_kv_head, head_dim; /* head_dim x n_head need not be n_embd */
    int64_t n_inner;                     /* width inside the MLP */
    int64_t window;                      /* a token sees this many, itself included; 0: all */
    double norm_eps, init_std;
    struct rope_attrs rope;            /* all families but gpt2; heads and inverse are unused */
    enum act activation;               /* gpt2; the others have SwiGLU */
    bool tied;                         /* the head is the token embedding */
    bool qkv_bias, out_bias, mlp_bias; /* Llama's attention_bias is qkv_bias and out_bias */
    bool qk_norm;                      /* rmsnorm of each head of q and k, before rope */
};

/* GPT-2 with these sizes. */
static inline struct decoder_shape decoder_gpt2(int64_t n_layer, int64_t n_head, int64_t n_embd,
                                                int64_t n_positions, int64_t vocab_size)
{
    return (struct decoder_shape){.family = DECODER_gpt2,
                                  .n_layer = n_layer,
                                  .n_embd = n_embd,
                                  .n_positions = n_positions,
                                  .vocab_size = vocab_size,
                                  .n_head = n_head,
                                  .n_kv_head = n_head,
                                  .head_dim = n_head > 0 ? n_embd / n_head : 0,
                                  .n_inner = 4 * n_embd,
                                  .norm_eps = 1e-5,
                                  .init_std = 0.02,
                                  .activation = ACT_gelu,
                                  .tied = true,
                                  .qkv_bias = true,
                                  .out_bias = true,
                                  .mlp_bias = true};
}

/* Is the MLP gated (SwiGLU)? */
static inline bool decoder_has_gate(const struct decoder_shape *d)
{
    return d->activation == ACT_none;
}

/* The length that a step has unless --seq is given. */
static inline int64_t decoder_default_seq(const struct decoder_shape *d)
{
    return d->n_positions < DECODER_DEFAULT_SEQ ? d->n_positions : DECODER_DEFAULT_SEQ;
}

#endif
