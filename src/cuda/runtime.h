/*
 * runtime.h -- the CUDA runtime API, or the emulation of it that the tests are built with.
 */
#ifndef SNUG_CUDA_RUNTIME_H
#define SNUG_CUDA_RUNTIME_H

#if defined(SNUG_CUDA_EMULATED)
#include "cuda/emulation/emulate.h"
#else
#include <cuda_runtime_api.h>
#endif

#endif
