/*
 * attention_cudnn.h -- attention with cuDNN (attention_cudnn.c), or under emulation with plain
 * loops (attention_emulated.c).  16-bit types, no dropout.
 *
 * Layouts are those of ops.def: qkv [B,T,3,H,D], y [B,T,H,D], lse [B,H,T].
 */
#ifndef SNUG_CUDA_LIB_ATTENTION_CUDNN_H
#define SNUG_CUDA_LIB_ATTENTION_CUDNN_H

#include "base/status.h"
#include "cuda/kernels/launch.h"

struct cuda_attention_shape {
    int64_t n_batch, n_heads, n_time, depth; /* B, H, T, D */
    enum dtype type;
    bool causal, is_grad;
    bool nondeterministic; /* the gradient may be summed in an order that changes from run to run */
};

struct cuda_attention_call {
    const void *qkv, *dy;
    void *y; /* written; the gradient reads it */
    float *lse;
    void *dqkv;
    void *work; /* 256-byte aligned */
    void *stream;
};

struct cuda_attention;

/* dispatch_attention_cudnn.c */
/* The workspace that is planned for it: enough for at least one part on every GPU tried so far. */
size_t cuda_attention_work_bytes(const struct cuda_attention_shape *shape);
/* If cuDNN rejects the shape, *attention is NULL and the status is OK: use the fallback kernel. */
CUDA_LAUNCHER enum snug_status cuda_attention_prepare(const struct cuda_attention_shape *shape,
                                                      size_t most_work_bytes,
                                                      struct cuda_attention **attention,
                                                      struct snug_error *err);
CUDA_LAUNCHER void cuda_attention_release(struct cuda_attention *attention); /* NULL is fine */
CUDA_LAUNCHER enum snug_status cuda_attention_run(const struct cuda_attention *attention,
                                                  const struct cuda_attention_call *call,
                                                  struct snug_error *err);

#endif
