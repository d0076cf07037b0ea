/*
 * simd_norm.h -- what simd_norm.c and simd_rmsnorm.c share: sums over bundles of rows, and the
 * rounding of a dropped row.
 *
 * The gradients sum dgamma and dbeta over rows: each bundle of rows has its own fp32 sums in the
 * workspace, which are added in order.  Bundles depend on the shape only, so the results do not
 * depend on the number of threads.
 */
#ifndef SNUG_CPU_SIMD_SIMD_NORM_H
#define SNUG_CPU_SIMD_SIMD_NORM_H

#include "cpu/dropout_mask.h"
#include "cpu/simd/simd_common.h"

enum { BUNDLES_MAX = 64 };

/* The number of bundles of rows with separate sums. */
static inline int norm_bundles(int64_t n_elems, int64_t n_rows)
{
    int64_t n_bundles = least(BUNDLES_MAX, divide_up(n_elems, LEAST_PER_PART));
    return (int)least(n_bundles, n_rows);
}

/* Rounds a row as a separate dropout op would store it. */
static inline const float *round_row(enum dtype dtype, int64_t n, float *row)
{
    for (int64_t at = 0; dtype != DTYPE_f32 && at < n; at += BLOCK_ELEMS)
        round_as(dtype, least(BLOCK_ELEMS, n - at), row + at, row + at);
    return row;
}

/* out[k] (+)= the sums of all bundles, in order, unless it is left out.  Overwrites the sums of the
 * first bundle. */
static inline void add_bundles(const struct kernel_call *call, int k, int64_t width, int n_bundles,
                               float *first, int64_t bundle_floats)
{
    if (call->out[k].data == NULL)
        return;
    for (int bundle = 1; bundle < n_bundles; bundle++) {
        const float *other = first + bundle * bundle_floats;
#pragma omp simd
        for (int64_t i = 0; i < width; i++)
            first[i] += other[i];
    }
    if (call->add) {
        float old[BLOCK_ELEMS];
        for (int64_t at = 0; at < width; at += BLOCK_ELEMS) {
            int64_t count = least(BLOCK_ELEMS, width - at);
            load_f32(call->out[k].tensor->dtype, call->out[k].data, at, count, old);
            for (int64_t i = 0; i < count; i++)
                first[at + i] += old[i];
        }
    }
    out_store(call, k, 0, width, first);
}

#endif
