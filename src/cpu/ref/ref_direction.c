/*
 * ref_direction.c -- reference: the ops that compute an update direction from a gradient, for
 * optimizers that are not elementwise.  The op update then takes the step.
 */
#include <math.h>
#include <string.h>

#include "cpu/ref/ref_common.h"
#include "optim/direction.h"

static void clear(const struct operand *x)
{
    memset(x->data, 0, (size_t)elems(x) * dtype_bytes(x->tensor->dtype));
}

/* ---- adafactor ------------------------------------------------------------------------------ */

/* The mean of g^2 over the elements first, first + step, ... */
static double mean_square(const struct operand *g, int64_t first, int64_t step, int64_t n)
{
    return dot(g, first, step, g, first, step, n) / (double)n;
}

static double root_mean_square(const struct operand *x)
{
    return sqrt(mean_square(x, 0, 1, elems(x)));
}

enum snug_status ref_adafactor(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *g = &call->in[0], *r = &call->in[3], *c = &call->in[4];
    const struct operand *u = &call->out[0];
    double *scalars = call->in[1].data;
    if (scalars[SCALAR_skip] != 0.0) {
        clear(u);
        return SNUG_OK;
    }
    const struct direction_attrs *attrs = attrs_of(call->op, direction);
    struct adafactor_now now =
        adafactor_now(attrs->options.value, attrs->relative != 0, attrs->lr_factor, scalars);
    int64_t n_rows = elems(r), n_columns = elems(g) / n_rows;
    double mean = 0.0, squares = 0.0, clip = now.clip;
    for (int64_t i = 0; i < n_rows; i++) {
        store(r, i, adafactor_mean(&now, load(r, i), mean_square(g, i * n_columns, 1, n_columns)));
        mean += load(r, i) / (double)n_rows;
    }
    for (int64_t j = 0; present(c) && j < n_columns; j++)
        store(c, j, adafactor_mean(&now, load(c, j), mean_square(g, j, n_columns, n_rows)));
    for (int64_t i = 0; i < n_rows; i++)
        for (int64_t j = 0, at = i * n_columns; j < n_columns; j++, at++) {
            double of_row = present(c) ? load(r, i) / mean : load(r, i);
            double of_column = present(c) ? load(c, j) : 1.0;
            double value = load(g, at) * clip / sqrt(of_row) / sqrt(of_column);
            squares += value * value;
            store(u, at, value);
        }
    adafactor_finish(&now, sqrt(squares / (double)elems(g)),
                     attrs->relative ? root_mean_square(&call->in[2]) : 0.0, scalars);
    return SNUG_OK;
}

/* ---- prodigy -------------------------------------------------------------------------------- */

enum snug_status ref_prodigy_sums(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *g = &call->in[0], *z = &call->in[2], *x0 = &call->in[3],
                         *s = &call->in[4];
    const double *scalars = call->in[1].data;
    double *part = call->out[0].data;
    clear(&call->out[0]);
    if (scalars[SCALAR_skip] != 0.0)
        return SNUG_OK;
    struct prodigy_now now = prodigy_now(attrs_of(call->op, direction)->options.value, scalars);
    for (int64_t i = 0, n = elems(g); i < n; i++) {
        double gradient = load(g, i) * scalars[SCALAR_clip];
        part[0] += gradient * (load(x0, i) - load(z, i));
        store(s, i, now.keep * load(s, i) + now.step * gradient);
        part[1] += fabs(load(s, i));
    }
    return SNUG_OK;
}

enum snug_status ref_prodigy_size(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *parts = &call->in[0];
    double *scalars = call->in[1].data, product = 0.0, size = 0.0;
    if (scalars[SCALAR_skip] != 0.0)
        return SNUG_OK;
    for (int64_t i = 0, n = elems(parts) / 2; i < n; i++) {
        product += load(parts, 2 * i);
        size += load(parts, 2 * i + 1);
    }
    prodigy_size(attrs_of(call->op, direction)->options.value, product, size, scalars);
    return SNUG_OK;
}

/* ---- amos ----------------------------------------------------------------------------------- */

enum snug_status ref_amos(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *g = &call->in[0], *w = &call->in[2], *v = &call->in[3], *b = &call->in[4];
    double *scalars = call->in[1].data;
    if (scalars[SCALAR_skip] != 0.0) {
        clear(&call->out[0]);
        return SNUG_OK;
    }
    int64_t n_groups = elems(v), k = elems(g) / n_groups;
    const struct direction_attrs *attrs = attrs_of(call->op, direction);
    struct amos_now now = amos_now(attrs->options.value, attrs->eta, attrs->lr_factor, scalars,
                                   (double)k, load(b, 0));
    for (int64_t group = 0; group < n_groups; group++) {
        double most = amos_most(&now, load(v, group)), squares = 0.0;
        for (int64_t i = group * k; i < (group + 1) * k; i++)
            squares += pow(amos_clamp(load(g, i) * now.clip, most), 2);
        double square = squares / (double)k;
        store(v, group, now.beta2 * load(v, group) + square);
        struct amos_mix mix = amos_mix(&now, load(v, group), square);
        for (int64_t i = group * k; i < (group + 1) * k; i++)
            store(&call->out[0], i,
                  mix.of_weight * load(w, i) +
                      mix.of_gradient * amos_clamp(load(g, i) * now.clip, most));
    }
    store(b, 0, now.next_b);
    scalars[SCALAR_direction_scale] = scalars[SCALAR_direction_lr] = 1;
    return SNUG_OK;
}
