/*
 * amx_lanes.h -- vector operations between tile matmuls, on the 16 floats of a tile row.
 *
 * With AVX-512, which every CPU with tiles has, an operation is one or two instructions.  Elsewhere
 * it is a loop, so the emulated tiles run anywhere.
 */
#ifndef SNUG_CPU_AMX_AMX_LANES_H
#define SNUG_CPU_AMX_AMX_LANES_H

#include "cpu/cpu.h"
#include "cpu/simd/simd_common.h"

#define LOG2_E 1.44269504f

#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__)
#include <immintrin.h>

struct lanes {
    __m512 v;
};

#define LANES(value) ((struct lanes){value})

static inline struct lanes lanes_load(const float *from)
{
    return LANES(_mm512_loadu_ps(from));
}

static inline struct lanes lanes_load_bits(const uint32_t *from)
{
    return LANES(_mm512_castsi512_ps(_mm512_loadu_si512(from)));
}

static inline void lanes_store(float *to, struct lanes a)
{
    _mm512_storeu_ps(to, a.v);
}

/* Loads n <= 16 bf16 elements and fills up with zeros. */
static inline struct lanes lanes_load_bf16(const uint16_t *from, int64_t n)
{
    __mmask16 mask = (__mmask16)((1u << n) - 1);
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from));
    return LANES(_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16)));
}

/* Stores the first n, rounded to nearest even. */
static inline void lanes_store_bf16(uint16_t *to, struct lanes a, int64_t n)
{
    __mmask16 mask = (__mmask16)((1u << n) - 1);
    __m512i bits = _mm512_castps_si512(a.v), one = _mm512_set1_epi32(1);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    _mm512_mask_cvtepi32_storeu_epi16(to, mask, _mm512_srli_epi32(rounded, 16));
}

static inline float lanes_sum(struct lanes a)
{
    return _mm512_reduce_add_ps(a.v);
}

static inline struct lanes lanes_all(float value)
{
    return LANES(_mm512_set1_ps(value));
}

static inline struct lanes lanes_add(struct lanes a, struct lanes b)
{
    return LANES(_mm512_add_ps(a.v, b.v));
}

static inline struct lanes lanes_subtract(struct lanes a, struct lanes b)
{
    return LANES(_mm512_sub_ps(a.v, b.v));
}

static inline struct lanes lanes_multiply(struct lanes a, struct lanes b)
{
    return LANES(_mm512_mul_ps(a.v, b.v));
}

static inline struct lanes lanes_max(struct lanes a, struct lanes b)
{
    return LANES(_mm512_max_ps(a.v, b.v));
}

static inline struct lanes lanes_min(struct lanes a, struct lanes b)
{
    return LANES(_mm512_min_ps(a.v, b.v));
}

/* a b + c */
static inline struct lanes lanes_fmadd(struct lanes a, struct lanes b, struct lanes c)
{
    return LANES(_mm512_fmadd_ps(a.v, b.v, c.v));
}

/* 1 / a with a relative error of 2e-7, if the inverse is a normal number: one Newton step from the
 * CPU's estimate, a third of the time of a division. */
static inline struct lanes lanes_inverse(struct lanes a)
{
    __m512 guess = _mm512_rcp14_ps(a.v);
    __m512 rest = _mm512_fnmadd_ps(a.v, guess, _mm512_set1_ps(2.0f));
    return LANES(_mm512_mul_ps(guess, rest));
}

static inline bool lanes_any_above(struct lanes a, struct lanes b)
{
    return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ) != 0;
}

/* 2^(x factor - less) with a relative error of 3e-6, a hundredth of the rounding to bf16 that
 * follows.  2^x is a polynomial of the fraction of x, times 2 to the integer part. */
static inline struct lanes lanes_exp2(struct lanes x, struct lanes factor, struct lanes less)
{
    __m512 e = _mm512_fmsub_ps(x.v, factor.v, less.v);
    __m512 r = _mm512_reduce_ps(e, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 p = _mm512_set1_ps(0.013534168f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.0520114604f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.241442757f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.693003834f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.00000259f));
    return LANES(_mm512_scalef_ps(p, e));
}

/* Stores both as bf16 pairs, `low` first.  Ties round away from zero, which saves two instructions
 * and affects one element in 65536. */
static inline void lanes_store_pairs(uint32_t *to, struct lanes low, struct lanes high)
{
    __m512i half = _mm512_set1_epi32(0x8000), upper = _mm512_set1_epi32((int)0xffff0000u);
    __m512i a = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(low.v), half), 16);
    __m512i b = _mm512_add_epi32(_mm512_castps_si512(high.v), half);
    _mm512_storeu_si512(to, _mm512_ternarylogic_epi32(a, b, upper, 0xf8)); /* a | (b & upper) */
}

#undef LANES

#else

struct lanes {
    float v[TILE_SIDE];
};

#define EACH_LANE for (int i = 0; i < TILE_SIDE; i++)

static inline struct lanes lanes_load(const float *from)
{
    struct lanes a;
    memcpy(a.v, from, sizeof a.v);
    return a;
}

static inline struct lanes lanes_load_bits(const uint32_t *from)
{
    struct lanes a;
    memcpy(a.v, from, sizeof a.v);
    return a;
}

static inline void lanes_store(float *to, struct lanes a)
{
    memcpy(to, a.v, sizeof a.v);
}

static inline struct lanes lanes_load_bf16(const uint16_t *from, int64_t n)
{
    struct lanes a = {{0}};
    load_f32(DTYPE_bf16, from, 0, n, a.v);
    return a;
}

static inline void lanes_store_bf16(uint16_t *to, struct lanes a, int64_t n)
{
    bf16_store(to, n, a.v);
}

static inline float lanes_sum(struct lanes a)
{
    float sum = 0.0f;
    EACH_LANE sum += a.v[i];
    return sum;
}

static inline struct lanes lanes_all(float value)
{
    struct lanes a;
    EACH_LANE a.v[i] = value;
    return a;
}

static inline struct lanes lanes_add(struct lanes a, struct lanes b)
{
    EACH_LANE a.v[i] += b.v[i];
    return a;
}

static inline struct lanes lanes_subtract(struct lanes a, struct lanes b)
{
    EACH_LANE a.v[i] -= b.v[i];
    return a;
}

static inline struct lanes lanes_multiply(struct lanes a, struct lanes b)
{
    EACH_LANE a.v[i] *= b.v[i];
    return a;
}

static inline struct lanes lanes_max(struct lanes a, struct lanes b)
{
    EACH_LANE a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
    return a;
}

static inline struct lanes lanes_min(struct lanes a, struct lanes b)
{
    EACH_LANE a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
    return a;
}

static inline struct lanes lanes_fmadd(struct lanes a, struct lanes b, struct lanes c)
{
    EACH_LANE c.v[i] = fmadd(a.v[i], b.v[i], c.v[i]);
    return c;
}

static inline struct lanes lanes_inverse(struct lanes a)
{
    EACH_LANE a.v[i] = 1.0f / a.v[i];
    return a;
}

static inline bool lanes_any_above(struct lanes a, struct lanes b)
{
    bool any = false;
    EACH_LANE any |= a.v[i] > b.v[i];
    return any;
}

/* exp_f32 clamps its argument, so very small results must be set to 0 here. */
static inline struct lanes lanes_exp2(struct lanes x, struct lanes factor, struct lanes less)
{
    EACH_LANE
    {
        float e = fmadd(x.v[i], factor.v[i], -less.v[i]);
        x.v[i] = e < -126.0f ? 0.0f : exp_f32(e * 0.693147181f);
    }
    return x;
}

static inline void lanes_store_pairs(uint32_t *to, struct lanes low, struct lanes high)
{
    EACH_LANE to[i] =
        (float_bits(low.v[i]) + 0x8000u) >> 16 | ((float_bits(high.v[i]) + 0x8000u) & 0xffff0000u);
}

#undef EACH_LANE

#endif

/* The common parts of gelu and its derivative, accurate enough for bf16: e^-2u and sigmoid(2u),
 * where gelu(x) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3).  e^-2u is limited to 2^120. */
static inline void lanes_sigmoid_2u(struct lanes x, struct lanes *e, struct lanes *sigmoid)
{
    struct lanes square = lanes_multiply(x, x), one = lanes_all(1.0f);
    struct lanes factor =
        lanes_fmadd(square, lanes_all(-0.10294324f), lanes_all(-2.3022082f)); /* times log2(e) */
    struct lanes exponent = lanes_min(lanes_multiply(x, factor), lanes_all(120.0f));
    *e = lanes_exp2(exponent, one, lanes_all(0.0f));
    *sigmoid = lanes_inverse(lanes_add(*e, one));
}

static inline struct lanes lanes_gelu(struct lanes x)
{
    struct lanes e, sigmoid;
    lanes_sigmoid_2u(x, &e, &sigmoid);
    return lanes_multiply(x, sigmoid);
}

static inline struct lanes lanes_gelu_slope(struct lanes x)
{
    struct lanes e, sigmoid, square = lanes_multiply(x, x);
    lanes_sigmoid_2u(x, &e, &sigmoid);
    struct lanes slope_2u = lanes_fmadd(square, lanes_all(0.21406445f), lanes_all(1.5957691f));
    struct lanes rest = lanes_multiply(sigmoid, lanes_multiply(e, sigmoid)); /* s (1 - s) */
    return lanes_fmadd(lanes_multiply(x, slope_2u), rest, sigmoid);
}

#endif
