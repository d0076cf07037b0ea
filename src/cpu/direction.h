/*
 * direction.h -- the numbers of one step that the reference and the fast rows of the ops in
 * ref_direction.c compute alike, in fp64.
 */
#ifndef SNUG_CPU_DIRECTION_H
#define SNUG_CPU_DIRECTION_H

#include <float.h>
#include <math.h>

#include "ir/program.h"

/* ---- adafactor: options beta1, decay-power, clip-threshold, eps1, eps2 ------------------------- */

struct adafactor_now {
    double clip, beta, threshold, eps1;
    double lr; /* relative: to the size of the weights, of which `least` counts */
    double least;
    bool relative;
};

static inline struct adafactor_now adafactor_now(const struct attrs *attrs, const double *scalars)
{
    const double *o = attrs->options.value;
    double t = scalars[SCALAR_update_count];
    return (struct adafactor_now){.clip = scalars[SCALAR_clip],
                                  .beta = 1 - pow(t, -o[1]),
                                  .threshold = o[2],
                                  .eps1 = o[3],
                                  .lr = attrs->relative ? fmin(1e-2, 1 / sqrt(t))
                                                        : scalars[SCALAR_lr] * attrs->lr_factor,
                                  .least = o[4],
                                  .relative = attrs->relative != 0};
}

/* The running mean of g^2 after one more; `square` is that of the gradient before clipping. */
static inline double adafactor_mean(const struct adafactor_now *now, double mean, double square)
{
    return now->beta * mean + (1 - now->beta) * (square * now->clip * now->clip + now->eps1);
}

static inline void adafactor_finish(const struct adafactor_now *now, double size_of_step,
                                    double size_of_weights, double *scalars)
{
    double over = size_of_step / now->threshold;
    scalars[SCALAR_direction_scale] = over > 1 ? 1 / over : 1;
    scalars[SCALAR_direction_lr] =
        now->lr * (now->relative ? fmax(now->least, size_of_weights) : 1);
}

/* ---- prodigy: options beta1, beta2, eps, d0 ------------------------------------------------------ */

struct prodigy_now {
    double d, keep, step; /* s and the numerator: keep times the old, step times the new */
};

static inline struct prodigy_now prodigy_now(const struct attrs *attrs, const double *scalars)
{
    const double *o = attrs->options.value;
    double d = scalars[SCALAR_d] > 0 ? scalars[SCALAR_d] : o[3];
    return (struct prodigy_now){.d = d, .keep = sqrt(o[1]), .step = d * d * scalars[SCALAR_lr]};
}

/* ---- amos: options beta1, beta2, l2, tau ---------------------------------------------------------------- */

struct amos_now {
    double clip, beta2, l2;
    double correct_before,
        correct; /* v times this is a mean of squares: before this step, and after */
    double x, xi, eta, p, l, rate; /* as src/optim/amos.c has them; rate: 1 / (1 + eta s f e) */
    double next_b;
};

static inline struct amos_now amos_now(const struct attrs *attrs, const double *scalars, double k,
                                       double b)
{
    const double *o = attrs->options.value;
    double t = scalars[SCALAR_update_count], beta2 = o[1], l2 = o[2];
    double tau = o[3], xi = scalars[SCALAR_lr] * attrs->lr_factor, s = sqrt(1 + b);
    double x = xi * xi / s, l = 1 + l2 * b * b;
    double p = 1 + l2 * pow(pow(1 + tau / 2, 2) - 1, 2);
    double e = pow(2 * s / (1 + sqrt(1 + 2 * s / (2 + tau))), 2) - 1;
    double f = (1 + l2 * b * e) / (1 + l2 * l / p);
    return (struct amos_now){.clip = scalars[SCALAR_clip],
                             .beta2 = beta2,
                             .l2 = l2,
                             .correct_before = t > 1 ? (1 - beta2) / (1 - pow(beta2, t - 1)) : 0,
                             .correct = (1 - beta2) / (1 - pow(beta2, t)),
                             .x = x,
                             .xi = xi,
                             .eta = attrs->eta,
                             .p = p,
                             .l = l,
                             .rate = 1 / (1 + attrs->eta * s * f * e),
                             .next_b = b + x * (1 / sqrt(k) + b)};
}

/* How large a number of the gradient may be, by the v before this step. */
static inline double amos_most(const struct amos_now *now, double v)
{
    double square = v * now->correct_before;
    return square > 0 ? sqrt(square / (1 - now->beta2)) : INFINITY;
}

static inline double amos_clamp(double g, double most)
{
    return g > most ? most : g < -most ? -most : g;
}

struct amos_mix { /* the direction is of_weight W + of_gradient g */
    double of_weight, of_gradient;
};

/* v: with this step's mean of squares, `square`, in it. */
static inline struct amos_mix amos_mix(const struct amos_now *now, double v, double square)
{
    double v_hat = fmax(v * now->correct, (double)FLT_MIN);
    double d = 0.5 * now->x * (square / v_hat * now->p / now->l + now->l2);
    return (struct amos_mix){d * now->rate, now->eta * now->xi / sqrt(v_hat) * now->rate};
}

#endif
