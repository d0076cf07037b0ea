/*
 * cuda.h -- the entry of the backend: of the plugin, and of the emulation in the tests.
 */
#ifndef SNUG_CUDA_CUDA_H
#define SNUG_CUDA_CUDA_H

#include "exec/backend.h"

const struct backend *snug_cuda_backend(void);

#endif
