/*
 * ref_norm.c -- reference: layernorm and rmsnorm, alone and after a residual add, and their
 * gradients.
 */
#include <math.h>

#include "cpu/dropout_mask.h"
#include "cpu/ref/ref_common.h"

static void normalise(const struct operand *x, const struct operand *gamma,
                      const struct operand *beta, const struct operand *y,
                      const struct operand *mean_out, const struct operand *rstd_out, double eps)
{
    int64_t n_rows = rows(x), width = last(x);
    for (int64_t n = 0; n < n_rows; n++) {
        int64_t begin = n * width;
        double mean = 0.0, variance = 0.0;
        for (int64_t c = 0; c < width; c++)
            mean += load(x, begin + c);
        mean /= (double)width;
        for (int64_t c = 0; c < width; c++) {
            double centered = load(x, begin + c) - mean;
            variance += centered * centered;
        }
        double rstd = 1.0 / sqrt(variance / (double)width + eps);
        for (int64_t c = 0; c < width; c++)
            store(y, begin + c,
                  (load(x, begin + c) - mean) * rstd * load(gamma, c) + load(beta, c));
        store(mean_out, n, mean);
        store(rstd_out, n, rstd);
    }
}

enum snug_status ref_layernorm(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *in = call->in, *out = call->out;
    normalise(&in[0], &in[1], &in[2], &out[0], &out[1], &out[2], attrs_of(call->op, norm)->eps);
    return SNUG_OK;
}

/* sum = a + dropout(b) as stored, so that the bits are those of separate ops. */
static void add_dropped(const struct kernel_call *call, int scalars)
{
    const struct operand *in = call->in, *sum = &call->out[0];
    struct dropout dropout = dropout_of(call, scalars);
    for (int64_t i = 0, n = elems(sum); i < n; i++) {
        double factor = (double)dropout_factor(&dropout, (uint64_t)i);
        double dropped = factor == 0.0 ? 0.0 : as_stored(&in[1], factor * load(&in[1], i));
        store(sum, i, load(&in[0], i) + dropped);
    }
}

enum snug_status ref_add_layernorm(const struct kernel_call *call, struct snug_error *err)
{
    const struct operand *in = call->in, *out = call->out;
    (void)err;
    add_dropped(call, 4);
    normalise(&out[0], &in[2], &in[3], &out[1], &out[2], &out[3], attrs_of(call->op, norm)->eps);
    return SNUG_OK;
}

/*
 * With h = (x - mean) * rstd and g = dy * gamma:
 *     dx = rstd * (g - mean(g) - h * mean(g * h)) (+ r)
 * dgamma and dbeta come first, because dx may alias dy.
 */
enum snug_status ref_layernorm_grad(const struct kernel_call *call, struct snug_error *err)
{
    const struct operand *dy = &call->in[0], *x = &call->in[1], *gamma = &call->in[2],
                         *mean = &call->in[3], *rstd = &call->in[4], *r = &call->in[5];
    const struct operand *dx = &call->out[0], *dgamma = &call->out[1], *dbeta = &call->out[2],
                         *dsum = &call->out[3];
    int64_t n_rows = rows(x), width = last(x);
    if (present(dsum) && !present(dx))
        return snug_fail(err, SNUG_BAD_PROGRAM,
                         "layernorm_grad: column sums of dx requested, but dx is left out");

    for (int64_t c = 0; c < width; c++) {
        double gamma_sum = 0.0, beta_sum = 0.0;
        for (int64_t n = 0; n < n_rows; n++) {
            double slope = load(dy, n * width + c);
            gamma_sum += slope * (load(x, n * width + c) - load(mean, n)) * load(rstd, n);
            beta_sum += slope;
        }
        store_or_add(dgamma, c, gamma_sum, call->add);
        store_or_add(dbeta, c, beta_sum, call->add);
    }
    for (int64_t n = 0; present(dx) && n < n_rows; n++) {
        double mu = load(mean, n), scale = load(rstd, n), mean_g = 0.0, mean_gh = 0.0;
        for (int64_t c = 0; c < width; c++) {
            double g = load(dy, n * width + c) * load(gamma, c);
            mean_g += g / (double)width;
            mean_gh += g * (load(x, n * width + c) - mu) * scale / (double)width;
        }
        for (int64_t c = 0; c < width; c++) {
            int64_t i = n * width + c;
            double h = (load(x, i) - mu) * scale;
            double value = scale * (load(dy, i) * load(gamma, c) - mean_g - h * mean_gh);
            store(dx, i, present(r) ? value + load(r, i) : value);
        }
    }
    if (present(dsum))
        sum_columns(dx, dsum, call->add);
    return SNUG_OK;
}

/* ---- rmsnorm: no mean and no beta; gamma may cover a head instead of a row ------------------- */

static void normalise_rms(const struct operand *x, const struct operand *gamma,
                          const struct operand *y, const struct operand *rstd_out, double eps)
{
    int64_t width = elems(gamma), n_rows = elems(x) / width;
    for (int64_t n = 0; n < n_rows; n++) {
        double squares = dot(x, n * width, 1, x, n * width, 1, width);
        double rstd = 1.0 / sqrt(squares / (double)width + eps);
        for (int64_t c = 0; c < width; c++)
            store(y, n * width + c, load(x, n * width + c) * rstd * load(gamma, c));
        store(rstd_out, n, rstd);
    }
}

enum snug_status ref_rmsnorm(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    normalise_rms(&call->in[0], &call->in[1], &call->out[0], &call->out[1],
                  attrs_of(call->op, norm)->eps);
    return SNUG_OK;
}

enum snug_status ref_add_rmsnorm(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    add_dropped(call, 3);
    normalise_rms(&call->out[0], &call->in[2], &call->out[1], &call->out[2],
                  attrs_of(call->op, norm)->eps);
    return SNUG_OK;
}

/*
 * With h = x * rstd and g = dy * gamma:
 *     dx = rstd * (g - h * mean(g * h)) (+ r)
 * dgamma comes first, because dx may alias dy.
 */
enum snug_status ref_rmsnorm_grad(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *dy = &call->in[0], *x = &call->in[1], *gamma = &call->in[2],
                         *rstd = &call->in[3], *r = &call->in[4];
    const struct operand *dx = &call->out[0], *dgamma = &call->out[1];
    int64_t width = elems(gamma), n_rows = elems(x) / width;
    for (int64_t c = 0; c < width; c++) {
        double sum = 0.0;
        for (int64_t n = 0; n < n_rows; n++)
            sum += load(dy, n * width + c) * load(x, n * width + c) * load(rstd, n);
        store_or_add(dgamma, c, sum, call->add);
    }
    for (int64_t n = 0; present(dx) && n < n_rows; n++) {
        double scale = load(rstd, n), mean_gh = 0.0;
        for (int64_t c = 0; c < width; c++) {
            int64_t i = n * width + c;
            mean_gh += load(dy, i) * load(gamma, c) * load(x, i) * scale / (double)width;
        }
        for (int64_t c = 0; c < width; c++) {
            int64_t i = n * width + c;
            double value = scale * (load(dy, i) * load(gamma, c) - load(x, i) * scale * mean_gh);
            store(dx, i, present(r) ? value + load(r, i) : value);
        }
    }
    return SNUG_OK;
}
