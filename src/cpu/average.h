/*
 * average.h -- what the reference and the fast rows of the averages of weights decide alike.
 */
#ifndef SNUG_CPU_AVERAGE_H
#define SNUG_CPU_AVERAGE_H

#include <math.h>

#include "exec/backend.h"

enum { AVERAGE_SCALARS, AVERAGE_WEIGHT, AVERAGE_KEPT }; /* inputs of average_keep and average */
enum { AVERAGE_BETA = 3 };                              /* option of a running mean */

/* One more step, of this weight. */
static inline void average_count(double weight, double *scalars)
{
    scalars[SCALAR_average_sum] += weight;
    scalars[SCALAR_average_share] = weight > 0 ? weight / scalars[SCALAR_average_sum] : 0;
}

/* The average is of_weight W + of_kept times the sum of the copies that are kept. */
struct average_mix {
    double of_weight, of_kept;
    int64_t n_copies; /* 0: none is read */
};

static inline struct average_mix average_mix(const struct kernel_call *call)
{
    const double *scalars = call->in[AVERAGE_SCALARS].data;
    double beta1 = call->op->attrs.options.value[0];
    int64_t n_copies = shape_elems(&call->in[AVERAGE_KEPT].tensor->shape) /
                       shape_elems(&call->in[AVERAGE_WEIGHT].tensor->shape);
    if (call->op->attrs.average == AVERAGE_schedule_free)
        return (struct average_mix){1 / beta1, -(1 - beta1) / beta1, 1};
    if (scalars[SCALAR_n_kept] < (double)n_copies)
        return (struct average_mix){1, 0, 0};
    return (struct average_mix){0, 1 / (double)n_copies, n_copies};
}

/* What average_keep makes of the numbers kept from `at` on: of_weight W + of_kept times themselves. */
struct average_change {
    double of_weight, of_kept; /* of_kept 0: they are not read */
    int64_t at;
};

static inline struct average_change average_change(const struct kernel_call *call)
{
    const double *scalars = call->in[AVERAGE_SCALARS].data;
    double n_kept = scalars[SCALAR_n_kept], beta = call->op->attrs.options.value[AVERAGE_BETA];
    int64_t n = shape_elems(&call->in[AVERAGE_WEIGHT].tensor->shape);
    int64_t k = shape_elems(&call->in[AVERAGE_KEPT].tensor->shape) / n;
    if (call->op->attrs.average == AVERAGE_ema && n_kept > 1)
        return (struct average_change){1 - beta, beta, 0};
    return (struct average_change){1, 0, (int64_t)fmod(n_kept - 1, (double)k) * n};
}

#endif
