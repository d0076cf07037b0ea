/*
 * head_sums.h -- launcher of head_sums.cu.
 */
#ifndef SNUG_CUDA_ATTENTION_HEAD_SUMS_H
#define SNUG_CUDA_ATTENTION_HEAD_SUMS_H

#include "cuda/kernels/launch.h"

enum { CUDA_HEAD_SUMS = 2 };

/* Heads have `depth` elements.  A row of x has n_sums * group heads, packed; a row of y has n_sums
 * heads and begins y_row elements after the row before.  All begin at multiples of 16 bytes, and
 * depth and y_row are multiples of 8. */
struct cuda_head_sums {
    int64_t n_rows, n_sums, group, depth, y_row;
    enum dtype dtype;
    const void *x[CUDA_HEAD_SUMS];
    void *y[CUDA_HEAD_SUMS];
};

CUDA_LAUNCHERS_BEGIN
/* y[row,i,d] = the sum of x[row,j,d] over the heads j = i group .. (i + 1) group - 1, in this order
 * in fp32, for both x */
CUDA_LAUNCHER int cuda_sum_heads(const struct cuda_head_sums *sums, void *stream);
CUDA_LAUNCHERS_END

#endif
