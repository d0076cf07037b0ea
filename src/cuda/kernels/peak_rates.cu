/*
 * peak_rates.cu -- kernels that read, or multiply-add, at the peak rate of the device.
 *
 * Both end in a store that never happens, so that the compiler keeps the work before it.
 */
#include "cuda/kernels/device.h"
#include "cuda/kernels/peak_rates.h"

enum { BLOCK = 256, CHAINS = 16 };

KERNEL read_all(int64_t n, float *x)
{
    float sum = 0.0f, part[PACK];
    int64_t step = (int64_t)gridDim.x * blockDim.x * PACK;
    for (int64_t at = thread_index() * PACK; at < n; at += step) {
        pack_load(DTYPE_f32, x, at, part);
        for (int i = 0; i < PACK; i++)
            sum += part[i];
    }
    if (sum < 0.0f)
        x[0] = sum;
}

int cuda_read_all(int64_t n, float *x, void *stream)
{
    const int packs_each = 8; /* per thread: enough loads in flight to hide their latency */
    return launch(read_all, grid_of(n / PACK / packs_each, BLOCK), BLOCK, 0, stream, n, x);
}

KERNEL multiply_add(int n_rounds, float *x)
{
    float chain[CHAINS];
    float factor = 1.0f - 1e-7f * (float)threadIdx.x;
    for (int i = 0; i < CHAINS; i++)
        chain[i] = (float)i;
    for (int round = 0; round < n_rounds; round++)
        for (int i = 0; i < CHAINS; i++)
            chain[i] = fmaf(chain[i], factor, 1e-7f);
    float sum = 0.0f;
    for (int i = 0; i < CHAINS; i++)
        sum += chain[i];
    if (sum < 0.0f)
        x[0] = sum;
}

int cuda_multiply_add(int n_blocks, int n_rounds, float *x, double *flops, void *stream)
{
    *flops = 2.0 * CHAINS * (double)n_rounds * BLOCK * (double)n_blocks;
    return launch(multiply_add, n_blocks, BLOCK, 0, stream, n_rounds, x);
}
