/*
 * amx_epilogue.h -- the epilogue of a row of 32 sums of a tile matmul.
 *
 * The tile unit works on a block of C for hundreds of cycles without the rest of the core.  The
 * epilogue of the previous block runs in that time, between the tile instructions, and should take
 * no longer.  Rows at the right edge have fewer columns: each function is compiled both for the
 * full row and for any number of columns.
 */
#ifndef SNUG_CPU_AMX_AMX_EPILOGUE_H
#define SNUG_CPU_AMX_AMX_EPILOGUE_H

#include "cpu/amx/amx_lanes.h"
#include "cpu/gemm/gemm_bf16.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

static inline const char *span_address(struct span span, int64_t at)
{
    return (const char *)span.data + (span.begin + at) * (span.dtype == DTYPE_f32 ? 4 : 2);
}

/* Non-temporal stores if around_cache: the data would not stay in the cache until it is read. */
ALWAYS_INLINE void finish_to(struct span to, int64_t at, int n, const float *v, bool around_cache)
{
    (void)around_cache;
#if defined(__AVX512F__)
    float *line = (float *)to.data + to.begin + at;
    if (around_cache && to.dtype == DTYPE_f32 && n == STRIP && (uintptr_t)line % 64 == 0) {
        _mm512_stream_ps(line, _mm512_loadu_ps(v));
        _mm512_stream_ps(line + TILE_SIDE, _mm512_loadu_ps(v + TILE_SIDE));
        return;
    }
#endif
#if defined(__AVX512BF16__)
    if (to.dtype == DTYPE_bf16 && n == STRIP) {
        __m512i *place = (void *)((uint16_t *)to.data + to.begin + at);
        __m512bh half = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(v + TILE_SIDE), _mm512_loadu_ps(v));
        if (around_cache && (uintptr_t)place % sizeof half == 0)
            _mm512_stream_si512(place, (__m512i)half);
        else
            _mm512_storeu_si512(place, (__m512i)half);
        return;
    }
#endif
    store_f32(to.dtype, to.data, to.begin + at, n, v);
}

/* Makes non-temporal stores visible to all threads. */
static inline void finish_stores(void)
{
#if defined(__AVX512F__)
    _mm_sfence();
#endif
}

ALWAYS_INLINE void apply_gelu(float *v)
{
    for (int j = 0; j < STRIP; j += TILE_SIDE)
        lanes_store(v + j, lanes_gelu(lanes_load(v + j)));
}

ALWAYS_INLINE void multiply_gelu_slope(float *v, const float *x)
{
    for (int j = 0; j < STRIP; j += TILE_SIDE)
        lanes_store(v + j, lanes_multiply(lanes_load(v + j), lanes_gelu_slope(lanes_load(x + j))));
}

ALWAYS_INLINE void finish_store(const struct gemm_bf16_out *out, int64_t row, int64_t col, int n,
                                float *v)
{
    int64_t at = row * out->pitch + col;
    float other[STRIP];
    if (out->bias != NULL)
#pragma omp simd
        for (int j = 0; j < n; j++)
            v[j] += out->bias[col + j];
    if (out->more.data != NULL) {
        load_f32(out->more.dtype, out->more.data, out->more.begin + at, n, other);
#pragma omp simd
        for (int j = 0; j < n; j++)
            v[j] += other[j];
    }
    if (out->before.data != NULL)
        finish_to(out->before, at, n, v, out->around_cache);
    if (out->slope_at.data != NULL) {
        load_f32(out->slope_at.dtype, out->slope_at.data, out->slope_at.begin + at, n, other);
        if (n == STRIP && out->act == ACT_gelu && out->y.dtype == DTYPE_bf16)
            multiply_gelu_slope(v, other);
        else
            act_grad_block(out->act, n, v, other, v);
    } else if (out->act != ACT_none) {
        round_as(out->y.dtype, n, v, v); /* as a separate act op would read it */
        if (out->act == ACT_gelu && out->y.dtype == DTYPE_bf16)
            apply_gelu(v); /* includes missing columns */
        else
            act_block(out->act, n, v, v);
    }
    if (out->add) {
        load_f32(out->y.dtype, out->y.data, out->y.begin + at, n, other);
#pragma omp simd
        for (int j = 0; j < n; j++)
            v[j] += other[j];
    }
    finish_to(out->y, at, n, v, out->around_cache);
}

/* e^(x - top).  Subtracts before scaling, because x and top are exact and may be large. */
ALWAYS_INLINE struct lanes exp_above(struct lanes x, struct lanes top)
{
    return lanes_exp2(lanes_subtract(x, top), lanes_all(LOG2_E), lanes_all(0.0f));
}

/* The running state of a row of logits, in 16 lanes that are combined only at the end of the
 * row. */
struct row_state {
    float *top, *sum;
};

/* Picks the target's logit and sets missing columns so that they contribute nothing. */
ALWAYS_INLINE struct row_state begin_logits(const struct gemm_bf16_out *out, int64_t row,
                                            int64_t col, int n, float *v)
{
    int64_t slice = row * out->n_slices + col / HEAD_SLICE;
    float *state = out->running + slice * 2 * HEAD_LANES;
    int64_t target = out->targets[row] - out->first_class - col;
    if (target >= 0 && target < n)
        out->picked[row] = v[target];
    for (int j = n; j < STRIP; j++)
        v[j] = HEAD_LOWEST;
    return (struct row_state){state, state + HEAD_LANES};
}

ALWAYS_INLINE void finish_lse(const struct gemm_bf16_out *out, int64_t row, int64_t col, int n,
                              float *v)
{
    struct row_state state = begin_logits(out, row, col, n, v);
    struct lanes left = lanes_load(v), right = lanes_load(v + HEAD_LANES);
    struct lanes both = lanes_max(left, right), top = lanes_load(state.top);
    struct lanes sum = lanes_load(state.sum);
    if (lanes_any_above(both, top)) {
        struct lanes higher = lanes_max(both, top);
        sum = lanes_multiply(sum, exp_above(top, higher));
        top = higher;
        lanes_store(state.top, top);
    }
    sum = lanes_add(sum, lanes_add(exp_above(left, top), exp_above(right, top)));
    lanes_store(state.sum, sum);
}

/* As finish_lse, but with a given top instead of the maximum. */
ALWAYS_INLINE void finish_exponentials(const struct gemm_bf16_out *out, int64_t row, int64_t col,
                                       int n, float *v)
{
    struct row_state state = begin_logits(out, row, col, n, v);
    struct lanes top = lanes_load(state.top);
    struct lanes left = exp_above(lanes_load(v), top);
    struct lanes right = exp_above(lanes_load(v + HEAD_LANES), top);
    lanes_store(state.sum, lanes_add(lanes_load(state.sum), lanes_add(left, right)));
    lanes_store(v, left);
    lanes_store(v + HEAD_LANES, right);
    finish_to(out->y, row * out->pitch + col, n, v, out->around_cache);
}

ALWAYS_INLINE void finish_softmax(const struct gemm_bf16_out *out, int64_t row, int64_t col, int n,
                                  float *v)
{
    struct lanes factor = lanes_all(out->factor), lse = lanes_all(out->lse[row]);
    struct lanes each = lanes_all(out->labels.each);
    int64_t target = out->targets[row] - out->first_class - col;
    for (int j = 0; j < STRIP; j += TILE_SIDE)
        lanes_store(
            v + j, lanes_multiply(factor, lanes_subtract(exp_above(lanes_load(v + j), lse), each)));
    if (target >= 0 && target < n)
        v[target] -= out->factor * out->labels.target;
    finish_to(out->y, row * out->pitch + col, n, v, false);
}

ALWAYS_INLINE void finish_columns(const struct gemm_bf16_out *out, int64_t row, int64_t col, int n,
                                  float *v)
{
    switch (out->how) {
    case FINISH_store:
        finish_store(out, row, col, n, v);
        break;
    case FINISH_lse:
        finish_lse(out, row, col, n, v);
        break;
    case FINISH_exponentials:
        finish_exponentials(out, row, col, n, v);
        break;
    case FINISH_softmax:
        finish_softmax(out, row, col, n, v);
        break;
    }
}

/* Prefetches the lines of a row that will be finished soon. */
static inline void expect_row(const struct gemm_bf16_out *out, int64_t row, int64_t col)
{
    int64_t at = row * out->pitch + col;
    if (out->slope_at.data != NULL)
        __builtin_prefetch(span_address(out->slope_at, at), 0, 2);
    if (out->more.data != NULL)
        __builtin_prefetch(span_address(out->more, at), 0, 2);
    if (out->y.data != NULL && !out->around_cache) {
        __builtin_prefetch(span_address(out->y, at), 1, 2);
        if (out->y.dtype == DTYPE_f32) /* 32 floats are two lines */
            __builtin_prefetch(span_address(out->y, at + TILE_SIDE), 1, 2);
    }
}

/* c is the row's half in the left tile; the other half is one tile further. */
static inline void finish_row(const struct gemm_bf16_out *out, int64_t row, int64_t col, int n,
                              const float *c)
{
    _Alignas(64) float v[STRIP];
    memcpy(v, c, TILE_SIDE * sizeof *v);
    memcpy(v + TILE_SIDE, c + TILE_SIDE * TILE_SIDE, TILE_SIDE * sizeof *v);
    if (n == STRIP)
        finish_columns(out, row, col, STRIP, v);
    else
        finish_columns(out, row, col, n, v);
}

#endif
