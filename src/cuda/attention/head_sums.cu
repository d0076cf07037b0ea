/*
 * head_sums.cu -- sums over groups of adjacent heads: the gradients of keys and values that several
 * heads of queries read.
 *
 * A thread sums one pack of y.  All reads and writes are 16 bytes and every element is read once:
 * the kernel is as fast as memory.
 */
#include "cuda/kernels/device.h"
#include "cuda/attention/head_sums.h"

enum { BLOCK = 256 };

KERNEL sum_heads(struct cuda_head_sums s)
{
    int64_t index = thread_index(), packs = s.depth / PACK, n = s.n_rows * s.n_sums * packs;
    if (index >= n * CUDA_HEAD_SUMS)
        return;
    int which = index >= n;
    index -= which ? n : 0;
    int64_t column = index % packs * PACK, head = index / packs % s.n_sums;
    int64_t row = index / packs / s.n_sums;
    int64_t at = (row * s.n_sums + head) * s.group * s.depth + column;
    float sum[PACK] = {0};
    for (int64_t i = 0; i < s.group; i++) {
        float x[PACK];
        pack_load(s.dtype, s.x[which], at + i * s.depth, x);
        for (int k = 0; k < PACK; k++)
            sum[k] += x[k];
    }
    pack_store(s.dtype, s.y[which], row * s.y_row + head * s.depth + column, sum);
}

int cuda_sum_heads(const struct cuda_head_sums *sums, void *stream)
{
    int64_t n = sums->n_rows * sums->n_sums * (sums->depth / PACK) * CUDA_HEAD_SUMS;
    return launch(sum_heads, grid_of(n, BLOCK), BLOCK, 0, stream, *sums);
}
