/*
 * bench.h -- what this machine does with a model: single kernels and a whole training step, each
 * beside the limit that it could reach.
 */
#ifndef SNUG_BENCH_BENCH_H
#define SNUG_BENCH_BENCH_H

#include "report/report.h"
#include "compile/compile.h"
#include "exec/exec.h"

/* Measures the limits, then the kernels of a compiled step's step, then n_steps steps on random data (after
 * one that does not count).  Model, recipe and type names are the caller's to set before. */
enum snug_status bench_run(const struct compiled_step *compiled, int n_steps, const char *type,
                           struct report_bench *bench, struct snug_error *err);

/* bench_busy.c.  Takes in another measurement of the limits: the best of each counts, and limit_spread is how far
 * they were apart. */
void bench_note_limits(struct report_bench *bench, const struct device_limits *again);
/* Were others at work, so that these rates are not to be kept? */
bool bench_is_busy(const struct report_bench *bench);

/* Measures the limits of a CPU once more and sets is_busy. */
enum snug_status bench_measure_again(const struct compiled_step *compiled,
                                     struct report_bench *bench, struct snug_error *err);

/* The seconds of every op in n_steps steps on random data (after one that does not count): of op i in
 * step k, all its executions together, at seconds[i * n_steps + k]. */
enum snug_status bench_op_seconds(const struct compiled_step *compiled, int n_steps,
                                  double *seconds, struct snug_error *err);

/* bench_kernels.c: the largest op of each kind of interest, lifted out of the step and run alone. */
enum snug_status bench_kernels(const struct compiled_step *compiled, const char *type,
                               const struct device_limits *limits, struct report_bench *bench,
                               struct snug_error *err);

/* Adds one op that took `seconds` for `times` executions to a row, and says what limits the row. */
void bench_add_op(struct report_rate *row, const struct compiled_step *compiled,
                  const struct op *op, double times, double seconds,
                  const struct device_limits *limits);

#endif
