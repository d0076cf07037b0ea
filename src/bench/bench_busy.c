/*
 * bench_busy.c -- was the machine quiet enough to measure?
 *
 * The limits of a machine do not change during a benchmark, so they are measured more than once.
 * If they differ, or if a kernel is faster than its limit, other processes were using cores or
 * memory bandwidth.  Two kinds of kernels may exceed the limit without that: memory-bound ones
 * whose operands are in a cache, and convolutions, which may need fewer multiplications than are
 * counted (docs/vision.md).
 */
#include "bench/bench.h"

#include <math.h>
#include <string.h>

static const double spread_most = 0.25, over_most = 0.1;

void bench_note_limits(struct report_bench *bench, const struct device_limits *again)
{
    double *const limits[] = {&bench->fma_flops, &bench->amx_flops, &bench->read_bytes,
                              &bench->copy_bytes, &bench->update_bytes};
    const double others[] = {again->f32_flops, again->bf16_flops, again->read_bytes,
                             again->copy_bytes, again->update_bytes};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        double low = fmin(*limits[i], others[i]), high = fmax(*limits[i], others[i]);
        if (low > 0)
            bench->limit_spread = fmax(bench->limit_spread, high / low - 1);
        *limits[i] = high;
    }
}

static bool has_impossible(const struct report_rate *rows, int n_rows)
{
    for (int i = 0; i < n_rows; i++) {
        const struct report_rate *row = &rows[i];
        bool counts = strcmp(row->limit, "memory") != 0 && strncmp(row->op, "conv", 4) != 0;
        if (counts && row->seconds > 0 && row->floor_seconds > (1 + over_most) * row->seconds)
            return true;
    }
    return false;
}

bool bench_is_busy(const struct report_bench *bench)
{
    return bench->limit_spread > spread_most || has_impossible(bench->kernels, bench->n_kernels) ||
           has_impossible(bench->ops, bench->n_ops);
}
