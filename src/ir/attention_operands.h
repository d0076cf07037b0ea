/*
 * attention_operands.h -- the operands of the ops attention and attention_grad (ops.def).
 *
 * attention_grad has dy, y and lse first, then the inputs of attention in the same order.
 */
#ifndef SNUG_IR_ATTENTION_OPERANDS_H
#define SNUG_IR_ATTENTION_OPERANDS_H

#include "ir/program.h"

enum {
    ATTENTION_Q,
    ATTENTION_K,
    ATTENTION_V,
    ATTENTION_STARTS,
    ATTENTION_LENGTHS,
    ATTENTION_SCALARS,
    ATTENTION_INPUTS
};
enum { ATTENTION_DY, ATTENTION_Y, ATTENTION_LSE, ATTENTION_GRAD_FIRST };

/* The index of an input of attention in this op: the ATTENTION_ constant, or 3 more in the
 * gradient. */
static inline int attention_index(const struct op *op, int input)
{
    return op_has(op, TRAIT_grad) ? ATTENTION_GRAD_FIRST + input : input;
}

/* An input of attention, TENSOR_NONE if it is left out. */
static inline tensor_id attention_input(const struct op *op, int input)
{
    int k = attention_index(op, input);
    return k < op->n_in ? op->in[k] : TENSOR_NONE;
}

/* The sizes of an attention op. */
struct attention_sizes {
    int64_t n_batch, n_queries, n_keys; /* B, Tq, Tk */
    int64_t heads, kv_heads, depth;     /* depth: elements of a head */
    int64_t window;                     /* 0: no limit */
    bool causal, packed;                /* packed: q, k and v in one tensor */
};

/* k is the shape of the keys, NULL if they are packed with the queries. */
static inline struct attention_sizes attention_sizes(const struct attention_attrs *attrs,
                                                     const struct shape *q, const struct shape *k)
{
    struct attention_sizes s = {.n_batch = q->dim[0],
                                .n_queries = q->dim[1],
                                .n_keys = k == NULL ? q->dim[1] : k->dim[1],
                                .heads = attrs->heads,
                                .kv_heads = attrs->kv_heads == 0 ? attrs->heads : attrs->kv_heads,
                                .window = attrs->window,
                                .causal = attrs->causal,
                                .packed = k == NULL};
    s.depth = q->dim[2] / (s.packed ? s.heads + 2 * s.kv_heads : s.heads);
    return s;
}

static inline struct attention_sizes attention_sizes_of(const struct program *prog,
                                                        const struct op *op)
{
    tensor_id q = attention_input(op, ATTENTION_Q), k = attention_input(op, ATTENTION_K);
    return attention_sizes(attrs_of(op, attention), &prog->tensors[q].shape,
                           k == TENSOR_NONE ? NULL : &prog->tensors[k].shape);
}

/* Self-attention of packed q, k and v with as many kv_heads as heads, over whole sequences. */
static inline bool attention_is_plain(const struct program *prog, const struct op *op)
{
    struct attention_sizes s = attention_sizes_of(prog, op);
    return s.packed && s.heads == s.kv_heads && s.window == 0 &&
           attention_input(op, ATTENTION_STARTS) == TENSOR_NONE &&
           attention_input(op, ATTENTION_LENGTHS) == TENSOR_NONE;
}

/* Distances in elements: the row of (sequence b, position t) of q begins at (b T + t) q_row; k and
 * v begin k_column and v_column after it if packed, else at column 0 of their own rows of
 * kv_row. */
struct attention_layout {
    int64_t q_row, kv_row, k_column, v_column;
};

static inline struct attention_layout attention_layout(const struct attention_sizes *s)
{
    int64_t q = s->heads * s->depth, kv = s->kv_heads * s->depth;
    return s->packed ? (struct attention_layout){q + 2 * kv, q + 2 * kv, q, q + kv}
                     : (struct attention_layout){q, kv, 0, 0};
}

/* The number of (query, key) pairs of a head that see each other, if all keys are filled and there
 * is one document. */
static inline double attention_pairs(const struct attention_sizes *s)
{
    double queries = (double)s->n_queries, keys = (double)s->n_keys, window = (double)s->window;
    if (!s->causal)
        return queries * keys;
    if (s->window > 0 && window < keys) {
        double ramp = keys - queries < window ? window - (keys - queries) : 0; /* short rows */
        return queries * window - ramp * ramp / 2;
    }
    return queries * keys - queries * queries / 2;
}

#endif
