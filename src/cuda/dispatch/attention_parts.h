/*
 * attention_parts.h -- attention with cuDNN: the choice of a formulation, the workspace, and
 * several runs if one run would need more than that.  16-bit types, no dropout.
 *
 * A row of q is one position of a sequence: the elements of all H heads, D of each.  Rows of k and
 * v have G heads, and H is a multiple of G.  y [B,T,H,D] and lse [B,H,T] are packed.
 */
#ifndef SNUG_CUDA_DISPATCH_ATTENTION_PARTS_H
#define SNUG_CUDA_DISPATCH_ATTENTION_PARTS_H

#include "base/dtype.h"
#include "base/status.h"

struct cuda_attention_shape {
    int64_t n_batch, n_heads, n_kv_heads, n_time, depth; /* B, H, G, T, D */
    int64_t q_row, kv_row; /* elements from one row to the next, of q and dq; of k, v, dk and dv */
    int64_t window;        /* with causal only; 0: no limit */
    enum dtype type;
    bool causal, is_grad;
    bool nondeterministic; /* the gradient may be summed in an order that changes from run to run */
    bool own_sums; /* let our kernel sum over heads that share k and v, even if cuDNN could */
};

struct cuda_attention_call {
    const void *q, *k, *v, *dy;
    void *y; /* written; the gradient reads it */
    float *lse;
    void *dq, *dk, *dv;
    void *work; /* 256-byte aligned */
    void *stream;
};

struct cuda_attention;

/* The workspace that is planned for it: enough for at least one part on every GPU tried so far. */
size_t cuda_attention_work_bytes(const struct cuda_attention_shape *shape);
/* If cuDNN rejects the shape, *attention is NULL and the status is OK: use the fallback kernel. */
enum snug_status cuda_attention_prepare(const struct cuda_attention_shape *shape,
                                        size_t most_work_bytes, struct cuda_attention **attention,
                                        struct snug_error *err);
void cuda_attention_release(struct cuda_attention *attention); /* NULL is fine */
enum snug_status cuda_attention_run(const struct cuda_attention *attention,
                                    const struct cuda_attention_call *call, struct snug_error *err);
/* What was chosen, for tests: does our kernel sum over heads, and how many runs are there? */
bool cuda_attention_sums_heads(const struct cuda_attention *attention);
int64_t cuda_attention_n_parts(const struct cuda_attention *attention);

#endif
