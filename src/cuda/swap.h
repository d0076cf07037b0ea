/*
 * swap.h -- the launcher of swap.cu.
 */
#ifndef SNUG_CUDA_SWAP_H
#define SNUG_CUDA_SWAP_H

#include "cuda/launch.h"

CUDA_LAUNCHERS_BEGIN
/* y[n,b,a] (+)= x[n,a,b]; y may not lie on x */
CUDA_LAUNCHER int cuda_swap_sides(int64_t n, int64_t a, int64_t b, struct cuda_array x,
                                  struct cuda_array y, bool add, void *stream);
CUDA_LAUNCHERS_END

#endif
