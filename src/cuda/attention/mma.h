/*
 * mma.h -- warp-level tensor core mma: d[16,8] += a[16,16] b[16,8].
 *
 * Each thread holds some elements, two 16-bit values per register, adjacent along k.  With g = lane
 * / 4 and t = lane % 4 (k and columns are pairs starting at 2t):
 *
 *     a[0] row g       k 2t      b[0] k 2t      column g   d[0], d[1] row g      columns 2t, 2t + 1
 *     a[1] row g + 8   k 2t      b[1] k 2t + 8  column g   d[2], d[3] row g + 8  likewise
 *     a[2] row g       k 2t + 8
 *     a[3] row g + 8   k 2t + 8
 *
 * So d, rounded to 16 bits, can be the `a` of the next mma: columns 16 c .. 16 c + 15 of two
 * adjacent results are its k.
 *
 * Tiles are stored in shared memory with k along rows.  A pitch of 8 more than a multiple of 64
 * elements puts the 32 threads of a load in different banks.
 */
#ifndef SNUG_CUDA_ATTENTION_MMA_H
#define SNUG_CUDA_ATTENTION_MMA_H

#include "cuda/kernels/device.h"

template <int DTYPE> DEVICE void mma(float d[4], const uint32_t a[4], const uint32_t b[2])
{
#if defined(__CUDA_ARCH__)
    if (DTYPE == DTYPE_bf16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#elif defined(SNUG_CUDA_EMULATED)
    emulated_mma(d, a, b, DTYPE == DTYPE_bf16);
#endif
}

DEVICE int mma_group(void)
{
    return (int)threadIdx.x % WARP / 4;
}

DEVICE int mma_pair(void)
{
    return (int)threadIdx.x % 4 * 2;
}

/* Two values rounded to 16 bits each, the first in the lower half. */
template <int DTYPE> DEVICE uint32_t mma_round(float low, float high)
{
    return DTYPE == DTYPE_bf16 ? to_bf16(low) | (uint32_t)to_bf16(high) << 16
                               : to_f16(low) | (uint32_t)to_f16(high) << 16;
}

/* a: rows row .. row + 15, k .. k + 15 of a tile */
DEVICE void mma_load_a(const uint16_t *tile, int pitch, int row, int k, uint32_t a[4])
{
    const uint16_t *at = tile + (row + mma_group()) * pitch + k + mma_pair();
    a[0] = *(const uint32_t *)at;
    a[1] = *(const uint32_t *)(at + 8 * pitch);
    a[2] = *(const uint32_t *)(at + 8);
    a[3] = *(const uint32_t *)(at + 8 * pitch + 8);
}

/* b: columns column .. column + 7, which are rows of the tile */
DEVICE void mma_load_b(const uint16_t *tile, int pitch, int column, int k, uint32_t b[2])
{
    const uint16_t *at = tile + (column + mma_group()) * pitch + k + mma_pair();
    b[0] = *(const uint32_t *)at;
    b[1] = *(const uint32_t *)(at + 8);
}

/* d += the product of a row tile and a column tile, over N_K steps of 16 along k.  d[j] holds
 * columns 8 j .. 8 j + 7 of rows row .. row + 15. */
template <int DTYPE, int N_COLUMNS, int N_K>
DEVICE void mma_tiles(float (&d)[N_COLUMNS][4], const uint16_t *rows, int row,
                      const uint16_t *columns, int pitch)
{
    UNROLL(8)
    for (int k = 0; k < N_K; k++) {
        uint32_t a[4], b[2];
        mma_load_a(rows, pitch, row, 16 * k, a);
        UNROLL(16)
        for (int j = 0; j < N_COLUMNS; j++) {
            mma_load_b(columns, pitch, 8 * j, 16 * k, b);
            mma<DTYPE>(d[j], a, b);
        }
    }
}

/* The same with a = p, whose 2 N_K blocks of 8 columns are k. */
template <int DTYPE, int N_COLUMNS, int N_K>
DEVICE void mma_results(float (&d)[N_COLUMNS][4], const float (&p)[2 * N_K][4],
                        const uint16_t *columns, int pitch)
{
    UNROLL(8)
    for (int k = 0; k < N_K; k++) {
        uint32_t b[2];
        const uint32_t a[4] = {mma_round<DTYPE>(p[2 * k][0], p[2 * k][1]),
                               mma_round<DTYPE>(p[2 * k][2], p[2 * k][3]),
                               mma_round<DTYPE>(p[2 * k + 1][0], p[2 * k + 1][1]),
                               mma_round<DTYPE>(p[2 * k + 1][2], p[2 * k + 1][3])};
        UNROLL(16)
        for (int j = 0; j < N_COLUMNS; j++) {
            mma_load_b(columns, pitch, 8 * j, 16 * k, b);
            mma<DTYPE>(d[j], a, b);
        }
    }
}

#endif
