/*
 * conv.h -- launchers of conv.cu: x [N,H,W,I], w [O,I/groups,KH,KW], y [N,H',W',O], any types.
 */
#ifndef SNUG_CUDA_KERNELS_CONV_H
#define SNUG_CUDA_KERNELS_CONV_H

#include "cuda/kernels/conv_shape.h"
#include "cuda/kernels/launch.h"

enum { CUDA_CONV_PARTS = 64, CUDA_CONV_PART_PIXELS = 512 };

/* The number of parts into which the pixels that a weight gradient sums over are split.  Parts
 * times groups is one dimension of a grid, which is limited to 65535. */
static inline int64_t cuda_conv_parts(int64_t n_pixels, int64_t groups)
{
    int64_t n = (n_pixels + CUDA_CONV_PART_PIXELS - 1) / CUDA_CONV_PART_PIXELS;
    int64_t most = 65535 / groups;
    most = most > CUDA_CONV_PARTS ? (int64_t)CUDA_CONV_PARTS : most < 1 ? 1 : most;
    return n < most ? n : most;
}

CUDA_LAUNCHERS_BEGIN
/* y = conv(x, w) (+ bias) */
CUDA_LAUNCHER int cuda_conv(const struct cuda_conv_shape *shape, struct cuda_array x,
                            struct cuda_array w, struct cuda_array bias, struct cuda_array y,
                            void *stream);
CUDA_LAUNCHER int cuda_conv_grad_x(const struct cuda_conv_shape *shape, struct cuda_array dy,
                                   struct cuda_array w, struct cuda_array dx, void *stream);
/* dw (+)=; work: cuda_conv_parts(pixels of y, groups) times the number of weights, in floats */
CUDA_LAUNCHER int cuda_conv_grad_w(const struct cuda_conv_shape *shape, struct cuda_array x,
                                   struct cuda_array dy, float *work, struct cuda_array dw,
                                   bool add, void *stream);
CUDA_LAUNCHERS_END

#endif
