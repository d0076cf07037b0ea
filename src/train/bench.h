/*
 * bench.h -- a training step as a table of ops: time, rate, and how far from the machine's limit.
 */
#ifndef SNUG_TRAIN_BENCH_H
#define SNUG_TRAIN_BENCH_H

#include "train/session.h"

struct bench_row { /* all ops of one kind */
    enum op_kind kind;
    int n_calls; /* per step */
    double seconds, flops, bytes;
    double
        floor_seconds; /* the least that the limits allow: flops or bytes, whichever takes longer */
};

struct bench_result {
    struct device_limits limits;
    struct bench_row rows[OP_COUNT]; /* kinds that occur, the longest first */
    int n_rows;
    double step_seconds; /* the median step, and what its ops add up to */
    double floor_seconds;
    int64_t tokens;
};

/* Runs n_steps training steps (after one that does not count) of a session on random data. */
enum snug_status bench_step(const struct session *session, int n_steps, struct bench_result *result,
                            struct snug_error *err);

#endif
