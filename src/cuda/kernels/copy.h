/*
 * copy.h -- launcher of copies.
 */
#ifndef SNUG_CUDA_KERNELS_COPY_H
#define SNUG_CUDA_KERNELS_COPY_H

#include "cuda/kernels/launch.h"

CUDA_LAUNCHERS_BEGIN
/* src/cuda/cuda_backend.c */
/* Copies between the device and pinned host memory, in either direction. */
CUDA_LAUNCHER int cuda_copy(void *to, const void *from, int64_t n_bytes, void *stream);
CUDA_LAUNCHERS_END

#endif
