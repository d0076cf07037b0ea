/*
 * attention.h -- launchers of attention.cu and, for it, of attention_mma.cu.
 */
#ifndef SNUG_CUDA_KERNELS_ATTENTION_H
#define SNUG_CUDA_KERNELS_ATTENTION_H

#include "cuda/kernels/dropout.h"

enum { CUDA_ATTENTION_DEPTH = 256 }; /* of a head, at most */

/* qkv [B,T,3C], y [B,T,C], lse [B,H,T]; C = heads * depth; all but lse of one type */
struct cuda_attention {
    int64_t n_batch, n_time;
    int n_heads, depth;
    bool causal;
    enum dtype dtype;
    const void *qkv;
    void *y;    /* read by the gradient */
    float *lse; /* likewise */
    struct cuda_dropout dropout;
    /* of the gradient */
    const void *dy;
    void *dqkv;
    float *delta; /* workspace: as many floats as lse */
};

CUDA_LAUNCHERS_BEGIN
CUDA_LAUNCHER int cuda_attention(const struct cuda_attention *attention, void *stream);
CUDA_LAUNCHER int cuda_attention_grad(const struct cuda_attention *attention, void *stream);
/* On tensor cores, where those fit: 16-bit types, heads of a multiple of 8 up to 128.  delta is there. */
CUDA_LAUNCHER bool cuda_attention_mma_fits(const struct cuda_attention *attention);
CUDA_LAUNCHER int cuda_attention_mma(const struct cuda_attention *attention, void *stream);
CUDA_LAUNCHER int cuda_attention_mma_grad(const struct cuda_attention *attention, void *stream);
CUDA_LAUNCHERS_END

#endif
