/*
 * swiglu.h -- launchers of swiglu.cu, on n elements.
 */
#ifndef SNUG_CUDA_KERNELS_SWIGLU_H
#define SNUG_CUDA_KERNELS_SWIGLU_H

#include "cuda/kernels/launch.h"

CUDA_LAUNCHERS_BEGIN
/* y = gate sigmoid(gate) up; y may be gate or up */
CUDA_LAUNCHER int cuda_swiglu(int64_t n, struct cuda_array gate, struct cuda_array up,
                              struct cuda_array y, void *stream);
/* dgate, dup and y (the output of cuda_swiglu, with the same bits) are optional; dgate may be dy or
 * gate. */
CUDA_LAUNCHER int cuda_swiglu_grad(int64_t n, struct cuda_array dy, struct cuda_array gate,
                                   struct cuda_array up, struct cuda_array dgate,
                                   struct cuda_array dup, struct cuda_array y, void *stream);
CUDA_LAUNCHERS_END

#endif
