/*
 * device_fn.h -- marks the small functions of base/ that kernels of a GPU call as well.
 *
 * One text serves the host and the device, so that random numbers, codes and roundings are the same
 * function of the same arguments wherever a program runs.
 */
#ifndef SNUG_BASE_DEVICE_FN_H
#define SNUG_BASE_DEVICE_FN_H

#if defined(__CUDACC__)
#define DEVICE_FN static __host__ __device__ __forceinline__
#else
#define DEVICE_FN static inline
#endif

/* Before a loop of a few rounds, n a literal. */
#if defined(__CUDACC__)
#define UNROLL(n) _Pragma("unroll")
#else
#define UNROLL(n)             UNROLL_PRAGMA(GCC unroll n)
#define UNROLL_PRAGMA(pragma) _Pragma(#pragma)
#endif

#endif
