/*
 * ref_linear.c -- reference: the linear layer and its two gradients.
 *
 * W is [O,I] or [I,O], as the layout attribute says.  Element (o,i) is at o * step_o + i * step_i
 * in both.
 */
#include "cpu/ref/ref_common.h"

struct layout {
    int64_t step_o, step_i;
};

static struct layout weight_layout(const struct op *op, int64_t n_out, int64_t n_in)
{
    return attrs_of(op, linear)->layout ? (struct layout){1, n_out} : (struct layout){n_in, 1};
}

enum snug_status ref_linear(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *x = &call->in[0], *w = &call->in[1], *bias = &call->in[2],
                         *r = &call->in[3];
    const struct operand *y = &call->out[0], *before = &call->out[1];
    int64_t n_rows = rows(x), n_in = last(x), n_out = last(y);
    struct layout at = weight_layout(call->op, n_out, n_in);

    for (int64_t n = 0; n < n_rows; n++)
        for (int64_t o = 0; o < n_out; o++) {
            double value = dot(x, n * n_in, 1, w, o * at.step_o, at.step_i, n_in);
            if (present(bias))
                value += load(bias, o);
            if (present(r))
                value += load(r, n * n_out + o);
            if (present(before))
                store(before, n * n_out + o, value);
            if (call->op->attrs.act !=
                ACT_none) /* round first, as a separate act op would see it */
                value = ref_fn(call->op->attrs.act, as_stored(y, value));
            store(y, n * n_out + o, value);
        }
    return SNUG_OK;
}

enum snug_status ref_linear_grad_x(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *dy = &call->in[0], *w = &call->in[1], *before = &call->in[2],
                         *r = &call->in[3];
    const struct operand *dx = &call->out[0];
    int64_t n_rows = rows(dy), n_out = last(dy), n_in = last(dx);
    struct layout at = weight_layout(call->op, n_out, n_in);

    for (int64_t n = 0; n < n_rows; n++)
        for (int64_t i = 0; i < n_in; i++) {
            double value = dot(dy, n * n_out, 1, w, i * at.step_i, at.step_o, n_out);
            if (present(r))
                value += load(r, n * n_in + i);
            if (present(before))
                value *= ref_fn_slope(call->op->attrs.act, load(before, n * n_in + i));
            store(dx, n * n_in + i, value);
        }
    sum_columns(dx, &call->out[1], call->add);
    return SNUG_OK;
}

enum snug_status ref_linear_grad_w(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *x = &call->in[0], *dy = &call->in[1];
    const struct operand *dw = &call->out[0], *dbias = &call->out[1];
    int64_t n_rows = rows(x), n_in = last(x), n_out = last(dy);
    struct layout at = weight_layout(call->op, n_out, n_in);

    for (int64_t o = 0; o < n_out; o++)
        for (int64_t i = 0; present(dw) && i < n_in; i++)
            store_or_add(dw, o * at.step_o + i * at.step_i, dot(dy, o, n_out, x, i, n_in, n_rows),
                         call->add);
    sum_columns(dy, dbias, call->add);
    return SNUG_OK;
}
