/*
 * batchnorm.h -- launchers of batchnorm.cu.
 */
#ifndef SNUG_CUDA_KERNELS_BATCHNORM_H
#define SNUG_CUDA_KERNELS_BATCHNORM_H

#include "cuda/kernels/sums.h"

/* Rows of `channels` elements, with statistics per channel. */
struct cuda_batchnorm {
    int64_t n_rows, channels;
    float eps;
    bool relu;
    struct cuda_array x, gamma, beta;
    struct cuda_array r;         /* added before relu; optional */
    struct cuda_array y;         /* may be x or r; the gradient reads its sign; optional there */
    struct cuda_array mean, var; /* written; read by eval and by the gradient */
    /* for the gradient only */
    struct cuda_array dy, dx, dr;    /* dx may be dy or x; dx and dr are optional */
    struct cuda_array dgamma, dbeta; /* both optional */
    bool add;                        /* dgamma and dbeta: += instead of = */
    float *work;                     /* cuda_batchnorm_work floats */
};

/* Two sums per channel, and their partial sums. */
static inline int64_t cuda_batchnorm_work(int64_t n_rows, int64_t channels)
{
    return 2 * channels * (1 + cuda_sum_parts_of(n_rows));
}

CUDA_LAUNCHERS_BEGIN
/* y = fn((x - mean) / sqrt(var + eps) * gamma + beta (+ r)), with the statistics of x */
CUDA_LAUNCHER int cuda_batchnorm(const struct cuda_batchnorm *norm, void *stream);
/* the same with the given statistics */
CUDA_LAUNCHER int cuda_batchnorm_eval(const struct cuda_batchnorm *norm, void *stream);
CUDA_LAUNCHER int cuda_batchnorm_grad(const struct cuda_batchnorm *norm, void *stream);
/* running = running (1 - momentum) + momentum * mean, and likewise the unbiased variance */
CUDA_LAUNCHER int cuda_batchnorm_update(int64_t n_rows, int64_t channels, float momentum,
                                        struct cuda_array mean, struct cuda_array var,
                                        struct cuda_array running_mean,
                                        struct cuda_array running_var, void *stream);
CUDA_LAUNCHERS_END

#endif
