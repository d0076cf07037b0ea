/*
 * cuda.h -- the entry point of the CUDA backend, in the plugin and in the emulation that tests use.
 */
#ifndef SNUG_CUDA_CUDA_H
#define SNUG_CUDA_CUDA_H

#include "exec/backend.h"

/* cuda_backend.c */
const struct backend *snug_cuda_backend(void);

#endif
