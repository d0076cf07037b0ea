/*
 * ref_batchnorm.c -- reference: batch normalisation over all but the last dimension.
 */
#include <math.h>

#include "cpu/ref/ref_common.h"

/* y = fn((x - mean) / sqrt(var + eps) * gamma + beta (+ r)) of one channel */
static void normalise_channel(const struct kernel_call *call, const struct operand *r, int64_t c,
                              double mean, double variance)
{
    const struct operand *x = &call->in[0], *gamma = &call->in[1], *beta = &call->in[2];
    int64_t n_rows = rows(x), channels = last(x);
    double scale = load(gamma, c) / sqrt(variance + attrs_of(call->op, norm)->eps),
           shift = load(beta, c);
    for (int64_t n = 0; n < n_rows; n++) {
        int64_t i = n * channels + c;
        double value = (load(x, i) - mean) * scale + shift;
        store(&call->out[0], i,
              ref_fn(call->op->attrs.act, present(r) ? value + load(r, i) : value));
    }
}

enum snug_status ref_batchnorm(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *x = &call->in[0];
    int64_t n_rows = rows(x), channels = last(x);
    for (int64_t c = 0; c < channels; c++) {
        double mean = 0.0, variance = 0.0;
        for (int64_t n = 0; n < n_rows; n++)
            mean += load(x, n * channels + c);
        mean /= (double)n_rows;
        for (int64_t n = 0; n < n_rows; n++) {
            double centered = load(x, n * channels + c) - mean;
            variance += centered * centered;
        }
        variance /= (double)n_rows;
        normalise_channel(call, &call->in[3], c, mean, variance);
        store(&call->out[1], c, mean);
        store(&call->out[2], c, variance);
    }
    return SNUG_OK;
}

enum snug_status ref_batchnorm_eval(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    for (int64_t c = 0; c < last(&call->in[0]); c++)
        normalise_channel(call, &call->in[5], c, load(&call->in[3], c), load(&call->in[4], c));
    return SNUG_OK;
}

enum snug_status ref_batchnorm_update(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *mean = &call->in[0], *variance = &call->in[1];
    const struct operand *running_mean = &call->out[0], *running_variance = &call->out[1];
    double momentum = attrs_of(call->op, norm)->momentum, n = (double)rows(&call->in[4]);
    double unbiased = n > 1.0 ? n / (n - 1.0) : 1.0;
    for (int64_t c = 0; c < elems(mean); c++) {
        store(running_mean, c, (1.0 - momentum) * load(running_mean, c) + momentum * load(mean, c));
        store(running_variance, c,
              (1.0 - momentum) * load(running_variance, c) +
                  momentum * unbiased * load(variance, c));
    }
    return SNUG_OK;
}

/* dy fn' at element i.  The sign of y, if given, or of `before` tells where relu is active. */
static double slope_at(const struct kernel_call *call, int64_t i, double before)
{
    const struct operand *y = &call->in[6];
    double sign = present(y) ? load(y, i) : before;
    return load(&call->in[0], i) * ref_fn_slope(call->op->attrs.act, sign);
}

/*
 * With h = (x - mean) * rstd and g = dy fn':
 *     dx = gamma * rstd * (g - mean(g) - h * mean(g * h))
 * The sums of a channel come first, because dx may alias dy or x.
 */
enum snug_status ref_batchnorm_grad(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *x = &call->in[1], *gamma = &call->in[2], *beta = &call->in[3];
    const struct operand *dx = &call->out[0], *dr = &call->out[3];
    int64_t n_rows = rows(x), channels = last(x);
    for (int64_t c = 0; c < channels; c++) {
        double mean = load(&call->in[4], c), sum_g = 0.0, sum_gh = 0.0;
        double rstd = 1.0 / sqrt(load(&call->in[5], c) + attrs_of(call->op, norm)->eps);
        double factor = load(gamma, c), shift = load(beta, c);
        for (int64_t n = 0; n < n_rows; n++) {
            double h = (load(x, n * channels + c) - mean) * rstd;
            double g = slope_at(call, n * channels + c, h * factor + shift);
            sum_g += g;
            sum_gh += g * h;
        }
        store_or_add(&call->out[1], c, sum_gh, call->add);
        store_or_add(&call->out[2], c, sum_g, call->add);
        for (int64_t n = 0; n < n_rows; n++) {
            int64_t i = n * channels + c;
            double h = (load(x, i) - mean) * rstd;
            double g = slope_at(call, i, h * factor + shift);
            if (present(dr))
                store(dr, i, g);
            if (present(dx))
                store(dx, i, factor * rstd * (g - (sum_g + h * sum_gh) / (double)n_rows));
        }
    }
    return SNUG_OK;
}
