/*
 * attention.h -- launchers of attention.cu, and those of attention_mma.cu that it calls.
 */
#ifndef SNUG_CUDA_KERNELS_ATTENTION_H
#define SNUG_CUDA_KERNELS_ATTENTION_H

#include "cuda/kernels/dropout.h"

enum { CUDA_ATTENTION_DEPTH = 256 }; /* largest head size */

/* qkv [B,T,3C], y [B,T,C], lse [B,H,T]; C = heads * depth; all but lse have one type */
struct cuda_attention {
    int64_t n_batch, n_time;
    int n_heads, depth;
    bool causal;
    enum dtype dtype;
    const void *qkv;
    void *y;    /* input of the gradient */
    float *lse; /* input of the gradient */
    struct cuda_dropout dropout;
    /* for the gradient only */
    const void *dy;
    void *dqkv;
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
