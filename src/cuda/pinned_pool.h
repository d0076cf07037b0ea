/*
 * pinned_pool.h -- the offload pool of the CUDA backend: pinned host memory.
 */
#ifndef SNUG_CUDA_PINNED_POOL_H
#define SNUG_CUDA_PINNED_POOL_H

#include "exec/backend.h"

struct pinned_pool {
    struct offload_pool pool; /* must be first: pointers to the two are cast into each other */
    unsigned char *base;
};

#endif
