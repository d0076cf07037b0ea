/*
 * simd_vec.h -- one vector register of floats, as wide as the instruction level allows.
 *
 * For loops that must keep sums in registers or choose their own tiles.  Most kernels leave
 * vectorization to the compiler (simd_common.h).
 */
#ifndef SNUG_CPU_SIMD_SIMD_VEC_H
#define SNUG_CPU_SIMD_SIMD_VEC_H

#include "cpu/simd/simd_common.h"

#if defined(__SSE__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* A test sets SNUG_EMULATED_LANES for registers that its CPU may not have.  The compiler emulates
 * them. */
#if defined(SNUG_EMULATED_LANES)
#define VEC_ELEMS SNUG_EMULATED_LANES
#elif defined(__AVX512F__)
#define VEC_ELEMS 16
#elif defined(__AVX__)
#define VEC_ELEMS 8
#else
#define VEC_ELEMS 4
#endif

typedef float vec __attribute__((vector_size(VEC_ELEMS * 4)));
typedef float vec_in_memory __attribute__((vector_size(VEC_ELEMS * 4), aligned(4), may_alias));
typedef int32_t vec_i32 __attribute__((vector_size(VEC_ELEMS * 4)));
typedef uint32_t vec_u32 __attribute__((vector_size(VEC_ELEMS * 4)));

static inline vec vec_load(const float *from)
{
    return *(const vec_in_memory *)from;
}

static inline void vec_store(float *to, vec value)
{
    *(vec_in_memory *)to = value;
}

static inline vec vec_all(float value)
{
    return value - (vec){0.0f};
}

/* a b + c */
static inline vec vec_fmadd(vec a, vec b, vec c)
{
#if defined(SNUG_EMULATED_LANES)
    return a * b + c;
#elif defined(__AVX512F__)
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

/* The maximum; b if either is NaN. */
static inline vec vec_max(vec a, vec b)
{
#if defined(SNUG_EMULATED_LANES) || !defined(__SSE__)
    vec_i32 above = a > b;
    return (vec)((above & (vec_i32)a) | (~above & (vec_i32)b));
#elif defined(__AVX512F__)
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
    return (vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return (vec)_mm_max_ps((__m128)a, (__m128)b);
#endif
}

/* 2^x with a relative error of about 1e-7 for x up to 127; never less than 2^-126; NaN stays NaN.
 * Above 127 the result is any number.
 * x = n + r, |r| <= 1/2; the polynomial approximates 2^r to 1e-8 there and is exact at 0.
 * Adding 1.5 * 2^23 rounds to the integer n and leaves it in the low bits. */
static inline vec vec_exp2(vec x)
{
    x = vec_max(vec_all(-126.0f), x);
    vec_i32 shifted = (vec_i32)(x + 12582912.0f);
    vec r = x - __builtin_convertvector(shifted - 0x4b400000, vec);
    vec p = vec_all(1.54531634e-4f);
    p = vec_fmadd(p, r, vec_all(1.33908633e-3f));
    p = vec_fmadd(p, r, vec_all(9.61808302e-3f));
    p = vec_fmadd(p, r, vec_all(5.55035695e-2f));
    p = vec_fmadd(p, r, vec_all(2.40226507e-1f));
    p = vec_fmadd(p, r, vec_all(6.93147182e-1f));
    p = vec_fmadd(p, r, vec_all(1.0f));
    return p * (vec)(((vec_u32)shifted << 23) + 0x3f800000u);
}

#endif
