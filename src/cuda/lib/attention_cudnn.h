/*
 * attention_cudnn.h -- one cuDNN graph for attention or its gradient (attention_cudnn.c), or under
 * emulation plain loops (attention_emulated.c).
 */
#ifndef SNUG_CUDA_LIB_ATTENTION_CUDNN_H
#define SNUG_CUDA_LIB_ATTENTION_CUDNN_H

#include "cuda/dispatch/attention_parts.h"
#include "cuda/kernels/launch.h"

/* Where the gradients of the heads of q that read the same head of k and v are summed. */
enum attention_sums {
    ATTENTION_SUMS_none,    /* nowhere: every head has a k and v of its own, or forward */
    ATTENTION_SUMS_library, /* in the graph */
    ATTENTION_SUMS_own      /* the graph writes dk and dv [B,T,H,D] of every head */
};

/* The sequences and heads of one run.  n_heads is a multiple of n_kv_heads. */
struct attention_part {
    int64_t n_batch, n_heads, n_kv_heads;
    enum attention_sums sums;
};

/* Addresses of the first sequence and head of the part. */
struct attention_operands {
    const void *q, *k, *v, *dy;
    void *y;
    float *lse;
    void *dq, *dk, *dv;
    void *work; /* 256-byte aligned */
    void *stream;
};

struct attention_engine;

/* *engine is NULL if cuDNN rejects the part.  *work_bytes is then what it would need if that was
 * the reason, else 0. */
CUDA_LAUNCHER enum snug_status attention_engine_prepare(const struct cuda_attention_shape *shape,
                                                        const struct attention_part *part,
                                                        size_t most_work_bytes,
                                                        struct attention_engine **engine,
                                                        size_t *work_bytes, struct snug_error *err);
CUDA_LAUNCHER void attention_engine_release(struct attention_engine *engine); /* NULL is fine */
CUDA_LAUNCHER enum snug_status attention_engine_run(const struct attention_engine *engine,
                                                    const struct attention_operands *operands,
                                                    struct snug_error *err);

#endif
