/*
 * store.h -- the store of the CUDA backend: pinned memory of the host.
 */
#ifndef SNUG_CUDA_STORE_H
#define SNUG_CUDA_STORE_H

#include "exec/backend.h"

struct cuda_store {
    struct store store; /* first: the two are cast into each other */
    unsigned char *base;
};

#endif
