/*
 * attention_head.h -- where the elements of a head are, and which keys its queries see, for
 * attention.cu and attention_mma.cu.
 *
 * Positions fit in 32 bits; offsets of elements do not.
 */
#ifndef SNUG_CUDA_ATTENTION_ATTENTION_HEAD_H
#define SNUG_CUDA_ATTENTION_ATTENTION_HEAD_H

#include <limits.h>

#include "cuda/attention/attention.h"
#include "cuda/kernels/device_mask.h"

/* One head of q of one sequence, and the head of k and v that it reads. */
struct head {
    int64_t index;                      /* of the head of q over the whole batch */
    int64_t q_begin, kv_begin, y_begin; /* the head's first element in row 0 of the sequence */
    const int32_t *starts;              /* of each query's document, or NULL */
    int n_keys;                         /* that are filled */
    int before;                         /* position of query 0; negative if keys are missing */
};

DEVICE struct head head_of(const struct cuda_attention &t, int64_t index)
{
    int64_t sequence = index / t.n_heads;
    int h = (int)(index - sequence * t.n_heads), n_keys = t.n_keys;
    if (t.lengths != NULL) {
        n_keys = t.lengths[sequence];
        n_keys = n_keys < 0 ? 0 : n_keys < t.n_keys ? n_keys : t.n_keys;
    }
    int64_t row = sequence * t.n_queries, width = (int64_t)t.n_heads * t.depth;
    return {index,
            row * t.q_row + h * t.depth,
            sequence * t.n_keys * t.kv_row + h / t.group * t.depth,
            row * width + h * t.depth,
            t.starts == NULL ? NULL : t.starts + row,
            n_keys,
            n_keys - t.n_queries};
}

/* ---- where ---------------------------------------------------------------------------------- */

/* The rows of a head in a tensor: row i begins at element begin + i * step. */
struct rows {
    int64_t begin, step;
    int n;
};

DEVICE struct rows rows_q(const struct cuda_attention &t, const struct head &head)
{
    return {head.q_begin, t.q_row, t.n_queries};
}

/* Those that are filled: the others may hold anything. */
DEVICE struct rows rows_kv(const struct cuda_attention &t, const struct head &head)
{
    return {head.kv_begin, t.kv_row, head.n_keys};
}

/* All of them: keys that are not filled get a gradient of 0. */
DEVICE struct rows rows_dkv(const struct cuda_attention &t, const struct head &head)
{
    return {head.kv_begin, t.kv_row, t.n_keys};
}

DEVICE struct rows rows_y(const struct cuda_attention &t, const struct head &head)
{
    return {head.y_begin, (int64_t)t.n_heads * t.depth, t.n_queries};
}

/* In lse and delta. */
DEVICE int64_t query_index(const struct cuda_attention &t, const struct head &head, int query)
{
    return head.index * t.n_queries + query;
}

/* In the dropout mask. */
DEVICE uint64_t score_index(const struct cuda_attention &t, const struct head &head, int query,
                            int key)
{
    return (uint64_t)(query_index(t, head, query) * t.n_keys + key);
}

/* ---- which keys ----------------------------------------------------------------------------- */

DEVICE int smaller(int a, int b)
{
    return a < b ? a : b;
}

DEVICE int larger(int a, int b)
{
    return a > b ? a : b;
}

/* The keys that a query sees. */
struct seen {
    int from, n;
};

DEVICE struct seen seen_by(const struct cuda_attention &t, const struct head &head, int query)
{
    if (query >= t.n_queries)
        return {0, 0};
    int after = head.before + query + 1, from = larger(after - t.window, 0);
    if (head.starts != NULL)
        from = larger(from, head.starts[query]);
    return {from, larger((t.causal ? after : head.n_keys) - from, 0)};
}

DEVICE bool sees(const struct seen &seen, int key)
{
    return (unsigned)(key - seen.from) < (unsigned)seen.n;
}

/* What a query brings to its row of scores in the gradient; one 16-byte load from shared memory. */
struct alignas(16) query_facts {
    struct seen seen;
    float lse, delta;
};

DEVICE struct query_facts facts_of(const struct cuda_attention &t, const struct head &head,
                                   int query)
{
    bool there = query < t.n_queries;
    int64_t at = query_index(t, head, query);
    return {seen_by(t, head, query), there ? t.lse[at] : 0.0f, there ? t.delta[at] : 0.0f};
}

/* A range of positions, begin .. end - 1; empty if begin >= end. */
struct span {
    int begin, end;
};

struct smaller_of_two {
    DEVICE_MEMBER int operator()(int a, int b) const
    {
        return smaller(a, b);
    }
};

/* The keys that n queries from `first` on see: no query sees one outside.  Whole warps call it. */
DEVICE struct span keys_of(const struct cuda_attention &t, const struct head &head, int first,
                           int n)
{
    int end = smaller(first + n, t.n_queries);
    int begin = larger(head.before + first + 1 - t.window, 0);
    if (head.starts != NULL) {
        int least = INT_MAX;
        for (int query = first + (int)threadIdx.x % WARP; query < end; query += WARP)
            least = smaller(least, head.starts[query]);
        begin = larger(begin, warp_reduce(least, smaller_of_two()));
    }
    return {begin, t.causal ? head.before + end : head.n_keys};
}

/* The queries that see n keys from `first` on, as far as order and window tell. */
DEVICE struct span queries_of(const struct cuda_attention &t, const struct head &head, int first,
                              int n)
{
    int end = smaller(first + n, head.n_keys);
    if (first >= end)
        return {0, 0};
    if (!t.causal)
        return {0, t.n_queries};
    return {larger(first - head.before, 0), smaller(end - 1 - head.before + t.window, t.n_queries)};
}

/* Does the document of each of n queries from `query` on begin after n keys from `key` on?  Whole
 * warps call it. */
DEVICE bool begin_after(const struct cuda_attention &t, const struct head &head, int query,
                        int n_queries, int key, int n_keys)
{
    return head.starts != NULL && keys_of(t, head, query, n_queries).begin >= key + n_keys;
}

/* Later tiles first: with a causal mask they see more keys and take longer. */
DEVICE int query_tile(int n_tiles)
{
    return n_tiles - 1 - (int)(blockIdx.x % (unsigned)n_tiles);
}

#endif
