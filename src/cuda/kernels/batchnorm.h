/*
 * batchnorm.h -- launchers of batchnorm.cu.
 */
#ifndef SNUG_CUDA_KERNELS_BATCHNORM_H
#define SNUG_CUDA_KERNELS_BATCHNORM_H

#include "cuda/kernels/sums.h"

/* Rows of `channels` elements; statistics are of each channel. */
struct cuda_batchnorm {
    int64_t n_rows, channels;
    float eps;
    bool relu;
    struct cuda_array x, gamma, beta;
    struct cuda_array r; /* added before relu, or left out */
    struct cuda_array y; /* may be x or r; of the gradient: read for its sign, or left out */
    struct cuda_array mean, var; /* written; of eval and of the gradient: read */
    /* of the gradient */
    struct cuda_array dy, dx, dr;    /* dx may be dy or x; dx and dr may be left out */
    struct cuda_array dgamma, dbeta; /* either may be left out */
    bool add;                        /* to dgamma and dbeta */
    float *work;                     /* as many floats as cuda_batchnorm_work says */
};

/* Two sums of each channel: all of them, and their parts, if every part has a row. */
static inline int64_t cuda_batchnorm_work(int64_t n_rows, int64_t channels)
{
    return 2 * channels * (1 + cuda_sum_parts_of(n_rows));
}

CUDA_LAUNCHERS_BEGIN
/* y = fn((x - mean) / sqrt(var + eps) * gamma + beta (+ r)), by the statistics of x */
CUDA_LAUNCHER int cuda_batchnorm(const struct cuda_batchnorm *norm, void *stream);
/* the same by those that are given */
CUDA_LAUNCHER int cuda_batchnorm_eval(const struct cuda_batchnorm *norm, void *stream);
CUDA_LAUNCHER int cuda_batchnorm_grad(const struct cuda_batchnorm *norm, void *stream);
/* running (1 - momentum) + momentum * mean, and the unbiased variance */
CUDA_LAUNCHER int cuda_batchnorm_update(int64_t n_rows, int64_t channels, float momentum,
                                        struct cuda_array mean, struct cuda_array var,
                                        struct cuda_array running_mean,
                                        struct cuda_array running_var, void *stream);
CUDA_LAUNCHERS_END

#endif
