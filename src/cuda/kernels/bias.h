/*
 * bias.h -- the launcher of bias.cu.
 */
#ifndef SNUG_CUDA_KERNELS_BIAS_H
#define SNUG_CUDA_KERNELS_BIAS_H

#include "cuda/kernels/launch.h"

CUDA_LAUNCHERS_BEGIN
/* y = x + bias (+ r), rows of `width` that lie packed; bias and r may be left out; y may lie on x or
 * on r */
CUDA_LAUNCHER int cuda_add_bias(int64_t n_rows, int64_t width, struct cuda_array x,
                                struct cuda_array bias, struct cuda_array r, struct cuda_array y,
                                void *stream);
CUDA_LAUNCHERS_END

#endif
