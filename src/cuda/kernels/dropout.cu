/*
 * dropout.cu -- dropout by itself; norm.cu and attention.cu make the same masks on their way.
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
    for (int i = 0; i < PACK; i++) /* what is dropped is 0 whatever it was */
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
