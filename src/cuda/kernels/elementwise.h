/*
 * elementwise.h -- launchers of elementwise.cu, on n elements each; y may alias an input.
 */
#ifndef SNUG_CUDA_KERNELS_ELEMENTWISE_H
#define SNUG_CUDA_KERNELS_ELEMENTWISE_H

#include "cuda/kernels/launch.h"
#include "ir/program.h" /* enum act */

CUDA_LAUNCHERS_BEGIN
/* y = fn(x) */
CUDA_LAUNCHER int cuda_act(enum act fn, int64_t n, struct cuda_array x, struct cuda_array y,
                           void *stream);
/* dx = dy fn'(x) */
CUDA_LAUNCHER int cuda_act_grad(enum act fn, int64_t n, struct cuda_array dy, struct cuda_array x,
                                struct cuda_array dx, void *stream);
/* y = a + b */
CUDA_LAUNCHER int cuda_add(int64_t n, struct cuda_array a, struct cuda_array b, struct cuda_array y,
                           void *stream);
/* y = factor x; with factor 1 a cast */
CUDA_LAUNCHER int cuda_scale(float factor, int64_t n, struct cuda_array x, struct cuda_array y,
                             void *stream);
/* *at = value, in the scalar table */
CUDA_LAUNCHER int cuda_set_scalar(double *at, double value, void *stream);
CUDA_LAUNCHERS_END

#endif
