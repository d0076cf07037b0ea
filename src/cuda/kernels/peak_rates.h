/*
 * peak_rates.h -- kernels that measure the peak rates of the device.
 */
#ifndef SNUG_CUDA_KERNELS_PEAK_RATES_H
#define SNUG_CUDA_KERNELS_PEAK_RATES_H

#include "cuda/kernels/launch.h"
#include "exec/backend.h"

/* src/cuda/cuda_limits.c */
bool cuda_measure(const struct device_facts *facts, struct device_limits *limits);

CUDA_LAUNCHERS_BEGIN
/* Reads n non-negative floats and writes nothing. */
CUDA_LAUNCHER int cuda_read_all(int64_t n, float *x, void *stream);
/* Multiply-adds in registers; *flops is set to their number of operations. */
CUDA_LAUNCHER int cuda_multiply_add(int n_blocks, int n_rounds, float *x, double *flops,
                                    void *stream);
CUDA_LAUNCHERS_END

#endif
