/*
 * simd_attention.h -- attention and its gradient, block by block.
 *
 * The matrix of scores is never stored: a block of 64 queries is processed with each block of 64
 * keys that it may see (attention_view.h), and the data of two blocks stays in L2.  A row of q, k
 * or v holds all heads; the rows that a head reads repeatedly are copied to contiguous fp32 once.
 * Blocks that no query sees are skipped.  On the causal diagonal half of the matmuls is skipped; at
 * the edges of windows, documents and caches the scores of unseen keys are masked.
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
 * fp32 over all blocks of keys.  If several heads read the same k and v, one thread processes them
 * in order and accumulates dK and dV of all keys in fp32, so results do not depend on the number of
 * threads.  Exponents are in units of ln 2.
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
#include "cpu/attention_view.h"
#include "cpu/cpu_isa.h"
#include "cpu/simd/simd_common.h"
#include "cpu/simd/simd_tile.h"
#include "cpu/transpose_block.h"

#define LOG2_E 1.44269504f
#define LN_2   0.693147181f
/* The maximum of a query before its first key: below any score, far above those of hidden keys. */
#define NO_TOP -1e30f

enum { BLOCK = 64 }; /* queries or keys */

/* ---- one head ---------------------------------------------------------------------------- */

struct shape_of_attention {
    struct attention_view view;
    int64_t n_queries, n_keys;
    int depth, pitch; /* of a head: D, and D rounded up to whole vectors */
    int64_t n_blocks; /* of queries */
    float scale;
};

static inline struct shape_of_attention sizes_of(struct attention_view view)
{
    struct shape_of_attention sizes = {.view = view,
                                       .n_queries = view.sizes.n_queries,
                                       .n_keys = view.sizes.n_keys,
                                       .depth = (int)view.sizes.depth,
                                       .scale = view.scale};
    sizes.pitch = (int)padded_floats(sizes.depth);
    sizes.n_blocks = divide_up(sizes.n_queries, BLOCK);
    return sizes;
}

/* A head's columns of a tensor. */
struct columns {
    enum dtype dtype;
    void *data;
    struct head_columns at;
};

static inline struct columns columns_of(const struct operand *x, struct head_columns at)
{
    return (struct columns){x->tensor->dtype, x->data, at};
}

/* to[n, pitch] = rows first .. first + n of a head, padded with zeros. */
static inline void load_rows(const struct shape_of_attention *sizes, struct columns from,
                             int64_t first, int64_t n, float *to)
{
    size_t pad_bytes = (size_t)(sizes->pitch - sizes->depth) * sizeof(float);
    for (int64_t i = 0; i < n; i++) {
        float *row = to + i * sizes->pitch;
        load_f32(from.dtype, from.data, from.at.begin + (first + i) * from.at.row_elems,
                 sizes->depth, row);
        memset(row + sizes->depth, 0, pad_bytes);
    }
}

static inline void store_rows(const struct shape_of_attention *sizes, struct columns to,
                              int64_t first, int64_t n, const float *from)
{
    for (int64_t i = 0; i < n; i++)
        store_f32(to.dtype, to.data, to.at.begin + (first + i) * to.at.row_elems, sizes->depth,
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

/* ---- pairs of blocks ----------------------------------------------------------------------- */

/* A block of queries and a block of keys. */
struct block_pair {
    int n_queries, n_keys;
    bool diagonal;                /* queries from k on see key k */
    bool ragged;                  /* query q sees the keys seen[q] */
    uint64_t mask;                /* mask index of the first query and key */
    struct seen_keys seen[BLOCK]; /* if ragged */
};

static inline void set_block_pair(const struct shape_of_attention *sizes,
                                  const struct sequence *sequence, const struct key_span *span,
                                  int64_t head, int64_t query, int64_t key, struct block_pair *m)
{
    m->n_queries = (int)least(BLOCK, sizes->n_queries - query);
    m->n_keys = (int)least(BLOCK, sequence->n_keys - key);
    enum block_view view = view_of_block(sequence, span, query, key, m->n_keys);
    m->diagonal = view == VIEW_diagonal;
    m->ragged = view == VIEW_ragged;
    m->mask = (uint64_t)(head_query(&sizes->view, head, query) * sizes->n_keys + key);
    for (int q = 0; m->ragged && q < m->n_queries; q++)
        m->seen[q] = keys_in_block(sequence, query + q, key, m->n_keys);
}

/* ---- choice of the path -------------------------------------------------------------------- */

static inline int parts_of(const struct device_facts *facts, int64_t n_jobs)
{
    int64_t parts = least(facts->threads, n_jobs);
    return parts < 1 ? 1 : (int)parts;
}

/* The tiled path requires bf16 for every tensor except lse, ids and the scalar table. */
static inline bool suits_tiles(const struct program *prog, const struct op *op)
{
    bool is_grad = op_has(op, TRAIT_grad);
    for (int k = 0; k < op->n_in && k <= attention_index(op, ATTENTION_V); k++)
        if (op->in[k] != TENSOR_NONE && !(is_grad && k == ATTENTION_LSE) &&
            program_tensor(prog, op->in[k])->dtype != DTYPE_bf16)
            return false;
    for (int k = 0; k < (is_grad ? op->n_out : 1); k++)
        if (program_tensor(prog, op->out[k])->dtype != DTYPE_bf16)
            return false;
    return true;
}

/* The inputs that are not floats. */
static inline unsigned other_inputs(const struct op *op)
{
    return 1u << attention_index(op, ATTENTION_STARTS) |
           1u << attention_index(op, ATTENTION_LENGTHS) |
           1u << attention_index(op, ATTENTION_SCALARS);
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
    struct attention_view view = attention_view(attention_sizes_of(prog, op));
    bool on_tiles = suits_tiles(prog, op) && attention_bf16_serves(&view);
    *prepared = on_tiles ? (void *)facts->isa->attention_bf16 : NULL;
    return SNUG_OK;
}

#endif
