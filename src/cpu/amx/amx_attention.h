/*
 * amx_attention.h -- helpers of amx_attention.c for one head: its rows, packing, which strips see
 * each other, masks, and storing results.
 */
#ifndef SNUG_CPU_AMX_AMX_ATTENTION_H
#define SNUG_CPU_AMX_AMX_ATTENTION_H

#include <float.h>

#include "cpu/amx/amx_lanes.h"
#include "cpu/amx/amx_panels.h"
#include "cpu/amx/attention_bf16.h"

/* The maximum of a query before its first key: below any score, far above those of hidden keys. */
#define NO_TOP -1e30f

/* n_time rows of `depth` elements, row_elems apart. */
struct rows16 {
    const uint16_t *first;
    int64_t n_time, depth, row_elems;
};

static inline struct rows16 rows16(const uint16_t *of, struct head_columns at, int64_t n_time,
                                   int64_t depth)
{
    return (struct rows16){of + at.begin, n_time, depth, at.row_elems};
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

/* The causal mask on the diagonal: queries from k on see key k. */
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

/* Masks the keys that a query does not see.  Missing queries see nothing. */
static inline void hide_unseen(const struct sequence *sequence, int64_t first_query,
                               int64_t first_key, int64_t n_keys, float *scores)
{
    int from[STRIP] = {0}, to[STRIP] = {0};
    for (int q = 0; q < least(STRIP, sequence->n_queries - first_query); q++) {
        struct seen_keys seen = keys_in_block(sequence, first_query + q, first_key, n_keys);
        from[q] = seen.from;
        to[q] = seen.to;
    }
    for (int k = 0; k < STRIP; k++)
#pragma omp simd
        for (int q = 0; q < STRIP; q++)
            scores[k * STRIP + q] = k >= from[q] && k < to[q] ? scores[k * STRIP + q] : -FLT_MAX;
}

/* Masks the scores of a strip of keys and a strip of queries with this span. */
static inline void hide(const struct sequence *sequence, const struct key_span *span,
                        int64_t key_strip, int64_t query_strip, float *scores)
{
    int64_t key = key_strip * STRIP, query = query_strip * STRIP;
    int64_t n_keys = least(STRIP, sequence->n_keys - key);
    enum block_view view = view_of_block(sequence, span, query, key, n_keys);
    if (view == VIEW_diagonal)
        hide_future(scores);
    else if (view == VIEW_ragged)
        hide_unseen(sequence, query, key, n_keys, scores);
    else if (n_keys < STRIP)
        hide_missing(scores, n_keys);
}

/* The span of a strip of queries. */
static inline struct key_span span_of_strip(const struct sequence *sequence, int64_t query_strip)
{
    int64_t first = query_strip * STRIP;
    return key_span_of(sequence, first, least(STRIP, sequence->n_queries - first));
}

/* A block of key strips and query strips. */
struct strip_block {
    struct range keys, queries;
    int64_t head;
    const struct sequence *sequence;
    struct key_span spans[ATTENTION_BF16_QUERIES]; /* of each query strip */
    struct range seen_by[ATTENTION_BF16_KEYS];     /* the query strips that see a key strip */
    bool add;                                      /* to dk and dv */
};

static inline bool sees(const struct key_span *span, int64_t key_strip)
{
    return span->begin < (key_strip + 1) * STRIP && span->end > key_strip * STRIP;
}

/* Fills in spans and seen_by.  Returns whether any strips see each other. */
static inline bool find_seen(struct strip_block *m)
{
    bool any = false;
    for (int64_t query = m->queries.begin; query < m->queries.end; query++)
        m->spans[query - m->queries.begin] = span_of_strip(m->sequence, query);
    for (int64_t key = m->keys.begin; key < m->keys.end; key++) {
        struct range seen_by = {m->queries.end, m->queries.end};
        for (int64_t query = m->queries.begin; query < m->queries.end; query++)
            if (sees(&m->spans[query - m->queries.begin], key)) {
                seen_by.begin = least(seen_by.begin, query);
                seen_by.end = query + 1;
            }
        m->seen_by[key - m->keys.begin] = seen_by;
        any |= seen_by.begin < seen_by.end;
    }
    return any;
}

/* Advances to the next pair of strips that see each other.  Returns false after the last. */
static inline bool next_pair(const struct strip_block *m, int64_t *key, int64_t *query)
{
    ++*query;
    while (*key < m->keys.end && *query >= m->seen_by[*key - m->keys.begin].end)
        if (++*key < m->keys.end)
            *query = m->seen_by[*key - m->keys.begin].begin;
    return *key < m->keys.end;
}

/* The dropout mask of two strips, in the layout of scores; NULL without dropout.  Its element index
 * is formed from head, query and key. */
static inline const float *mask_of(const struct attention_view *view, int64_t head,
                                   int64_t key_strip, int64_t query_strip, float *mask)
{
    if (view->dropout.below == 0)
        return NULL;
    int64_t n_keys = view->sizes.n_keys;
    int64_t first = head_query(view, head, query_strip * STRIP) * n_keys;
    for (int64_t k = 0; k < STRIP; k++)
        dropout_factors(&view->dropout, (uint64_t)(first + key_strip * STRIP + k), (uint64_t)n_keys,
                        STRIP, mask + k * STRIP);
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
