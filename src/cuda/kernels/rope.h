/*
 * rope.h -- launcher of rope.cu.
 */
#ifndef SNUG_CUDA_KERNELS_ROPE_H
#define SNUG_CUDA_KERNELS_ROPE_H

#include "cuda/kernels/launch.h"

/* The frequencies are a kernel parameter, so heads have at most twice this many elements. */
enum { CUDA_ROPE_PAIRS = 256 };

struct cuda_rope {
    int64_t n_rows, n_time;   /* rows of x: n_time for each sequence */
    int heads, n_pairs;       /* a head has 2 n_pairs elements */
    const int32_t *positions; /* of each row; NULL: row % n_time */
    struct cuda_array x, y;   /* y may be x */
    /* The angle of a pair at position 1, in turns; negative for the inverse. */
    double turns[CUDA_ROPE_PAIRS];
};

CUDA_LAUNCHERS_BEGIN
CUDA_LAUNCHER int cuda_rope(const struct cuda_rope *rope, void *stream);
CUDA_LAUNCHERS_END

#endif
