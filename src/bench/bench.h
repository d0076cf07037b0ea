/*
 * bench.h -- measure single kernels and a whole training step, and compare them with the limits of
 * the device.
 */
#ifndef SNUG_BENCH_BENCH_H
#define SNUG_BENCH_BENCH_H

#include "report/report.h"
#include "compile/compile.h"
#include "compile/device_rates.h"
#include "exec/exec.h"

/* bench.c */
/* Measures the limits, then the kernels of a compiled step, then n_steps steps on random data
 * (after a warm-up step).  The caller sets the names of model, recipe and type in *bench before. */
enum snug_status bench_run(const struct compiled_step *compiled, int n_steps, const char *type,
                           struct report_bench *bench, struct snug_error *err);

/* bench_busy.c: merges another measurement of the limits.  The best of each counts; limit_spread is
 * how far the measurements differ. */
void bench_note_limits(struct report_bench *bench, const struct device_limits *again);
/* Were other processes running, so that these rates should not be saved? */
bool bench_is_busy(const struct report_bench *bench);

/* bench.c.  Measures the limits of a CPU once more and sets is_busy. */
enum snug_status bench_measure_again(const struct compiled_step *compiled,
                                     struct report_bench *bench, struct snug_error *err);

/* Times every op in n_steps steps on random data (after a warm-up step).  seconds[i * n_steps + k]
 * is the sum of all executions of op i in step k. */
enum snug_status bench_op_seconds(const struct compiled_step *compiled, int n_steps,
                                  double *seconds, struct snug_error *err);

/* bench_kernels.c: extracts the largest op of each interesting kind from the step and runs it
 * alone. */
enum snug_status bench_kernels(const struct compiled_step *compiled, const char *type,
                               const struct device_limits *limits, struct report_bench *bench,
                               struct snug_error *err);

/* measure_rates.c: runs steps of small models for a few seconds. */
enum snug_status rates_measure(const struct snug_recipe *recipe, struct machine_rates *rates,
                               struct snug_error *err);

/* bench.c */
/* Adds an op that took `seconds` for `times` executions to a row of the report, and sets the row's
 * limit. */
void bench_add_op(struct report_rate *row, const struct compiled_step *compiled,
                  const struct op *op, double times, double seconds,
                  const struct device_limits *limits);

#endif
