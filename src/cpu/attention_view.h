/*
 * attention_view.h -- where the elements of a head are, and which keys its queries see.
 *
 * Shared by the kernels of attention that work block by block (simd_attention.h, attention_bf16.h).
 * A head here is a head of one sequence: head b * heads + h of q and y reads head
 * b * kv_heads + h / group of k and v, which is head / group.
 */
#ifndef SNUG_CPU_ATTENTION_VIEW_H
#define SNUG_CPU_ATTENTION_VIEW_H

#include <math.h>

#include "cpu/dropout_mask.h"
#include "ir/attention_operands.h"

struct attention_view {
    struct attention_sizes sizes;
    struct attention_layout layout;
    int64_t group; /* heads that read the same head of k and v */
    float scale;   /* of the scores */
    /* Unknown and unused when planning: */
    struct dropout dropout;          /* of the attention weights */
    const int32_t *starts, *lengths; /* NULL if left out */
};

static inline struct attention_view attention_view(struct attention_sizes sizes)
{
    return (struct attention_view){.sizes = sizes,
                                   .layout = attention_layout(&sizes),
                                   .group = sizes.heads / sizes.kv_heads,
                                   .scale = (float)(1.0 / sqrt((double)sizes.depth))};
}

static inline struct attention_view attention_view_of_call(const struct kernel_call *call)
{
    const struct operand *in = call->in + attention_index(call->op, 0);
    const struct tensor *k = in[ATTENTION_K].tensor;
    struct attention_view view = attention_view(attention_sizes(attrs_of(call->op, attention),
                                                                &in[ATTENTION_Q].tensor->shape,
                                                                k == NULL ? NULL : &k->shape));
    view.starts = in[ATTENTION_STARTS].data;
    view.lengths = in[ATTENTION_LENGTHS].data;
    view.dropout = dropout_of(call, attention_index(call->op, ATTENTION_SCALARS));
    return view;
}

/* ---- where ----------------------------------------------------------------------------------- */

/* The operand that holds q, k or v (i = 0, 1, 2): all are in the first if packed. */
static inline const struct operand *attention_qkv(const struct kernel_call *call, int i)
{
    const struct operand *q = call->in + attention_index(call->op, ATTENTION_Q);
    return q[ATTENTION_K].tensor == NULL ? q : q + i;
}

/* The output of attention_grad that takes dq, dk or dv. */
static inline const struct operand *attention_dqkv(const struct kernel_call *call, int i)
{
    return attention_qkv(call, i) - call->in - ATTENTION_GRAD_FIRST + call->out;
}

/* The columns of a head: row t begins at element begin + t * row_elems. */
struct head_columns {
    int64_t begin, row_elems;
};

static inline struct head_columns head_columns_at(int64_t head, int64_t heads, int64_t depth,
                                                  int64_t n_rows, int64_t row_elems, int64_t column)
{
    return (struct head_columns){head / heads * n_rows * row_elems + column + head % heads * depth,
                                 row_elems};
}

static inline struct head_columns head_columns_q(const struct attention_view *v, int64_t head)
{
    return head_columns_at(head, v->sizes.heads, v->sizes.depth, v->sizes.n_queries,
                           v->layout.q_row, 0);
}

static inline struct head_columns head_columns_k(const struct attention_view *v, int64_t kv_head)
{
    return head_columns_at(kv_head, v->sizes.kv_heads, v->sizes.depth, v->sizes.n_keys,
                           v->layout.kv_row, v->layout.k_column);
}

static inline struct head_columns head_columns_v(const struct attention_view *v, int64_t kv_head)
{
    return head_columns_at(kv_head, v->sizes.kv_heads, v->sizes.depth, v->sizes.n_keys,
                           v->layout.kv_row, v->layout.v_column);
}

static inline struct head_columns head_columns_y(const struct attention_view *v, int64_t head)
{
    return head_columns_at(head, v->sizes.heads, v->sizes.depth, v->sizes.n_queries,
                           v->sizes.heads * v->sizes.depth, 0);
}

/* The index of a query's row of [B, heads, Tq]: lse, and the rows of the dropout mask. */
static inline int64_t head_query(const struct attention_view *v, int64_t head, int64_t query)
{
    return head * v->sizes.n_queries + query;
}

/* ---- which keys ------------------------------------------------------------------------------ */

struct sequence {
    int64_t n_queries, n_keys; /* n_keys: those that are filled */
    int64_t before;            /* position of the first query; negative if keys are missing */
    int64_t window;
    bool causal;
    const int32_t *starts; /* of each query's document; NULL: 0 */
};

static inline struct sequence sequence_of_head(const struct attention_view *v, int64_t head)
{
    int64_t b = head / v->sizes.heads, n_keys = v->sizes.n_keys, n_queries = v->sizes.n_queries;
    if (v->lengths != NULL)
        n_keys = v->lengths[b] < 0 ? 0 : v->lengths[b] < n_keys ? v->lengths[b] : n_keys;
    return (struct sequence){.n_queries = n_queries,
                             .n_keys = n_keys,
                             .before = n_keys - n_queries,
                             .window = v->sizes.window,
                             .causal = v->sizes.causal,
                             .starts = v->starts == NULL ? NULL : v->starts + b * n_queries};
}

/* Query t sees the keys seen_from .. seen_to - 1, if there are any. */
static inline int64_t seen_from(const struct sequence *s, int64_t t)
{
    int64_t first = s->window > 0 ? s->before + t - s->window + 1 : 0;
    if (s->starts != NULL && s->starts[t] > first)
        first = s->starts[t];
    return first > 0 ? first : 0;
}

static inline int64_t seen_to(const struct sequence *s, int64_t t)
{
    return s->causal ? s->before + t + 1 : s->n_keys;
}

static inline bool sees_nothing(const struct sequence *s, int64_t t)
{
    return seen_from(s, t) >= seen_to(s, t);
}

/* The keys of a block of queries: outside of [begin, end) no query sees any, and inside of
 * [all_begin, all_end) each query sees all. */
struct key_span {
    int64_t begin, end, all_begin, all_end;
};

static inline struct key_span key_span_of(const struct sequence *s, int64_t first, int64_t n)
{
    int64_t last = first + n - 1;
    struct key_span span = {seen_from(s, first), seen_to(s, last), seen_from(s, last),
                            seen_to(s, first)};
    for (int64_t t = first; s->starts != NULL && t <= last; t++) {
        int64_t begin = seen_from(s, t);
        span.begin = begin < span.begin ? begin : span.begin;
        span.all_begin = begin > span.all_begin ? begin : span.all_begin;
    }
    return span;
}

/* What a block of keys is to a block of queries, both of side `side` or fewer. */
enum block_view {
    VIEW_all,      /* each query sees all keys */
    VIEW_diagonal, /* query i sees keys 0 .. i */
    VIEW_ragged    /* query i sees the keys of keys_in_block */
};

static inline enum block_view view_of_block(const struct sequence *s, const struct key_span *span,
                                            int64_t first_query, int64_t first_key, int64_t n_keys)
{
    if (s->causal && s->before + first_query == first_key && span->all_begin <= first_key)
        return VIEW_diagonal;
    return span->all_begin <= first_key && span->all_end >= first_key + n_keys ? VIEW_all
                                                                               : VIEW_ragged;
}

/* Query t sees the keys from .. to - 1, of n keys that begin at `first`. */
struct seen_keys {
    int from, to;
};

static inline struct seen_keys keys_in_block(const struct sequence *s, int64_t t, int64_t first,
                                             int64_t n)
{
    int64_t from = seen_from(s, t) - first, to = seen_to(s, t) - first;
    to = to < 0 ? 0 : to < n ? to : n;
    from = from < 0 ? 0 : from < to ? from : to;
    return (struct seen_keys){(int)from, (int)to};
}

#endif
