/*
 * average.h -- the arithmetic of weight averaging: the weight of each step, and how averages are
 * computed.  Shared by the kernels of all devices.
 */
#ifndef SNUG_OPTIM_AVERAGE_H
#define SNUG_OPTIM_AVERAGE_H

#include <math.h>

#include "base/device_fn.h"
#include "ir/program.h"

enum { AVERAGE_SCALARS, AVERAGE_WEIGHT, AVERAGE_KEPT }; /* inputs of average_keep and average */

/* Indices of options.  schedule_free reads beta1 and warmup; ema reads beta; queue and ema read
 * start and every. */
enum {
    AVERAGE_BETA1 = 0,
    AVERAGE_WARMUP = 3,
    AVERAGE_BETA = 3,
    AVERAGE_START = 4,
    AVERAGE_EVERY = 5
};

/* ---- the op average_clock ------------------------------------------------------------------ */

/* Counts one more step with this weight. */
DEVICE_FN void average_count(double weight, double *scalars)
{
    scalars[SCALAR_average_sum] += weight;
    scalars[SCALAR_average_share] = weight > 0 ? weight / scalars[SCALAR_average_sum] : 0;
}

DEVICE_FN void average_count_schedule_free(const double *options, double *scalars)
{
    double t = scalars[SCALAR_update_count], warmup = options[AVERAGE_WARMUP];
    double lr = scalars[SCALAR_lr] * (t < warmup ? t / warmup : 1);
    scalars[SCALAR_lr_most] = fmax(scalars[SCALAR_lr_most], lr);
    average_count(pow(t, 0.75) * scalars[SCALAR_lr_most] * scalars[SCALAR_lr_most], scalars);
}

/* The options start and every are fractions of the run. */
DEVICE_FN void average_count_copies(const double *options, double *scalars)
{
    double n_steps = scalars[SCALAR_n_steps], done = scalars[SCALAR_update_count] - 1;
    double start = ceil(options[AVERAGE_START] * n_steps);
    double every = fmax(1.0, ceil(options[AVERAGE_EVERY] * n_steps));
    bool keeps = done >= start && fmod(done - start, every) == 0;
    scalars[SCALAR_keeps] = keeps ? 1 : 0;
    scalars[SCALAR_n_kept] += keeps ? 1 : 0;
}

DEVICE_FN void average_clock(enum average average, const double *options, double *scalars)
{
    scalars[SCALAR_keeps] = 0;
    if (scalars[SCALAR_skip] != 0.0)
        return;
    if (average == AVERAGE_schedule_free)
        average_count_schedule_free(options, scalars);
    else
        average_count_copies(options, scalars);
}

/* ---- the op average ------------------------------------------------------------------------ */

/* average = of_weight W + of_kept (sum of the stored copies) */
struct average_mix {
    double of_weight, of_kept;
    int64_t n_copies; /* copies to read */
};

DEVICE_FN struct average_mix average_mix(enum average average, const double *options,
                                         int64_t n_copies, const double *scalars)
{
    double beta1 = options[AVERAGE_BETA1];
    struct average_mix weights = {1, 0, 0};
    struct average_mix extrapolated = {1 / beta1, -(1 - beta1) / beta1, 1};
    struct average_mix copies = {0, 1 / (double)n_copies, n_copies};
    if (average == AVERAGE_schedule_free)
        return extrapolated;
    return scalars[SCALAR_n_kept] < (double)n_copies ? weights : copies;
}

/* ---- the op average_keep ------------------------------------------------------------------- */

/* kept[copy] = of_weight W + of_kept kept[copy] */
struct average_change {
    double of_weight, of_kept; /* if of_kept is 0, kept[copy] is not read */
    int64_t copy;
};

DEVICE_FN struct average_change average_change(enum average average, const double *options,
                                               int64_t n_copies, const double *scalars)
{
    double n_kept = scalars[SCALAR_n_kept], beta = options[AVERAGE_BETA];
    struct average_change running = {1 - beta, beta, 0};
    struct average_change slot = {1, 0, (int64_t)fmod(n_kept - 1, (double)n_copies)};
    return average == AVERAGE_ema && n_kept > 1 ? running : slot;
}

#endif
