/*
 * pinned_pool.h -- the offload pool of the CUDA backend: pinned memory of the host.
 */
#ifndef SNUG_CUDA_PINNED_POOL_H
#define SNUG_CUDA_PINNED_POOL_H

#include "exec/backend.h"

struct pinned_pool {
    struct offload_pool pool; /* first: the two are cast into each other */
    unsigned char *base;
};

#endif
