/*
 * planted.cu -- two faults that compute-sanitizer must find, to prove that it sees anything.
 *
 *   planted memcheck|racecheck
 *
 * tools/sanitize-cuda.sh selects these kernels in the same way as those of src/cuda.  Without the
 * tool the program succeeds.
 */
#include <stdio.h>
#include <string.h>

#include "cuda/kernels/device.h"

enum { N = 64 }; /* threads: two warps */

KERNEL planted_overrun(float *x)
{
    x[N + threadIdx.x] = 1.0f;
}

/* No barrier between what one warp writes and the other reads. */
KERNEL planted_race(float *x)
{
    SHARED float part[N];
    part[threadIdx.x] = x[threadIdx.x];
    x[threadIdx.x] = part[N - 1 - threadIdx.x];
}

int main(int argc, char **argv)
{
    float *x = NULL;
    bool is_race = argc == 2 && strcmp(argv[1], "racecheck") == 0;
    if (argc != 2 || (!is_race && strcmp(argv[1], "memcheck") != 0))
        return fprintf(stderr, "usage: %s memcheck|racecheck\n", argv[0]), 2;
    if (cudaMalloc((void **)&x, N * sizeof *x) != cudaSuccess)
        return fprintf(stderr, "%s: no GPU\n", argv[0]), 3;
    auto kernel = is_race ? planted_race : planted_overrun;
    (void)launch(kernel, 1, N, 0, NULL, x);
    (void)cudaDeviceSynchronize();
    return 0;
}
