/*
 * simd_attention.h -- self-attention, causal or not, and its gradient, block by block.
 *
 * The T x T matrix of scores is never stored: a block of 64 queries is processed with each block of
 * 64 keys that it may see, and the data of two blocks stays in L2.  A row of qkv holds q, k and v
 * of all heads; the rows that a head reads repeatedly are copied to contiguous fp32 once.
 *
 * Forward, for a block of queries: scores are transposed (a row per key, a column per query), so
 * that the running maximum and sum of each query are vector operations over the columns:
 *
 *     S^T = K Q^T    m' = max(m, S)    P = exp(scale S - m')    O = O exp(m - m') + P V
 *
 * Backward, for a block of keys, over the queries that see it (P = exp(scale S - lse) at once):
 *
 *     S = Q K^T    dP = dY V^T    dS = scale P (dP - delta)    delta_t = dY_t . Y_t
 *     dV += P^T dY    dK += dS^T Q    dQ += dS K
 *
 * dK and dV of the block are complete after the last queries.  dQ of the head is accumulated in
 * fp32 over all blocks of keys.  Exponents are in units of ln 2.
 *
 * With dropout, the mask M (0 or 1 / (1 - rate)) of two blocks is recomputed, forward and backward.
 * M multiplies P in O and in dV, and dP; it does not apply to the sum of exponentials or to P in
 * dS.
 *
 * On a CPU with tiles, bf16 takes another path (attention_bf16.h).  The choice is made when the op
 * is prepared.  The workspace suffices for both.
 *
 * Lower bound: a vector of 16 scores at D = 64 takes 128 multiply-adds forward and 320 backward,
 * plus an exponential with its surroundings (some 20 and 25 operations); half of a block on the
 * diagonal is wasted.  GFLOP/s per core, Zen 4 with an fp32 peak of 116, counting only the unmasked
 * scores, forward and backward:
 *
 *     T = 1024             v4 97, 96 (84% of peak)   v3 92, 95    with dropout v4 87, 95
 *     not causal, T = 65   73, 77
 */
#ifndef SNUG_CPU_SIMD_SIMD_ATTENTION_H
#define SNUG_CPU_SIMD_SIMD_ATTENTION_H

#include "cpu/amx/attention_bf16.h"
#include "cpu/cpu_isa.h"
#include "cpu/dropout_mask.h"
#include "cpu/simd/simd_common.h"
#include "cpu/simd/simd_tile.h"
#include "cpu/transpose_block.h"
#include "ir/attention.h"

#define LOG2_E 1.44269504f
#define LN_2   0.693147181f

enum { BLOCK = 64 }; /* queries or keys */

/* ---- one head ---------------------------------------------------------------------------- */

struct shape_of_attention {
    int64_t n_time, width, n_heads, n_batch;
    int depth, pitch; /* of a head: D, and D rounded up to whole vectors */
    int64_t n_blocks; /* of queries, which equals that of keys */
    float scale;
    struct dropout dropout;
    bool causal; /* a query sees no later keys */
};

static inline struct shape_of_attention sizes_of(const struct shape *qkv,
                                                 const struct attention_attrs *attrs)
{
    struct shape_of_attention sizes = {.n_time = qkv->dim[qkv->n_dims - 2],
                                       .width = shape_last(qkv) / 3,
                                       .n_heads = attrs->heads,
                                       .causal = attrs->causal != 0};
    sizes.n_batch = shape_rows(qkv) / sizes.n_time;
    sizes.depth = (int)(sizes.width / sizes.n_heads);
    sizes.pitch = (int)padded_floats(sizes.depth);
    sizes.n_blocks = divide_up(sizes.n_time, BLOCK);
    sizes.scale = (float)(1.0 / sqrt((double)sizes.depth));
    return sizes;
}

enum third { THIRD_q, THIRD_k, THIRD_v };

/* A head's columns, from time 0, in a tensor with rows of row_elems. */
struct columns {
    enum dtype dtype;
    void *data;
    int64_t begin, row_elems;
};

static inline struct columns head_of_qkv(const struct shape_of_attention *sizes,
                                         const struct operand *qkv, int64_t head, enum third third)
{
    int64_t b = head / sizes->n_heads, h = head % sizes->n_heads, row_elems = 3 * sizes->width;
    return (struct columns){qkv->tensor->dtype, qkv->data,
                            b * sizes->n_time * row_elems + third * sizes->width + h * sizes->depth,
                            row_elems};
}

static inline struct columns head_of_y(const struct shape_of_attention *sizes,
                                       const struct operand *y, int64_t head)
{
    int64_t b = head / sizes->n_heads, h = head % sizes->n_heads;
    return (struct columns){y->tensor->dtype, y->data,
                            b * sizes->n_time * sizes->width + h * sizes->depth, sizes->width};
}

/* to[n, pitch] = rows first .. first + n of a head, padded with zeros. */
static inline void load_rows(const struct shape_of_attention *sizes, struct columns from,
                             int64_t first, int64_t n, float *to)
{
    size_t pad_bytes = (size_t)(sizes->pitch - sizes->depth) * sizeof(float);
    for (int64_t i = 0; i < n; i++) {
        float *row = to + i * sizes->pitch;
        load_f32(from.dtype, from.data, from.begin + (first + i) * from.row_elems, sizes->depth,
                 row);
        memset(row + sizes->depth, 0, pad_bytes);
    }
}

static inline void store_rows(const struct shape_of_attention *sizes, struct columns to,
                              int64_t first, int64_t n, const float *from)
{
    for (int64_t i = 0; i < n; i++)
        store_f32(to.dtype, to.data, to.begin + (first + i) * to.row_elems, sizes->depth,
                  from + i * sizes->pitch);
}

/* n rounded up to whole squares of transpose(), which are whole vectors too. */
static inline int in_squares(int n)
{
    return (n + SQUARE_SIDE - 1) / SQUARE_SIDE * SQUARE_SIDE;
}

/* to[pitch, BLOCK] = rows[n, pitch]^T; columns from n to the next whole square are zeros. */
static inline void transpose(const struct shape_of_attention *sizes, float *rows_of, int n,
                             float *to)
{
    int64_t pitch = sizes->pitch;
    memset(rows_of + n * pitch, 0, (size_t)((in_squares(n) - n) * pitch) * sizeof *rows_of);
    for (int i = 0; i < n; i += SQUARE_SIDE)
        for (int64_t d = 0; d < pitch; d += SQUARE_SIDE)
            square_transpose(rows_of + i * pitch + d, pitch * (int64_t)sizeof *rows_of,
                             to + d * BLOCK + i, BLOCK * sizeof *to);
}

/* The mask index of a query's row.  It is formed from head, query and key. */
static inline uint64_t mask_row(const struct shape_of_attention *sizes, int64_t head, int64_t query)
{
    return (uint64_t)((head * sizes->n_time + query) * sizes->n_time);
}

/* ---- pairs of blocks ----------------------------------------------------------------------- */

/* A block of queries and a block of keys. */
struct block_pair {
    int n_queries, n_keys;
    bool diagonal; /* causal and the same block: queries from k on see key k */
    uint64_t mask; /* mask index of the first query and key */
};

static inline struct block_pair block_pair_of(const struct shape_of_attention *sizes, int64_t head,
                                              int64_t first_query, int64_t first_key)
{
    return (struct block_pair){
        .n_queries = (int)least(BLOCK, sizes->n_time - first_query),
        .n_keys = (int)least(BLOCK, sizes->n_time - first_key),
        .diagonal = sizes->causal && first_query == first_key,
        .mask = mask_row(sizes, head, first_query) + (uint64_t)first_key,
    };
}

/* ---- choice of the path -------------------------------------------------------------------- */

static inline int parts_of(const struct device_facts *facts, int64_t n_jobs)
{
    int64_t parts = least(facts->threads, n_jobs);
    return parts < 1 ? 1 : (int)parts;
}

/* The tiled path requires bf16 for every tensor except lse and the scalar table. */
static inline bool suits_tiles(const struct program *prog, const struct op *op)
{
    for (int k = 0; k <= attention_index(op, ATTENTION_Q); k++)
        if (k != attention_index(op, ATTENTION_Q) - 1 && /* lse */
            program_tensor(prog, op->in[k])->dtype != DTYPE_bf16)
            return false;
    return program_tensor(prog, op->out[0])->dtype == DTYPE_bf16;
}

static inline struct attention_bf16 shape16(const struct shape_of_attention *sizes)
{
    return (struct attention_bf16){.n_batch = sizes->n_batch,
                                   .n_time = sizes->n_time,
                                   .n_heads = sizes->n_heads,
                                   .depth = sizes->depth,
                                   .causal = sizes->causal,
                                   .dropout = sizes->dropout};
}

static inline size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* *prepared is set to the functions on tiles, or NULL. */
static inline enum snug_status prepare_attention(const struct program *prog, const struct op *op,
                                                 const struct device_facts *facts, void **prepared,
                                                 struct snug_error *err)
{
    (void)err;
    const struct tensor *qkv = program_tensor(prog, attention_input(op, ATTENTION_Q));
    struct shape_of_attention sizes = sizes_of(&qkv->shape, attrs_of(op, attention));
    struct attention_bf16 shape = shape16(&sizes);
    bool on_tiles = suits_tiles(prog, op) && attention_bf16_serves(&shape);
    *prepared = on_tiles ? (void *)facts->isa->attention_bf16 : NULL;
    return SNUG_OK;
}

#endif
