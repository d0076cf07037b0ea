/*
 * transpose_block.h -- transpose a 16 x 16 block of 32-bit elements.
 *
 * Packing an operand transposes it if the matmul needs its other dimension contiguous.  Element by
 * element that takes a load and a store each, every load from another cache line.  With AVX-512 a
 * block takes 16 loads, 64 shuffles and 16 stores.
 */
#ifndef SNUG_CPU_TRANSPOSE_BLOCK_H
#define SNUG_CPU_TRANSPOSE_BLOCK_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

enum { SQUARE_SIDE = 16 };

/* Rows are from_step and to_step bytes apart. */
#if defined(__AVX512F__)

static inline void square_transpose(const void *from, int64_t from_step, void *to, int64_t to_step)
{
    __m512i in[SQUARE_SIDE], mid[SQUARE_SIDE];
    char *out = to;
#pragma GCC unroll 16
    for (int r = 0; r < SQUARE_SIDE; r++)
        in[r] = _mm512_loadu_si512((const char *)from + r * from_step);
        /* Within each 128-bit lane: transpose 4 x 4 blocks of four rows. */
#pragma GCC unroll 4
    for (int q = 0; q < SQUARE_SIDE; q += 4) {
        __m512i low01 = _mm512_unpacklo_epi32(in[q], in[q + 1]);
        __m512i high01 = _mm512_unpackhi_epi32(in[q], in[q + 1]);
        __m512i low23 = _mm512_unpacklo_epi32(in[q + 2], in[q + 3]);
        __m512i high23 = _mm512_unpackhi_epi32(in[q + 2], in[q + 3]);
        mid[q] = _mm512_unpacklo_epi64(low01, low23);
        mid[q + 1] = _mm512_unpackhi_epi64(low01, low23);
        mid[q + 2] = _mm512_unpacklo_epi64(high01, high23);
        mid[q + 3] = _mm512_unpackhi_epi64(high01, high23);
    }
    /* Lane l of mid[4i + j] has column 4l + j of rows 4i to 4i+3.  Now transpose the lanes, 4 x
     * 4. */
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m512i low01 = _mm512_shuffle_i32x4(mid[j], mid[j + 4], 0x44);
        __m512i high01 = _mm512_shuffle_i32x4(mid[j], mid[j + 4], 0xee);
        __m512i low23 = _mm512_shuffle_i32x4(mid[j + 8], mid[j + 12], 0x44);
        __m512i high23 = _mm512_shuffle_i32x4(mid[j + 8], mid[j + 12], 0xee);
        _mm512_storeu_si512(out + j * to_step, _mm512_shuffle_i32x4(low01, low23, 0x88));
        _mm512_storeu_si512(out + (j + 4) * to_step, _mm512_shuffle_i32x4(low01, low23, 0xdd));
        _mm512_storeu_si512(out + (j + 8) * to_step, _mm512_shuffle_i32x4(high01, high23, 0x88));
        _mm512_storeu_si512(out + (j + 12) * to_step, _mm512_shuffle_i32x4(high01, high23, 0xdd));
    }
}

#else

static inline void square_transpose(const void *from, int64_t from_step, void *to, int64_t to_step)
{
    for (int r = 0; r < SQUARE_SIDE; r++)
        for (int j = 0; j < SQUARE_SIDE; j++)
            memcpy((char *)to + j * to_step + 4 * r, (const char *)from + r * from_step + 4 * j, 4);
}

#endif

#endif
