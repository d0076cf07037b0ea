/*
 * cuda_backend.h -- a device that is open: what rows find behind call->facts->device.
 */
#ifndef SNUG_CUDA_CUDA_BACKEND_H
#define SNUG_CUDA_CUDA_BACKEND_H

#include "cuda/runtime.h"
#include "exec/backend.h"

struct device {
    int number; /* of those that this process may use */
    cudaStream_t compute, copies, evictions, far;
};

#endif
