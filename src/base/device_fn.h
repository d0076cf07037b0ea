/*
 * device_fn.h -- DEVICE_FN marks small functions that both CPU code and GPU kernels call.
 *
 * Host and device compile the same source, so that random bits, quantization and rounding are the
 * same function everywhere.
 */
#ifndef SNUG_BASE_DEVICE_FN_H
#define SNUG_BASE_DEVICE_FN_H

#if defined(__CUDACC__)
#define DEVICE_FN static __host__ __device__ __forceinline__
#else
#define DEVICE_FN static inline
#endif

/* Put it before a short loop; n is a literal. */
#if defined(__CUDACC__)
#define UNROLL(n) _Pragma("unroll")
#else
#define UNROLL(n)             UNROLL_PRAGMA(GCC unroll n)
#define UNROLL_PRAGMA(pragma) _Pragma(#pragma)
#endif

#endif
