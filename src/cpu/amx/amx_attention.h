/*
 * amx_attention.h -- helpers of amx_attention.c for one head: row addresses, packing, masks, and
 * storing results.
 */
#ifndef SNUG_CPU_AMX_AMX_ATTENTION_H
#define SNUG_CPU_AMX_AMX_ATTENTION_H

#include <float.h>

#include "cpu/amx/amx_lanes.h"
#include "cpu/amx/amx_panels.h"
#include "cpu/amx/attention_bf16.h"

/* n_time rows of `depth` elements, row_elems apart. */
struct rows16 {
    const uint16_t *first;
    int64_t n_time, depth, row_elems;
};

enum third { THIRD_q, THIRD_k, THIRD_v };

static inline int64_t qkv_begin(const struct attention_bf16 *shape, int64_t head, enum third third)
{
    int64_t b = head / shape->n_heads, h = head % shape->n_heads;
    int64_t width = shape->n_heads * shape->depth;
    return b * shape->n_time * 3 * width + third * width + h * shape->depth;
}

static inline int64_t y_begin(const struct attention_bf16 *shape, int64_t head)
{
    int64_t b = head / shape->n_heads, h = head % shape->n_heads;
    return (b * shape->n_time * shape->n_heads + h) * shape->depth;
}

static inline struct rows16 head_of_qkv(const struct attention_bf16 *shape, const uint16_t *qkv,
                                        int64_t head, enum third third)
{
    return (struct rows16){qkv + qkv_begin(shape, head, third), shape->n_time, shape->depth,
                           3 * shape->n_heads * shape->depth};
}

static inline struct rows16 head_of_y(const struct attention_bf16 *shape, const uint16_t *y,
                                      int64_t head)
{
    return (struct rows16){y + y_begin(shape, head), shape->n_time, shape->depth,
                           shape->n_heads * shape->depth};
}

/* Packs strips of rows [first, first + n) for S^T and dP^T, where k is the depth. */
static inline struct packing along_depth(const struct rows16 *rows, int64_t first, int64_t n,
                                         bool is_b, uint16_t *to)
{
    return (struct packing){.from = rows->first + first * rows->row_elems,
                            .pitch = rows->row_elems,
                            .n_across = least(n, rows->n_time - first),
                            .n_k = rows->depth,
                            .k_contiguous = true,
                            .pairs_down = is_b,
                            .to = to,
                            .n_strips = gemm_bf16_strips(n),
                            .n_depths = gemm_bf16_strips(rows->depth)};
}

/* Packs strips of the depth, where k is the time.  As B, pairs are queries i and i + 16. */
static inline struct packing along_time(const struct rows16 *rows, int64_t first, int64_t n,
                                        bool is_b, uint16_t *to)
{
    return (struct packing){.from = rows->first + first * rows->row_elems,
                            .pitch = rows->row_elems,
                            .n_across = rows->depth,
                            .n_k = least(n, rows->n_time - first),
                            .pairs_down = is_b,
                            .pairs_apart = is_b,
                            .to = to,
                            .n_strips = gemm_bf16_strips(rows->depth),
                            .n_depths = gemm_bf16_strips(n)};
}

/* The causal mask if keys and queries are the same strip: queries from k on see key k. */
static inline void hide_future(float *scores)
{
    for (int k = 0; k < STRIP; k++)
        for (int q = 0; q < k; q++)
            scores[k * STRIP + q] = -FLT_MAX;
}

/* Masks the missing keys of the last strip. */
static inline void hide_missing(float *scores, int64_t n_keys)
{
    for (int64_t i = n_keys * STRIP; i < SQUARE; i++)
        scores[i] = -FLT_MAX;
}

/* Masks the scores of a strip of keys and a strip of queries. */
static inline void hide(const struct attention_bf16 *shape, int64_t key_strip, int64_t query_strip,
                        float *scores)
{
    if (shape->causal && key_strip == query_strip)
        hide_future(scores);
    else if (shape->n_time < (key_strip + 1) * STRIP)
        hide_missing(scores, shape->n_time - key_strip * STRIP);
}

/* The dropout mask of two strips, in the layout of scores; NULL without dropout.  Its element index
 * is formed from head, query and key. */
static inline const float *mask_of(const struct attention_bf16 *shape, int64_t head,
                                   int64_t key_strip, int64_t query_strip, float *mask)
{
    if (shape->dropout.below == 0)
        return NULL;
    int64_t first = (head * shape->n_time + query_strip * STRIP) * shape->n_time;
    for (int64_t k = 0; k < STRIP; k++)
        dropout_factors(&shape->dropout, (uint64_t)(first + key_strip * STRIP + k),
                        (uint64_t)shape->n_time, STRIP, mask + k * STRIP);
    return mask;
}

static inline struct lanes masked(struct lanes a, const float *mask, int64_t at)
{
    return mask != NULL ? lanes_multiply(a, lanes_load(mask + at)) : a;
}

/* Stores a strip of queries as rows of a tensor, times a factor per query.  The squares have a row
 * per depth and a column per query. */
static inline void store_transposed(const float *squares, const float *factor, int64_t n_rows,
                                    int64_t depth, int64_t row_elems, uint16_t *to)
{
    _Alignas(64) uint32_t transposed[TILE_SIDE * TILE_SIDE];
    for (int64_t row = 0; row < n_rows; row += TILE_SIDE)
        for (int64_t d = 0; d < depth; d += TILE_SIDE) {
            tile_transpose(squares + d * STRIP + row, STRIP * sizeof *squares, transposed);
            for (int64_t r = 0; r < least(TILE_SIDE, n_rows - row); r++) {
                struct lanes values = lanes_load_bits(transposed + r * TILE_SIDE);
                lanes_store_bf16(to + (row + r) * row_elems + d,
                                 lanes_multiply(values, lanes_all(factor[row + r])),
                                 least(TILE_SIDE, depth - d));
            }
        }
}

#endif
