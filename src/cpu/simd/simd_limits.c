/*
 * simd_limits.c -- measure the peak rate of fused multiply-adds in registers, the limit for fp32
 * matmuls.
 */
#include "cpu/cpu.h"

#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif

/* Enough independent sums to cover the latency of an FMA on two pipes, few enough for 16
 * registers. */
enum { N_SUMS = 12 };

typedef float vector __attribute__((vector_size(LANES * sizeof(float))));

static float run_thread(int64_t n_rounds)
{
    vector sums[N_SUMS], factor = {0}, shift = {0};
    for (int i = 0; i < N_SUMS; i++)
        sums[i] = shift + (float)i;
    factor += 0.999f;
    shift += 0.001f;
    for (int64_t round = 0; round < n_rounds; round++)
        for (int i = 0; i < N_SUMS; i++)
            sums[i] = sums[i] * factor + shift;
    for (int i = 1; i < N_SUMS; i++)
        sums[0] += sums[i];
    return sums[0][0];
}

double LEVEL(simd_fma_flops)(int threads, int64_t n_rounds)
{
    float sum = 0;
    (void)threads; /* unused without OpenMP */
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : sum)
    for (int t = 0; t < threads; t++)
        sum += run_thread(n_rounds);
    double flops = 2.0 * N_SUMS * LANES * (double)n_rounds * threads;
    return sum == 0 ? 0 : flops; /* uses the sum, so the loop is not optimized away */
}
