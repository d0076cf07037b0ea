/*
 * direction.h -- the per-step scalars of adafactor, prodigy and amos, in fp64.  Shared by the
 * kernels of all devices.
 */
#ifndef SNUG_OPTIM_DIRECTION_H
#define SNUG_OPTIM_DIRECTION_H

#include <float.h>
#include <math.h>

#include "base/device_fn.h"
#include "ir/program.h"
#include "optim/average.h"

/* ---- adafactor: options beta1, decay-power, clip-threshold, eps1, eps2 --------------------- */

struct adafactor_now {
    double clip, beta, threshold, eps1;
    double lr;
    double least;  /* lower bound of the weights' RMS */
    bool relative; /* lr is a multiple of the weights' RMS */
};

DEVICE_FN struct adafactor_now adafactor_now(const double *o, bool relative, double lr_factor,
                                             const double *scalars)
{
    double t = scalars[SCALAR_update_count];
    struct adafactor_now now;
    now.clip = scalars[SCALAR_clip];
    now.beta = 1 - pow(t, -o[1]);
    now.threshold = o[2];
    now.eps1 = o[3];
    now.lr = scalars[SCALAR_lr] * lr_factor;
    now.least = o[4];
    now.relative = relative;
    return now;
}

/* The next running mean of g^2; `square` is the mean of g^2 before clipping. */
DEVICE_FN double adafactor_mean(const struct adafactor_now *now, double mean, double square)
{
    return now->beta * mean + (1 - now->beta) * (square * now->clip * now->clip + now->eps1);
}

DEVICE_FN void adafactor_finish(const struct adafactor_now *now, double size_of_step,
                                double size_of_weights, double *scalars)
{
    double over = size_of_step / now->threshold;
    scalars[SCALAR_direction_scale] = over > 1 ? 1 / over : 1;
    scalars[SCALAR_direction_lr] =
        now->lr * (now->relative ? fmax(now->least, size_of_weights) : 1);
}

/* ---- prodigy: options beta1, beta2, eps, d0 ------------------------------------------------ */

struct prodigy_now {
    double d, keep, step; /* s and the numerator become keep * old + step * new */
};

DEVICE_FN struct prodigy_now prodigy_now(const double *o, const double *scalars)
{
    struct prodigy_now now;
    now.d = scalars[SCALAR_d] > 0 ? scalars[SCALAR_d] : o[3];
    now.keep = sqrt(o[1]);
    now.step = now.d * now.d * scalars[SCALAR_lr];
    return now;
}

/* The op prodigy_size.  dot and size: the sums over all tensors of g (x0 - z) and of |s|. */
DEVICE_FN void prodigy_size(const double *o, double dot, double size, double *scalars)
{
    struct prodigy_now now = prodigy_now(o, scalars);
    double numerator = now.keep * scalars[SCALAR_d_numerator] + now.step * dot;
    scalars[SCALAR_d_numerator] = numerator;
    scalars[SCALAR_d] = size > 0 ? fmax(now.d, numerator / size) : now.d;
    scalars[SCALAR_d_before] = size > 0 ? now.d : 0; /* 0: the update changes nothing */
    average_count(size > 0 ? pow(scalars[SCALAR_update_count], 0.75) : 0, scalars);
}

/* ---- amos: options beta1, beta2, l2, tau --------------------------------------------------- */

struct amos_now {
    double clip, beta2, l2;
    double correct_before, correct; /* v_hat / v, before and after this step */
    double x, xi, eta, p, l;        /* as in src/optim/amos.c; xi: lr */
    double rate;                    /* 1 / (1 + eta s f e) */
    double next_b;
};

/* k: weights per element of v */
DEVICE_FN struct amos_now amos_now(const double *o, double eta, double lr_factor,
                                   const double *scalars, double k, double b)
{
    double t = scalars[SCALAR_update_count], beta2 = o[1], l2 = o[2];
    double tau = o[3], xi = scalars[SCALAR_lr] * lr_factor, s = sqrt(1 + b);
    double x = xi * xi / s, l = 1 + l2 * b * b;
    double p = 1 + l2 * pow(pow(1 + tau / 2, 2) - 1, 2);
    double e = pow(2 * s / (1 + sqrt(1 + 2 * s / (2 + tau))), 2) - 1;
    double f = (1 + l2 * b * e) / (1 + l2 * l / p);
    struct amos_now now;
    now.clip = scalars[SCALAR_clip];
    now.beta2 = beta2;
    now.l2 = l2;
    now.correct_before = t > 1 ? (1 - beta2) / (1 - pow(beta2, t - 1)) : 0;
    now.correct = (1 - beta2) / (1 - pow(beta2, t));
    now.x = x;
    now.xi = xi;
    now.eta = eta;
    now.p = p;
    now.l = l;
    now.rate = 1 / (1 + eta * s * f * e);
    now.next_b = b + x * (1 / sqrt(k) + b);
    return now;
}

/* The bound to which gradient elements are clamped, from the previous v. */
DEVICE_FN double amos_most(const struct amos_now *now, double v)
{
    double square = v * now->correct_before;
    return square > 0 ? sqrt(square / (1 - now->beta2)) : INFINITY;
}

DEVICE_FN double amos_clamp(double g, double most)
{
    return g > most ? most : g < -most ? -most : g;
}

struct amos_mix { /* the direction is of_weight W + of_gradient g */
    double of_weight, of_gradient;
};

/* square: this step's mean of g^2, already included in v. */
DEVICE_FN struct amos_mix amos_mix(const struct amos_now *now, double v, double square)
{
    double v_hat = fmax(v * now->correct, (double)FLT_MIN);
    double d = 0.5 * now->x * (square / v_hat * now->p / now->l + now->l2);
    struct amos_mix mix = {d * now->rate, now->eta * now->xi / sqrt(v_hat) * now->rate};
    return mix;
}

#endif
