/*
 * attention.h -- launchers of attention.cu, and those of attention_mma.cu that it calls.
 */
#ifndef SNUG_CUDA_ATTENTION_ATTENTION_H
#define SNUG_CUDA_ATTENTION_ATTENTION_H

#include "cuda/kernels/dropout.h"

enum { CUDA_ATTENTION_DEPTH = 256 }; /* largest head size */

/* The operands of ir/attention_operands.h.  y and dy [B,Tq,heads * depth], lse [B,heads,Tq]; q, k
 * and v begin at their first head, and their rows are q_row and kv_row elements apart, as those of
 * dq, dk, dv.  All but lse and delta have one type. */
struct cuda_attention {
    int64_t n_batch;
    int n_queries, n_keys;
    int n_heads, n_kv_heads, depth;
    int group;  /* heads that read the same head of k and v */
    int window; /* n_keys if there is no limit */
    bool causal;
    enum dtype dtype;
    const void *q, *k, *v;
    int64_t q_row, kv_row;
    const int32_t *starts, *lengths; /* NULL if left out */
    void *y;                         /* input of the gradient */
    float *lse;                      /* input of the gradient */
    struct cuda_dropout dropout;
    /* for the gradient only */
    const void *dy;
    void *dq, *dk, *dv;
    float *delta; /* workspace: as many floats as lse has */
};

CUDA_LAUNCHERS_BEGIN
CUDA_LAUNCHER int cuda_attention(const struct cuda_attention *attention, void *stream);
CUDA_LAUNCHER int cuda_attention_grad(const struct cuda_attention *attention, void *stream);
/* On tensor cores, if the shape fits: 16-bit types, head size a multiple of 8 up to 128.  The
 * gradient expects delta to be computed. */
CUDA_LAUNCHER bool cuda_attention_mma_fits(const struct cuda_attention *attention);
CUDA_LAUNCHER int cuda_attention_mma(const struct cuda_attention *attention, void *stream);
CUDA_LAUNCHER int cuda_attention_mma_grad(const struct cuda_attention *attention, void *stream);
CUDA_LAUNCHERS_END

#endif
