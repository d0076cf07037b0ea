/*
 * lm_head_bf16.h -- the LM head on AMX tiles: logits, softmax, loss and gradients in bf16.
 */
#ifndef SNUG_CPU_GEMM_LM_HEAD_BF16_H
#define SNUG_CPU_GEMM_LM_HEAD_BF16_H

#include "cpu/gemm/gemm_bf16.h"

struct lm_head_bf16 {
    int64_t n_rows, width, n_classes;
    int threads;
    bool makes_lse; /* computes lse; else lse is an input */
    bool wants_dx, wants_dw;
    bool dx_is_f32; /* dx is accumulated in place; else in the workspace */
    bool dw_is_f32;
    bool is_smoothed; /* label smoothing is on */
    bool keeps_all;   /* stores all classes of a row at once; set by lm_head_bf16.c */
};

struct lm_head_bf16_operands {
    const uint16_t *x, *w;
    const int32_t *targets;
    float *lse;
    double *losses; /* one per row, or NULL */
    float factor;   /* of the gradient */
    struct labels labels;
    struct span dx, dw;
    bool add_dw;
};

size_t lm_head_bf16_work_bytes(const struct lm_head_bf16 *head);
/* Of these, the stored exponentials; 0 if they are not stored. */
int64_t lm_head_bf16_kept_bytes(const struct lm_head_bf16 *head);
void lm_head_bf16_run(const struct lm_head_bf16 *head, const struct lm_head_bf16_operands *operands,
                      gemm_bf16_fn *gemm_bf16, const struct cpu_loops *loops, void *work);

#endif
