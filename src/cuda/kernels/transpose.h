/*
 * transpose.h -- launcher of transpose.cu.
 */
#ifndef SNUG_CUDA_KERNELS_TRANSPOSE_H
#define SNUG_CUDA_KERNELS_TRANSPOSE_H

#include "cuda/kernels/launch.h"

CUDA_LAUNCHERS_BEGIN
/* y[n,b,a] (+)= x[n,a,b]; y must not alias x */
CUDA_LAUNCHER int cuda_transpose(int64_t n, int64_t a, int64_t b, struct cuda_array x,
                                 struct cuda_array y, bool add, void *stream);
CUDA_LAUNCHERS_END

#endif
