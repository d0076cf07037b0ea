/*
 * attention_cudnn.h -- attention by a library: cuDNN (attention_cudnn.c), or under emulation plain
 * loops (attention_emulated.c).  No dropout, 16-bit types.
 *
 * Rows of qkv, y and their gradients lie as ops.def has them: qkv [B,T,3,H,D], y [B,T,H,D], lse [B,H,T].
 */
#ifndef SNUG_CUDA_LIB_ATTENTION_CUDNN_H
#define SNUG_CUDA_LIB_ATTENTION_CUDNN_H

#include "base/status.h"
#include "cuda/kernels/launch.h"

struct cuda_attention_shape {
    int64_t n_batch, n_heads, n_time, depth; /* B, H, T, D */
    enum dtype type;
    bool causal, is_grad;
    bool nondeterministic; /* the gradient may be summed up in no fixed order */
};

struct cuda_attention_call {
    const void *qkv, *dy;
    void *y; /* written, or for the gradient read */
    float *lse;
    void *dqkv;
    void *work; /* 256-byte aligned */
    void *stream;
};

struct cuda_attention;

/* What is booked for it: enough for a part of it at least, on any GPU that it was tried on. */
size_t cuda_attention_work_bytes(const struct cuda_attention_shape *shape);
/* *attention is NULL, which is not an error, if the library refuses: then use an own kernel. */
CUDA_LAUNCHER enum snug_status cuda_attention_prepare(const struct cuda_attention_shape *shape,
                                                      size_t most_work_bytes,
                                                      struct cuda_attention **attention,
                                                      struct snug_error *err);
CUDA_LAUNCHER void cuda_attention_release(struct cuda_attention *attention); /* NULL is fine */
CUDA_LAUNCHER enum snug_status cuda_attention_run(const struct cuda_attention *attention,
                                                  const struct cuda_attention_call *call,
                                                  struct snug_error *err);

#endif
