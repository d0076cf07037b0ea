/*
 * dequantize.h -- launcher of dequantize.cu.
 */
#ifndef SNUG_CUDA_KERNELS_DEQUANTIZE_H
#define SNUG_CUDA_KERNELS_DEQUANTIZE_H

#include "base/quant_map.h"
#include "cuda/kernels/launch.h"

CUDA_LAUNCHERS_BEGIN
/* y = n dequantized elements: the value of each, times the scale of its quant block */
CUDA_LAUNCHER int cuda_dequantize(const struct quant_map *map, int64_t n, const uint8_t *quants,
                                  const float *scales, struct cuda_array y, void *stream);
CUDA_LAUNCHERS_END

#endif
