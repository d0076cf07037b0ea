/*
 * parts.h -- sums over n elements are made of sums over parts of equal length, one for each block of
 * threads: how many there are, and for kernels (after device.h) which is whose.
 */
#ifndef SNUG_CUDA_KERNELS_PARTS_H
#define SNUG_CUDA_KERNELS_PARTS_H

#include <stdint.h>

#include "base/device_fn.h"

enum { PART_ELEMS_LEAST = 4096, PARTS_MOST = 1024, PART_BLOCK = 256 /* threads of a block */ };

DEVICE_FN int64_t parts_count(int64_t n)
{
    int64_t parts = (n + PART_ELEMS_LEAST - 1) / PART_ELEMS_LEAST;
    return parts < PARTS_MOST ? parts : (int64_t)PARTS_MOST;
}

#if defined(SNUG_CUDA_KERNELS_DEVICE_H)

struct range {
    int64_t begin, end;
};

/* The elements of this block of threads, of a grid of one dimension. */
DEVICE struct range part_of(int64_t n)
{
    int64_t length = (n + gridDim.x - 1) / gridDim.x;
    struct range part = {(int64_t)blockIdx.x * length, ((int64_t)blockIdx.x + 1) * length};
    part.end = part.end < n ? part.end : n;
    return part;
}

/* For each element i of a range, by the threads of one block. */
#define EACH_OF(part) for (int64_t i = (part).begin + threadIdx.x; i < (part).end; i += PART_BLOCK)

/* By one block of threads: the sum of every step-th number of n. */
DEVICE double sum_parts(const double *parts, int64_t n, int64_t step)
{
    double sum = 0.0;
    for (int64_t i = threadIdx.x; i < n; i += PART_BLOCK)
        sum += parts[i * step];
    return block_sum(sum);
}

#endif
#endif
