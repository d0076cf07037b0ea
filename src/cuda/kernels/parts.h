/*
 * parts.h -- sums over n elements are split into parts of equal length, one per block of threads:
 * how many there are, and (for kernels, after device.h) which block has which part.
 */
#ifndef SNUG_CUDA_KERNELS_PARTS_H
#define SNUG_CUDA_KERNELS_PARTS_H

#include <stdint.h>

#include "base/device_fn.h"

enum { PART_ELEMS_LEAST = 4096, PARTS_MOST = 1024, PART_BLOCK = 256 /* threads per block */ };

DEVICE_FN int64_t parts_count(int64_t n)
{
    int64_t parts = (n + PART_ELEMS_LEAST - 1) / PART_ELEMS_LEAST;
    return parts < PARTS_MOST ? parts : (int64_t)PARTS_MOST;
}

#if defined(SNUG_CUDA_KERNELS_DEVICE_H)

struct range {
    int64_t begin, end;
};

/* The elements of this block, in a one-dimensional grid. */
DEVICE struct range part_of(int64_t n)
{
    int64_t length = (n + gridDim.x - 1) / gridDim.x;
    struct range part = {(int64_t)blockIdx.x * length, ((int64_t)blockIdx.x + 1) * length};
    part.end = part.end < n ? part.end : n;
    return part;
}

/* Loops over each element i of a range, spread over the threads of one block. */
#define EACH_OF(part) for (int64_t i = (part).begin + threadIdx.x; i < (part).end; i += PART_BLOCK)

/* The sum of n values, `step` apart, computed by one block. */
DEVICE double sum_parts(const double *parts, int64_t n, int64_t step)
{
    double sum = 0.0;
    for (int64_t i = threadIdx.x; i < n; i += PART_BLOCK)
        sum += parts[i * step];
    return block_sum(sum);
}

#endif
#endif
