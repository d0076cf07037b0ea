/*
 * dropout.cu -- dropout as an op of its own; norm.cu and attention.cu apply the same masks inline.
 */
#include "cuda/kernels/device.h"
#include "cuda/kernels/device_mask.h"

enum { BLOCK = 256 };

KERNEL drop(struct cuda_dropout dropout, int64_t n, bool aligned, struct cuda_array x,
            struct cuda_array y)
{
    int64_t at = thread_index() * PACK;
    if (at >= n)
        return;
    struct mask mask = mask_of(dropout);
    float value[PACK];
    int count = n - at < PACK ? (int)(n - at) : PACK;
    bool whole = aligned && count == PACK;
    if (whole)
        pack_load(x.dtype, x.data, at, value);
    else
        pack_load_part(x.dtype, x.data, at, count, value);
    for (int i = 0; i < PACK; i++) /* dropped elements are 0, even if they were NaN */
        value[i] = mask_keeps(mask, (uint64_t)(at + i)) ? mask.scale * value[i] : 0.0f;
    if (whole)
        pack_store(y.dtype, y.data, at, value);
    else
        pack_store_part(y.dtype, y.data, at, count, value);
}

int cuda_dropout(struct cuda_dropout dropout, int64_t n, struct cuda_array x, struct cuda_array y,
                 void *stream)
{
    bool aligned = pack_aligned(x.data) && pack_aligned(y.data);
    return launch(drop, grid_of((n + PACK - 1) / PACK, BLOCK), BLOCK, 0, stream, dropout, n,
                  aligned, x, y);
}
