/*
 * shape_attention.c -- shape rules of attention and its gradient, whose operands have many forms
 * (attention_operands.h).
 */
#include "ir/attention_operands.h"
#include "ir/shape_rules.h"

/* An optional i32 input of attention with these dimensions. */
static enum snug_status check_attention_ids(const struct program *prog, const struct op *op,
                                            int input, int64_t elems, const char *expected,
                                            struct snug_error *err)
{
    tensor_id id = attention_input(op, input);
    if (id != TENSOR_NONE &&
        (prog->tensors[id].dtype != DTYPE_i32 || tensor_elems(prog, id) != elems))
        return wrong(prog, op, attention_index(op, input), expected, err);
    return SNUG_OK;
}

/* Checks the inputs of attention, in forward or in its gradient. */
static enum snug_status check_attention(const struct program *prog, const struct op *op,
                                        struct snug_error *err)
{
    const struct attention_attrs *attrs = attrs_of(op, attention);
    int at = attention_index(op, ATTENTION_Q);
    const struct shape *q = in_shape(prog, op, at);
    int64_t heads = attrs->heads, kv_heads = attrs->kv_heads == 0 ? heads : attrs->kv_heads;
    tensor_id k = attention_input(op, ATTENTION_K), v = attention_input(op, ATTENTION_V);
    bool packed = k == TENSOR_NONE;
    if (packed && v != TENSOR_NONE)
        return wrong(prog, op, attention_index(op, ATTENTION_V), "left out, as k is", err);
    if (heads < 1 || kv_heads < 1 || heads % kv_heads != 0)
        return snug_fail(err, SNUG_BAD_PROGRAM, "%s: %lld kv_heads should divide %lld heads",
                         op_infos[op->kind].name, (long long)kv_heads, (long long)heads);
    int64_t wide = packed ? heads + 2 * kv_heads : heads;
    if (q->n_dims != 3 || q->dim[2] % wide != 0)
        return wrong(prog, op, at,
                     packed ? "[batch, time, (heads + 2 x kv_heads) x width of a head]"
                            : "[batch, time, heads x width of a head]",
                     err);
    for (int i = 0; i < 2 && !packed; i++) {
        const struct shape *kv = v == TENSOR_NONE ? NULL : in_shape(prog, op, at + 1 + i);
        if (kv == NULL || kv->n_dims != 3 || kv->dim[0] != q->dim[0] ||
            kv->dim[2] != q->dim[2] / heads * kv_heads ||
            kv->dim[1] != in_shape(prog, op, at + 1)->dim[1])
            return wrong(prog, op, at + 1, "[batch, keys, kv_heads x width of a head], as v", err);
    }
    struct attention_sizes s = attention_sizes_of(prog, op);
    if (s.window < 0 || (!s.causal && (s.window > 0 || attention_input(op, ATTENTION_STARTS) >= 0)))
        return snug_fail(err, SNUG_BAD_PROGRAM,
                         "%s: a window, and documents, need causal attention",
                         op_infos[op->kind].name);
    if (s.causal && s.n_keys < s.n_queries)
        return wrong(prog, op, at + 1, "at least as long as the queries if causal", err);
    TRY(check_attention_ids(prog, op, ATTENTION_STARTS, s.n_batch * s.n_queries,
                            "i32 [batch, queries]", err));
    return check_attention_ids(prog, op, ATTENTION_LENGTHS, s.n_batch, "i32 [batch]", err);
}

enum snug_status shape_attention(const struct program *prog, const struct op *op, struct shape *out,
                                 struct snug_error *err)
{
    TRY(check_attention(prog, op, err));
    struct attention_sizes s = attention_sizes_of(prog, op);
    out[0] = with_last(in_shape(prog, op, ATTENTION_Q), s.heads * s.depth);
    out[1] = (struct shape){3, {s.n_batch, s.heads, s.n_queries}};
    return SNUG_OK;
}

enum snug_status shape_attention_grad(const struct program *prog, const struct op *op,
                                      struct shape *out, struct snug_error *err)
{
    TRY(check_attention(prog, op, err));
    struct attention_sizes s = attention_sizes_of(prog, op);
    struct shape y = with_last(in_shape(prog, op, ATTENTION_GRAD_FIRST), s.heads * s.depth);
    for (int k = ATTENTION_DY; k <= ATTENTION_Y; k++)
        if (!shape_equal(in_shape(prog, op, k), &y))
            return wrong(prog, op, k, "[batch, queries, heads x width of a head]", err);
    if (tensor_elems(prog, op->in[ATTENTION_LSE]) != s.n_batch * s.heads * s.n_queries)
        return wrong(prog, op, ATTENTION_LSE, "[batch, heads, queries]", err);
    for (int i = 0; i < 3; i++) {
        tensor_id of = attention_input(op, ATTENTION_Q + i);
        out[i].n_dims = UNCHECKED;
        if (of != TENSOR_NONE)
            out[i] = prog->tensors[of].shape;
    }
    return SNUG_OK;
}
