/*
 * attention_head.h -- addressing within a head, and the causal mask, for attention.cu and
 * attention_mma.cu.
 */
#ifndef SNUG_CUDA_KERNELS_ATTENTION_HEAD_H
#define SNUG_CUDA_KERNELS_ATTENTION_HEAD_H

#include "cuda/kernels/attention.h"
#include "cuda/kernels/device_mask.h"

enum part { PART_q, PART_k, PART_v };

/* One head of one sequence. */
struct head {
    int64_t first_row; /* row of the batch where the sequence begins */
    int64_t index;     /* index of the head over the whole batch */
    int column;        /* its first column in C */
};

DEVICE int width_of(const struct cuda_attention &t)
{
    return t.n_heads * t.depth;
}

DEVICE struct head head_of(const struct cuda_attention &t, int64_t index)
{
    int64_t sequence = index / t.n_heads;
    return {sequence * t.n_time, index, (int)(index % t.n_heads) * t.depth};
}

/* Offset of position `at`: of q, k or v in qkv, and in y. */
DEVICE int64_t qkv_at(const struct cuda_attention &t, const struct head &head, enum part part,
                      int64_t at)
{
    return ((head.first_row + at) * 3 + part) * width_of(t) + head.column;
}

DEVICE int64_t y_at(const struct cuda_attention &t, const struct head &head, int64_t at)
{
    return (head.first_row + at) * width_of(t) + head.column;
}

DEVICE bool sees(const struct cuda_attention &t, int64_t query, int64_t key)
{
    return query < t.n_time && key < t.n_time && (!t.causal || key <= query);
}

DEVICE uint64_t score_index(const struct cuda_attention &t, const struct head &head, int64_t query,
                            int64_t key)
{
    return (uint64_t)((head.index * t.n_time + query) * t.n_time + key);
}

/* Later tiles first: with a causal mask they see more keys and take longer. */
DEVICE int64_t query_tile(int64_t n_tiles)
{
    return n_tiles - 1 - blockIdx.x % n_tiles;
}

#endif
