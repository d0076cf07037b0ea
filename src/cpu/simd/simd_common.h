/*
 * simd_common.h -- helpers shared by the SIMD kernels: storage types, vector functions, work split.
 *
 * Arithmetic is fp32 whatever the storage type.  view_f32() returns a piece of a tensor as fp32: a
 * pointer to fp32 data itself, or 16-bit data converted into a small buffer.  Results go to
 * target_f32(), and store_f32() writes them back if that was a buffer.  So one body serves f32,
 * bf16 and f16.
 *
 * Each element is computed by one part of a job, or is a sum over pieces that depend only on the
 * shapes and are added in order.  So the results do not depend on the number of threads or their
 * timing.
 *
 * Everything is static: each file that includes this is compiled once per instruction level.
 */
#ifndef SNUG_CPU_SIMD_SIMD_COMMON_H
#define SNUG_CPU_SIMD_SIMD_COMMON_H

#include <math.h>
#include <string.h>

#include "cpu/cpu.h"
#include "exec/backend.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

#define SIMD_TEXT_OF(word) #word
#define SIMD_TEXT(word)    SIMD_TEXT_OF(word)
#define KERNEL_NAME        SIMD_TEXT(SNUG_LEVEL) /* "base", "v3", "v4" */

enum {
    BLOCK_ELEMS = 1024,    /* of one tensor at a time: a few such buffers fit in L1 */
    LEAST_PER_PART = 8192, /* elements: fewer are done before a second thread wakes up */
    WORK_ALIGN = 64,       /* bytes */
};

/* ---- math -------------------------------------------------------------------------------- */

/* a * b + c, fused if the CPU supports it, whatever the compiler flags. */
static inline float fmadd(float a, float b, float c)
{
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

static inline uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float bits_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* e^x with a relative error of about 1e-7 (without fused multiply-add: 1e-7 + |x| 5e-8).  x is
 * clamped to [-87, 88]; NaN stays NaN.  x = n ln2 + r, |r| <= ln2 / 2; the polynomial is that of
 * Cephes.  Adding 1.5 * 2^23 rounds to the integer n and leaves it in the low bits.  n is taken
 * from there, because the build flags let the compiler cancel a sum and a difference. */
static inline float exp_f32(float x)
{
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    uint32_t shifted = float_bits(fmadd(x, 1.44269504f, 12582912.0f));
    float n = (float)((int32_t)shifted - 0x4b400000);
    float r = fmadd(n, 2.12194440e-4f, fmadd(n, -0.693359375f, x));
    float p = 1.9875691500e-4f;
    p = fmadd(p, r, 1.3981999507e-3f);
    p = fmadd(p, r, 8.3334519073e-3f);
    p = fmadd(p, r, 4.1665795894e-2f);
    p = fmadd(p, r, 1.6666665459e-1f);
    p = fmadd(p, r, 5.0000001201e-1f);
    p = fmadd(p, r * r, r) + 1.0f;
    return p * bits_float((shifted << 23) + 0x3f800000u);
}

/* ln x for normal x > 0 with an error of about 2e-7; the polynomial is that of Cephes.  x = m 2^e
 * with m in sqrt(1/2)..sqrt(2). */
static inline float log_f32(float x)
{
    uint32_t bits = float_bits(x), shifted = bits - 0x3f3504f3u; /* sqrt(1/2) */
    float e = (float)((int32_t)shifted >> 23);
    float r = bits_float((shifted & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
    float p = 7.0376836292e-2f;
    p = fmadd(p, r, -1.1514610310e-1f);
    p = fmadd(p, r, 1.1676998740e-1f);
    p = fmadd(p, r, -1.2420140846e-1f);
    p = fmadd(p, r, 1.4249322787e-1f);
    p = fmadd(p, r, -1.6668057665e-1f);
    p = fmadd(p, r, 2.0000714765e-1f);
    p = fmadd(p, r, -2.4999993993e-1f);
    p = fmadd(p, r, 3.3333331174e-1f);
    float square = r * r;
    p = fmadd(p * r, square, e * -2.12194440e-4f);
    p = fmadd(-0.5f, square, p) + r;
    return fmadd(e, 0.693359375f, p);
}

/* x^p for x >= 0, p > 0, if the result is a normal number. */
static inline float power_f32(float x, float p)
{
    return x < 1.17549435e-38f ? 0.0f : exp_f32(p * log_f32(x));
}

static inline float sigmoid_f32(float x)
{
    return 1.0f / (1.0f + exp_f32(-x));
}

/* Small arguments use a separate polynomial: 1 - 2 / (e^2x + 1) would cancel. */
static inline float tanh_f32(float x)
{
    float size = fabsf(x);
    float large = 1.0f - 2.0f / (exp_f32(2.0f * size) + 1.0f);
    float square = x * x;
    float p = -5.70498872745e-3f;
    p = fmadd(p, square, 2.06390887954e-2f);
    p = fmadd(p, square, -5.37397155531e-2f);
    p = fmadd(p, square, 1.33314422036e-1f);
    p = fmadd(p, square, -3.33332819422e-1f);
    float small = fmadd(p * square, x, x);
    return size < 0.625f ? small : copysignf(large, x);
}

/* gelu(x) = x/2 (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): the second form
 * keeps its relative accuracy for large negative x. */
static inline float gelu_2u(float x)
{
    return 1.5957691216f * fmadd(0.044715f * x * x, x, x);
}

static inline float gelu_f32(float x)
{
    return x * sigmoid_f32(gelu_2u(x));
}

static inline float gelu_slope_f32(float x)
{
    float e = exp_f32(-gelu_2u(x));
    float s = 1.0f / (1.0f + e);
    float slope_2u = 1.5957691216f * fmadd(0.134145f * x, x, 1.0f);
    return fmadd(x * slope_2u, s * (e * s), s); /* e s = 1 - s without cancellation */
}

/* y = fn(x) and d = dy fn'(x).  Outputs may alias inputs. */
static inline void act_block(enum act act, int64_t n, const float *x, float *y)
{
#define EACH(expression)                                \
    _Pragma("omp simd") for (int64_t i = 0; i < n; i++) \
    {                                                   \
        y[i] = (expression);                            \
    }                                                   \
    break
    switch (act) {
    case ACT_relu:
        EACH(x[i] < 0.0f ? 0.0f : x[i]);
    case ACT_gelu:
        EACH(gelu_f32(x[i]));
    case ACT_sigmoid:
        EACH(sigmoid_f32(x[i]));
    case ACT_tanh:
        EACH(tanh_f32(x[i]));
    case ACT_none:
        EACH(x[i]);
    }
#undef EACH
}

static inline void act_grad_block(enum act act, int64_t n, const float *dy, const float *x,
                                  float *d)
{
#define EACH(expression)                                \
    _Pragma("omp simd") for (int64_t i = 0; i < n; i++) \
    {                                                   \
        d[i] = dy[i] * (expression);                    \
    }                                                   \
    break
    switch (act) {
    case ACT_relu:
        EACH(x[i] > 0.0f ? 1.0f : 0.0f);
    case ACT_gelu:
        EACH(gelu_slope_f32(x[i]));
    case ACT_sigmoid:
        EACH(sigmoid_f32(x[i]) * sigmoid_f32(-x[i]));
    case ACT_tanh:
        EACH(4.0f * sigmoid_f32(2.0f * x[i]) * sigmoid_f32(-2.0f * x[i]));
    case ACT_none:
        EACH(1.0f);
    }
#undef EACH
}

/* ---- storage ----------------------------------------------------------------------------- */

static inline void f16_load(const uint16_t *from, int64_t n, float *to)
{
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(to + i, _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(from + i))));
#endif
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(from + i))));
#endif
    for (; i < n; i++)
        to[i] = f16_to_f32(from[i]);
}

static inline void f16_store(uint16_t *to, int64_t n, const float *from)
{
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16)
        _mm256_storeu_si256((void *)(to + i), _mm512_cvtps_ph(_mm512_loadu_ps(from + i), 0));
#endif
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((void *)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), 0));
#endif
    for (; i < n; i++)
        to[i] = f16_from_f32(from[i]);
}

static inline void bf16_store(uint16_t *to, int64_t n, const float *from)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = float_bits(from[i]);
        uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
        rounded = (bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded;
        to[i] = (uint16_t)(rounded >> 16);
    }
}

static inline bool dtype_is_fast(enum dtype dtype)
{
    return dtype == DTYPE_f32 || dtype == DTYPE_bf16 || dtype == DTYPE_f16;
}

/* Elements begin .. begin + n of a tensor, converted into `to`. */
static inline void load_f32(enum dtype dtype, const void *data, int64_t begin, int64_t n, float *to)
{
    const uint16_t *half = (const uint16_t *)data + begin;
    if (dtype == DTYPE_f32) {
        memcpy(to, (const float *)data + begin, (size_t)n * sizeof *to);
    } else if (dtype == DTYPE_f16) {
        f16_load(half, n, to);
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            to[i] = bits_float((uint32_t)half[i] << 16);
    }
}

/* A read-only view of them.  Uses `buffer` (n floats) if the tensor is not fp32. */
static inline const float *view_f32(enum dtype dtype, const void *data, int64_t begin, int64_t n,
                                    float *buffer)
{
    if (dtype == DTYPE_f32)
        return (const float *)data + begin;
    load_f32(dtype, data, begin, n, buffer);
    return buffer;
}

/* The destination of results from element `begin` on: the tensor itself if fp32, else `buffer`. */
static inline float *target_f32(enum dtype dtype, void *data, int64_t begin, float *buffer)
{
    return dtype == DTYPE_f32 ? (float *)data + begin : buffer;
}

/* Writes fp32 results back unless they are already in place. */
static inline void store_f32(enum dtype dtype, void *data, int64_t begin, int64_t n,
                             const float *from)
{
    uint16_t *half = (uint16_t *)data + begin;
    if (dtype == DTYPE_bf16)
        bf16_store(half, n, from);
    else if (dtype == DTYPE_f16)
        f16_store(half, n, from);
    else if ((float *)data + begin != from)
        memcpy((float *)data + begin, from, (size_t)n * sizeof *from);
}

/* x rounded to a dtype, for n <= BLOCK_ELEMS: x itself if fp32, else in `buffer`, which may alias
 * x. */
static inline const float *round_as(enum dtype dtype, int64_t n, const float *x, float *buffer)
{
    uint16_t half[BLOCK_ELEMS];
    if (dtype == DTYPE_f32)
        return x;
    store_f32(dtype, half, 0, n, x);
    load_f32(dtype, half, 0, n, buffer);
    return buffer;
}

static inline const float *in_view(const struct kernel_call *call, int k, int64_t begin, int64_t n,
                                   float *buffer)
{
    return view_f32(call->in[k].tensor->dtype, call->in[k].data, begin, n, buffer);
}

static inline float *out_target(const struct kernel_call *call, int k, int64_t begin, float *buffer)
{
    return target_f32(call->out[k].tensor->dtype, call->out[k].data, begin, buffer);
}

static inline void out_store(const struct kernel_call *call, int k, int64_t begin, int64_t n,
                             const float *from)
{
    store_f32(call->out[k].tensor->dtype, call->out[k].data, begin, n, from);
}

/* ---- sums -------------------------------------------------------------------------------- */

/* Not inlined: with two storage types in one function, gcc fails to vectorize one of them. */
#define OUT_OF_LINE __attribute__((noinline, unused))

/* The sum of squares of a, or of a - b if b is not NULL, in fp64. */
static OUT_OF_LINE double sum_squares_f64(const float *a, const float *b, int64_t n)
{
    double sum = 0.0;
    if (b == NULL) {
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++)
            sum += (double)a[i] * (double)a[i];
    } else {
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++)
            sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    }
    return sum;
}

/* The maximum of x and `floor`. */
static OUT_OF_LINE float max_f32(const float *x, int64_t n, float floor)
{
#pragma omp simd reduction(max : floor)
    for (int64_t i = 0; i < n; i++)
        floor = x[i] > floor ? x[i] : floor;
    return floor;
}

/* The sum of exp(x - top). */
static OUT_OF_LINE float sum_exp_f32(const float *x, int64_t n, float top)
{
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += exp_f32(x[i] - top);
    return sum;
}

/* ---- which ops a kernel supports --------------------------------------------------------- */

static inline bool operands_fit(const struct program *prog, int n, const tensor_id *ids,
                                unsigned others, unsigned f32_only)
{
    for (int k = 0; k < n; k++) {
        if (ids[k] == TENSOR_NONE || ((others >> k) & 1u))
            continue;
        enum dtype dtype = program_tensor(prog, ids[k])->dtype;
        if (((f32_only >> k) & 1u) ? dtype != DTYPE_f32 : !dtype_is_fast(dtype))
            return false;
    }
    return true;
}

/* True if every operand is f32, bf16 or f16, except the inputs in the mask other_in (ids and the
 * scalar table).  Operands in the masks f32_in and f32_out must be fp32. */
static inline bool floats_fit(const struct program *prog, const struct op *op, unsigned other_in,
                              unsigned f32_in, unsigned f32_out)
{
    return operands_fit(prog, op->n_in, op->in, other_in, f32_in) &&
           operands_fit(prog, op->n_out, op->out, 0, f32_out);
}

/* ---- parts ------------------------------------------------------------------------------- */

static inline int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* The number of parts for n elements of work. */
static inline int count_parts(const struct device_facts *facts, int64_t n_elems)
{
    int64_t parts = least(facts->threads, divide_up(n_elems, LEAST_PER_PART));
    return parts < 1 ? 1 : (int)parts;
}

struct range {
    int64_t begin, end;
};

/* Part `part` of n_parts of 0..n, split only at multiples of `step`. */
static inline struct range part_range(int64_t n, int n_parts, int part, int64_t step)
{
    int64_t n_steps = divide_up(n, step);
    return (struct range){least(n, n_steps * part / n_parts * step),
                          least(n, n_steps * (part + 1) / n_parts * step)};
}

/* Takes the next of n shared items; n or more means that none is left.  The cores of a shared host
 * are not equally fast, so threads take items dynamically. */
static inline int64_t next_item(int64_t *counter)
{
    int64_t item;
#pragma omp atomic capture
    item = (*counter)++;
    return item;
}

/* Floats rounded up to a cache line, so that pieces of a workspace start on one. */
static inline int64_t padded_floats(int64_t n)
{
    return divide_up(n, WORK_ALIGN / 4) * (WORK_ALIGN / 4);
}

/* Fails unless all ids of input k are in [0, limit).  The error names the tensor, the position and
 * the id. */
static inline enum snug_status check_ids(const struct kernel_call *call, int k, int64_t limit,
                                         struct snug_error *err)
{
    const int32_t *ids = call->in[k].data;
    const struct tensor *tensor = call->in[k].tensor;
    int64_t n = shape_elems(&tensor->shape);
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= limit)
            return snug_fail(
                err, SNUG_BAD_ARGUMENT,
                "%s: \"%s\" has %d at position %lld, but only 0 to %lld are valid: check "
                "that the data matches the model",
                op_infos[call->op->kind].name, tensor->name, (int)ids[i], (long long)i,
                (long long)limit - 1);
    return SNUG_OK;
}

#endif
