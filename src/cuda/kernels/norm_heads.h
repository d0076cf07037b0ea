/*
 * norm_heads.h -- launchers of norm_heads.cu: rmsnorm of rows up to CUDA_NORM_HEAD, for norm.cu.
 */
#ifndef SNUG_CUDA_KERNELS_NORM_HEADS_H
#define SNUG_CUDA_KERNELS_NORM_HEADS_H

#include "cuda/kernels/norm.h"

CUDA_LAUNCHERS_BEGIN
/* Not after an add. */
CUDA_LAUNCHER int cuda_norm_heads(const struct cuda_norm *norm, void *stream);
/* Writes dx and the parts of dgamma. */
CUDA_LAUNCHER int cuda_norm_heads_grad(const struct cuda_norm_grad *grad, void *stream);
CUDA_LAUNCHERS_END

#endif
