/*
 * device_mask.h -- the dropout mask in kernels: the same function of the same counters as
 * cpu/dropout_mask.h.
 */
#ifndef SNUG_CUDA_KERNELS_DEVICE_MASK_H
#define SNUG_CUDA_KERNELS_DEVICE_MASK_H

#include "base/counter_random.h"
#include "cuda/kernels/device.h"
#include "cuda/kernels/dropout.h"
#include "ir/program.h" /* enum scalar */

struct mask {
    uint64_t key;
    uint32_t below; /* elements whose random number is below this are dropped; 0 drops none */
    float scale;    /* for the kept elements: 1 / (1 - p) */
};

DEVICE struct mask mask_of(const struct cuda_dropout &dropout)
{
    struct mask mask = {0, dropout.below, dropout.scale};
    if (dropout.below == 0)
        return mask;
    const double *scalars = dropout.scalars;
    mask.key = counter_mask_key((uint64_t)scalars[SCALAR_seed], (uint64_t)scalars[SCALAR_step],
                                (uint64_t)scalars[SCALAR_micro] + (uint64_t)dropout.micro,
                                (uint64_t)dropout.site);
    return mask;
}

/* Is element `index` kept? */
DEVICE bool mask_keeps(const struct mask &mask, uint64_t index)
{
    return mask.below == 0 || counter_random(mask.key, index) >= mask.below;
}

/* The factor of element `index`. */
DEVICE float mask_factor(const struct mask &mask, uint64_t index)
{
    return mask_keeps(mask, index) ? mask.scale : 0.0f;
}

#endif
