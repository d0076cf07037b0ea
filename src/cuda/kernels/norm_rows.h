/*
 * norm_rows.h -- packs of rows that may be unaligned or end within a pack, for norm.cu and
 * norm_heads.cu.
 *
 * A thread holds the pack that begins at `column` of a row of `width` elements; beyond the end of
 * the row it holds zeros.  ALIGNED: every row consists of whole packs on 16-byte boundaries.  Both
 * paths hold the same elements in the same threads, so their results have the same bits.
 */
#ifndef SNUG_CUDA_KERNELS_NORM_ROWS_H
#define SNUG_CUDA_KERNELS_NORM_ROWS_H

#include "cuda/kernels/raw.h"

template <int DTYPE, bool ALIGNED>
DEVICE raw_pack<DTYPE> raw_load(const void *data, int64_t row_begin, int column, int width)
{
    raw_pack<DTYPE> raw = {};
    if (column >= width)
        return raw;
    if (ALIGNED)
        return raw_at<DTYPE>(data, row_begin + column);
    float x[PACK];
    pack_load_part((enum dtype)DTYPE, data, row_begin + column, width - column, x);
    return raw_of<DTYPE>(x);
}

/* Hides the bits from the compiler.  Otherwise it would keep the floats of the first unpacking for
 * the second one, and run out of registers. */
template <int DTYPE> DEVICE void forget_floats(raw_pack<DTYPE> &raw)
{
#if defined(__CUDA_ARCH__)
    uint32_t *words = (uint32_t *)&raw;
    for (size_t i = 0; i < sizeof raw / sizeof *words; i++)
        asm volatile("" : "+r"(words[i]));
#else
    (void)raw;
#endif
}

template <int DTYPE, bool ALIGNED>
DEVICE void row_load(const void *data, int64_t row_begin, int column, int width, float x[PACK])
{
    unpack<DTYPE>(raw_load<DTYPE, ALIGNED>(data, row_begin, column, width), x);
}

template <int DTYPE, bool ALIGNED>
DEVICE void row_store(void *data, int64_t row_begin, int column, int width, const float x[PACK])
{
    if (column >= width)
        return;
    if (ALIGNED)
        pack_store((enum dtype)DTYPE, data, row_begin + column, x);
    else
        pack_store_part((enum dtype)DTYPE, data, row_begin + column, width - column, x);
}

/* Adds the squares of a pack, after subtracting the mean unless RMS; the row has n_left more
 * elements. */
template <bool RMS> DEVICE void square_pack(float x[PACK], float mean, int n_left, float *squares)
{
    for (int i = 0; i < PACK; i++) {
        if (!RMS)
            x[i] -= mean;
        *squares += RMS || i < n_left ? x[i] * x[i] : 0.0f;
    }
}

DEVICE float rstd_of(float squares, int width, float eps)
{
    return 1.0f / sqrtf(squares / (float)width + eps);
}

#endif
