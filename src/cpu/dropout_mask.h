/*
 * dropout_mask.h -- the dropout mask, recomputed wherever it is needed.
 *
 * Whether an element is kept is a function of (seed, step, micro-batch, site, element index).  So
 * the op, its gradient, a recomputed copy and a resumed run agree without a stored mask, for any
 * number of threads and any instruction level.
 */
#ifndef SNUG_CPU_DROPOUT_MASK_H
#define SNUG_CPU_DROPOUT_MASK_H

#include "base/counter_random.h"
#include "exec/backend.h"

struct dropout {
    uint64_t key;
    uint32_t below; /* elements whose random number is below this are dropped */
    float scale;    /* factor of the others: 1 / (1 - p) */
};

/* Input k is the scalar table.  It may be left out if the dropout rate is 0. */
static inline struct dropout dropout_of(const struct kernel_call *call, int k)
{
    struct dropout_attrs attrs = op_dropout(call->op);
    if (!(attrs.dropout > 0))
        return (struct dropout){.scale = 1.0f};
    const double *scalars = call->in[k].data;
    return (struct dropout){.key = counter_mask_key((uint64_t)scalars[SCALAR_seed],
                                                    (uint64_t)scalars[SCALAR_step],
                                                    (uint64_t)call->micro, (uint64_t)attrs.site),
                            .below = (uint32_t)(attrs.dropout * 0x1p32),
                            .scale = (float)(1.0 / (1.0 - attrs.dropout))};
}

/* The factor of element `index`: 0 or the scale. */
static inline float dropout_factor(const struct dropout *d, uint64_t index)
{
    return counter_random(d->key, index) < d->below ? 0.0f : d->scale;
}

/* The factors of the elements first, first + step, ... */
static inline void dropout_factors(const struct dropout *d, uint64_t first, uint64_t step, int n,
                                   float *factors)
{
    uint32_t key = (uint32_t)d->key, second_key = counter_second_key(d->key, first);
    uint32_t low = (uint32_t)first, low_step = (uint32_t)step, below = d->below;
    float scale = d->scale;
    if (first >> 32 == (first + (uint64_t)n * step) >> 32) {
#pragma omp simd
        for (int i = 0; i < n; i++)
            factors[i] = counter_random_32(key, second_key, low + (uint32_t)i * low_step) < below
                             ? 0.0f
                             : scale;
    } else {
        for (int i = 0; i < n; i++)
            factors[i] = dropout_factor(d, first + (uint64_t)i * step);
    }
}

/* y = scaled x where it is kept, else 0, even if x is NaN or infinite.  y may alias x. */
static inline void dropout_block(const struct dropout *d, int64_t begin, int64_t n, const float *x,
                                 float *y)
{
    uint64_t key = d->key, first = (uint64_t)begin;
    uint32_t below = d->below;
    float scale = d->scale;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = counter_random(key, first + (uint64_t)i) < below ? 0.0f : scale * x[i];
}

#endif
