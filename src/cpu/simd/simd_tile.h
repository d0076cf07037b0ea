/*
 * simd_tile.h -- small matmuls with operands in the cache and sums in registers.
 *
 * They serve blocks inside a kernel (attention, convolutions): no packing, no threads, any number
 * of rows.  A tile of c, rows x vectors, is summed over the inner index.  Each step loads one
 * vector of b per column vector and broadcasts one element of a per row, for rows x vectors fused
 * multiply-adds.  With 32 registers and enough columns a tile is 6 x 4: 10 loads for 24
 * multiply-adds, where 8 x 2 takes 10 for 16, and a block of 64 columns reads a only once.
 */
#ifndef SNUG_CPU_SIMD_SIMD_TILE_H
#define SNUG_CPU_SIMD_SIMD_TILE_H

#include "cpu/simd/simd_vec.h"

#if defined(__AVX512F__)
enum { TILE_ROWS = 8, TILE_VECS = 2, WIDE_ROWS = 6, WIDE_VECS = 4 };
#else
enum { TILE_ROWS = 6, TILE_VECS = 2, WIDE_ROWS = 6, WIDE_VECS = 2 };
#endif

/* The part of a diagonal block that need not be computed. */
enum trim {
    TRIM_NONE,
    TRIM_INNER_TO_ROW,   /* the inner index ends at the row */
    TRIM_INNER_FROM_ROW, /* ... begins at it */
    TRIM_COLS_TO_ROW,    /* columns after the row are not needed */
    TRIM_COLS_FROM_ROW,  /* columns before the row are not needed */
};

/* c[n_rows, n_cols] (+)= a[n_rows, n_inner] b[n_inner, n_cols]; n_cols is a multiple of a vector.
 * If a_transposed, element (i, k) of a is at a[k * a_pitch + i]. */
struct gemm {
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

/* Computes n_rows x n_vecs vectors of c at (row, col).  The sizes are constants wherever this is
 * inlined, so the sums stay in registers. */
static inline __attribute__((always_inline)) void tile(const struct gemm *p, int row, int col,
                                                       int n_rows, int n_vecs, bool a_transposed)
{
    vec sums[TILE_ROWS][WIDE_VECS];
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
        vec line[WIDE_VECS];
#pragma GCC unroll 4
        for (int v = 0; v < n_vecs; v++)
            line[v] = vec_load(b + v * VEC_ELEMS);
#pragma GCC unroll 8
        for (int i = 0; i < n_rows; i++)
#pragma GCC unroll 4
            for (int v = 0; v < n_vecs; v++)
                sums[i][v] =
                    vec_fmadd(vec_all(a[a_transposed ? i : i * a_pitch]), line[v], sums[i][v]);
        a += a_transposed ? a_pitch : 1;
        b += b_pitch;
    }
#pragma GCC unroll 8
    for (int i = 0; i < n_rows; i++)
#pragma GCC unroll 4
        for (int v = 0; v < n_vecs; v++)
            vec_store(c + i * c_pitch + v * VEC_ELEMS, sums[i][v]);
}

/* Computes all rows of a strip of n_vecs vectors, tile_rows at a time. */
static inline __attribute__((always_inline)) void
strip(const struct gemm *p, int col, int tile_rows, int n_vecs, bool a_transposed)
{
    int end = p->n_rows;
    int begin = 0;
    if (p->trim == TRIM_COLS_TO_ROW)
        begin = (int)least(col / tile_rows * tile_rows, end);
    else if (p->trim == TRIM_COLS_FROM_ROW)
        end = (int)least(end, col + n_vecs * VEC_ELEMS);
    int row = begin;
    for (; row + tile_rows <= end; row += tile_rows)
        tile(p, row, col, tile_rows, n_vecs, a_transposed);
    for (; row + 4 <= end; row += 4)
        tile(p, row, col, 4, n_vecs, a_transposed);
    for (; row < end; row++)
        tile(p, row, col, 1, n_vecs, a_transposed);
}

/* Columns can be trimmed only by whole strips, so trimmed matmuls use narrow ones. */
static inline __attribute__((always_inline)) void strips(const struct gemm *p, bool a_transposed)
{
    bool trims_cols = p->trim == TRIM_COLS_TO_ROW || p->trim == TRIM_COLS_FROM_ROW;
    int col = 0;
    if (WIDE_VECS > TILE_VECS && !trims_cols)
        for (; col + WIDE_VECS * VEC_ELEMS <= p->n_cols; col += WIDE_VECS * VEC_ELEMS)
            strip(p, col, WIDE_ROWS, WIDE_VECS, a_transposed);
    for (; col + TILE_VECS * VEC_ELEMS <= p->n_cols; col += TILE_VECS * VEC_ELEMS)
        strip(p, col, TILE_ROWS, TILE_VECS, a_transposed);
    for (; col < p->n_cols; col += VEC_ELEMS)
        strip(p, col, TILE_ROWS, 1, a_transposed);
}

static void multiply(const struct gemm *p)
{
    if (p->a_transposed)
        strips(p, true);
    else
        strips(p, false);
}

#endif
