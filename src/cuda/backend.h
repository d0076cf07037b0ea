/*
 * backend.h -- a device that is open: what rows find behind call->facts->device.
 */
#ifndef SNUG_CUDA_BACKEND_H
#define SNUG_CUDA_BACKEND_H

#include "cuda/runtime.h"
#include "exec/backend.h"

struct cuda_library; /* library.h: handles of cuBLASLt and cuDNN */

struct device {
    cudaStream_t compute, copies;
    struct cuda_library *library; /* NULL until a row asks for it */
};

#endif
