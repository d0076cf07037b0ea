/*
 * dropout.h -- launcher of dropout.cu, and how launchers are told about a mask.
 */
#ifndef SNUG_CUDA_KERNELS_DROPOUT_H
#define SNUG_CUDA_KERNELS_DROPOUT_H

#include "cuda/kernels/launch.h"

struct cuda_dropout {
    const double *scalars; /* seed, step and micro-batch are read there */
    int64_t site;
    int64_t micro; /* of an unrolled program: added to the one that is read there */
    uint32_t
        below;   /* of 2^32: how often an element is dropped; 0: never, and no scalars are needed */
    float scale; /* of what is kept */
};

CUDA_LAUNCHERS_BEGIN
/* y = x where the mask keeps it, scaled, else 0; y may be x */
CUDA_LAUNCHER int cuda_dropout(struct cuda_dropout dropout, int64_t n, struct cuda_array x,
                               struct cuda_array y, void *stream);
CUDA_LAUNCHERS_END

#endif
