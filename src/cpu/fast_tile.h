/*
 * fast_tile.h -- small matrix products whose operands are in the cache and whose sums are in
 * registers.
 *
 * For blocks inside a kernel (attention): no packing, no threads, any number of rows.  A tile of
 * TILE_ROWS x TILE_VECS vectors of c is summed over the inner index: per step, TILE_VECS loads of b
 * and TILE_ROWS broadcasts of a feed their product of fused multiply-adds.
 */
#ifndef SNUG_CPU_FAST_TILE_H
#define SNUG_CPU_FAST_TILE_H

#include "cpu/fast_common.h"

#if defined(__AVX512F__)
#define VEC_ELEMS 16
#define TILE_ROWS 8
#elif defined(__AVX__)
#define VEC_ELEMS 8
#define TILE_ROWS 6
#else
#define VEC_ELEMS 4
#define TILE_ROWS 6
#endif
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

enum { TILE_VECS = 2 };

typedef float vec __attribute__((vector_size(VEC_ELEMS * 4)));
typedef float vec_in_memory __attribute__((vector_size(VEC_ELEMS * 4), aligned(4), may_alias));

static inline vec vec_load(const float *from)
{
    return *(const vec_in_memory *)from;
}

static inline void vec_store(float *to, vec value)
{
    *(vec_in_memory *)to = value;
}

static inline vec vec_fmadd(float a, vec b, vec c)
{
#if defined(__AVX512F__)
    return (vec)_mm512_fmadd_ps(_mm512_set1_ps(a), (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (vec)_mm256_fmadd_ps(_mm256_set1_ps(a), (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vec)vfmaq_n_f32((float32x4_t)c, (float32x4_t)b, a);
#else
    return a * b + c;
#endif
}

/* On the diagonal, what lies beyond it need not be computed. */
enum trim {
    TRIM_NONE,
    TRIM_INNER_TO_ROW,   /* the inner index ends at the row */
    TRIM_INNER_FROM_ROW, /* ... begins at it */
    TRIM_COLS_TO_ROW,    /* columns after the row are not wanted */
    TRIM_COLS_FROM_ROW,  /* columns before it are not */
};

/* c[n_rows, n_cols] (+)= a[n_rows, n_inner] b[n_inner, n_cols]; n_cols is a multiple of a vector.
 * a_transposed: element (i, k) of a is at a[k * a_pitch + i]. */
struct product {
    int n_rows, n_cols, n_inner;
    const float *a;
    int a_pitch;
    bool a_transposed;
    const float *b;
    int b_pitch;
    float *c;
    int c_pitch;
    bool add;
    enum trim trim;
};

/* n_rows x n_vecs vectors of c at (row, col).  The sizes are constants wherever this is inlined,
 * so that the sums stay in registers. */
static inline __attribute__((always_inline)) void tile(const struct product *p, int row, int col,
                                                       int n_rows, int n_vecs, bool a_transposed)
{
    vec sums[TILE_ROWS][TILE_VECS];
    float *c = p->c + (int64_t)row * p->c_pitch + col;
    const int64_t a_pitch = p->a_pitch, b_pitch = p->b_pitch, c_pitch = p->c_pitch;
    int64_t begin = p->trim == TRIM_INNER_FROM_ROW ? row : 0;
    int64_t end = p->trim == TRIM_INNER_TO_ROW ? least(p->n_inner, row + n_rows) : p->n_inner;
    const float *a = p->a + (a_transposed ? row + begin * a_pitch : row * a_pitch + begin);
    const float *b = p->b + begin * b_pitch + col;
#pragma GCC unroll 8
    for (int i = 0; i < n_rows; i++)
#pragma GCC unroll 4
        for (int v = 0; v < n_vecs; v++)
            sums[i][v] = p->add ? vec_load(c + i * c_pitch + v * VEC_ELEMS) : (vec){0.0f};
    for (int64_t k = begin; k < end; k++) {
        vec line[TILE_VECS];
#pragma GCC unroll 4
        for (int v = 0; v < n_vecs; v++)
            line[v] = vec_load(b + v * VEC_ELEMS);
#pragma GCC unroll 8
        for (int i = 0; i < n_rows; i++)
#pragma GCC unroll 4
            for (int v = 0; v < n_vecs; v++)
                sums[i][v] = vec_fmadd(a[a_transposed ? i : i * a_pitch], line[v], sums[i][v]);
        a += a_transposed ? a_pitch : 1;
        b += b_pitch;
    }
#pragma GCC unroll 8
    for (int i = 0; i < n_rows; i++)
#pragma GCC unroll 4
        for (int v = 0; v < n_vecs; v++)
            vec_store(c + i * c_pitch + v * VEC_ELEMS, sums[i][v]);
}

/* All rows of a strip of n_vecs vectors' width. */
static inline __attribute__((always_inline)) void strip(const struct product *p, int col,
                                                        int n_vecs, bool a_transposed)
{
    int end = p->n_rows;
    int begin = 0;
    if (p->trim == TRIM_COLS_TO_ROW)
        begin = (int)least(col / TILE_ROWS * TILE_ROWS, end);
    else if (p->trim == TRIM_COLS_FROM_ROW)
        end = (int)least(end, col + n_vecs * VEC_ELEMS);
    int row = begin;
    for (; row + TILE_ROWS <= end; row += TILE_ROWS)
        tile(p, row, col, TILE_ROWS, n_vecs, a_transposed);
    for (; row + 4 <= end; row += 4)
        tile(p, row, col, 4, n_vecs, a_transposed);
    for (; row < end; row++)
        tile(p, row, col, 1, n_vecs, a_transposed);
}

static inline __attribute__((always_inline)) void strips(const struct product *p, bool a_transposed)
{
    int col = 0;
    for (; col + TILE_VECS * VEC_ELEMS <= p->n_cols; col += TILE_VECS * VEC_ELEMS)
        strip(p, col, TILE_VECS, a_transposed);
    for (; col < p->n_cols; col += VEC_ELEMS)
        strip(p, col, 1, a_transposed);
}

static void multiply(const struct product *p)
{
    if (p->a_transposed)
        strips(p, true);
    else
        strips(p, false);
}

#endif
