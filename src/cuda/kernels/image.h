/*
 * image.h -- launchers of image.cu: images are [N,H,W,C], channels last.
 */
#ifndef SNUG_CUDA_KERNELS_IMAGE_H
#define SNUG_CUDA_KERNELS_IMAGE_H

#include "cuda/kernels/conv_shape.h"
#include "cuda/kernels/launch.h"

CUDA_LAUNCHERS_BEGIN
/* Max of each window and its tap, as u8: kh * KW + kw.  Of equal values the first wins.  NaN is
 * larger than everything; of several the last wins. */
CUDA_LAUNCHER int cuda_maxpool(const struct cuda_conv_shape *shape, struct cuda_array x,
                               struct cuda_array y, uint8_t *at, void *stream);
CUDA_LAUNCHER int cuda_maxpool_grad(const struct cuda_conv_shape *shape, struct cuda_array dy,
                                    const uint8_t *at, struct cuda_array dx, void *stream);
/* y[n,c] = mean over pixels of x[n,pixel,c] */
CUDA_LAUNCHER int cuda_meanpool(int64_t n, int64_t n_pixels, int64_t channels, struct cuda_array x,
                                struct cuda_array y, void *stream);
CUDA_LAUNCHER int cuda_meanpool_grad(int64_t n, int64_t n_pixels, int64_t channels,
                                     struct cuda_array dy, struct cuda_array dx, void *stream);
/* y[i] = x[i] + more[i % period]; y may be x */
CUDA_LAUNCHER int cuda_add_repeated(int64_t n, int64_t period, struct cuda_array x,
                                    struct cuda_array more, struct cuda_array y, void *stream);
CUDA_LAUNCHERS_END

#endif
