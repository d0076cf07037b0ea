/*
 * dropout.h -- launcher of dropout.cu, and the mask parameters that launchers take.
 */
#ifndef SNUG_CUDA_KERNELS_DROPOUT_H
#define SNUG_CUDA_KERNELS_DROPOUT_H

#include "cuda/kernels/launch.h"

struct cuda_dropout {
    const double *scalars; /* provides seed, step and micro-batch */
    int64_t site;
    int64_t micro;  /* micro-batch within an unrolled program, added to the one from scalars */
    uint32_t below; /* dropout rate times 2^32; 0: nothing is dropped and scalars may be NULL */
    float scale;    /* for the kept elements */
};

CUDA_LAUNCHERS_BEGIN
/* y = scale * x where the mask keeps it, else 0; y may be x */
CUDA_LAUNCHER int cuda_dropout(struct cuda_dropout dropout, int64_t n, struct cuda_array x,
                               struct cuda_array y, void *stream);
CUDA_LAUNCHERS_END

#endif
