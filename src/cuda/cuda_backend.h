/*
 * cuda_backend.h -- an open device: what call->facts->device points to.
 */
#ifndef SNUG_CUDA_CUDA_BACKEND_H
#define SNUG_CUDA_CUDA_BACKEND_H

#include "cuda/runtime.h"
#include "exec/backend.h"

struct device {
    int number; /* index among the GPUs visible to this process */
    cudaStream_t compute;
    cudaStream_t copies;    /* from the offload pool; also collectives */
    cudaStream_t evictions; /* to the offload pool; also sends to neighbouring stages */
    cudaStream_t far;       /* sends to stages further away */
};

#endif
