/*
 * bias.h -- launcher of bias.cu.
 */
#ifndef SNUG_CUDA_KERNELS_BIAS_H
#define SNUG_CUDA_KERNELS_BIAS_H

#include "cuda/kernels/launch.h"

CUDA_LAUNCHERS_BEGIN
/* y = x + bias (+ r), packed rows of `width`; bias and r are optional; y may alias x or r */
CUDA_LAUNCHER int cuda_add_bias(int64_t n_rows, int64_t width, struct cuda_array x,
                                struct cuda_array bias, struct cuda_array r, struct cuda_array y,
                                void *stream);
CUDA_LAUNCHERS_END

#endif
