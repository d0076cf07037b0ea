/*
 * oprun.h -- runs one op of a case with one kernel, between guard bytes.
 */
#ifndef SNUG_TESTS_OPRUN_H
#define SNUG_TESTS_OPRUN_H

#include "exec/backend.h"
#include "support/opcase.h"

struct row_run {
    const struct kernel *row;
    struct device_facts facts;
    /* The backend whose memory holds the operands, open as facts.device; NULL: host memory. */
    const struct backend *device_of;
    bool add;    /* accumulating outputs: += onto random values */
    int inplace; /* the input that output 0 aliases, or -1 */
    /* For timing: how many times to run; the best is reported. */
    int n_repeat;
    double best_seconds;
};

struct row_result {
    void *out[MAX_OUTPUTS]; /* the results; NULL: left out */
};

/*
 * Copies the op's operands from c->data into buffers with guard bytes at both ends, gives the kernel
 * exactly the workspace that it books, and runs it.  Outputs start as NaN, or as random values if
 * the kernel adds to them.  Returns SNUG_MISMATCH if a guard byte or an input changed.  c is unchanged.
 */
enum snug_status oprun(const struct opcase *c, int op_index, struct row_run *run,
                       struct row_result *result, struct snug_error *err);
void row_result_free(struct row_result *result);

/* The instruction levels, for tests that run each.  Setting one returns whether it is available;
 * the first time that AMX is not, this is also printed.  NULL restores the default. */
enum { N_OPRUN_LEVELS = 5 };
extern const char *const oprun_levels[N_OPRUN_LEVELS];
bool oprun_set_level(const char *level);

/* Runs the kernel and stores its results in c->data. */
enum snug_status oprun_step(struct opcase *c, int op_index, const struct kernel *row,
                            struct snug_error *err);

/* max |a - b| / (max |b| + tiny) over a tensor; infinity if only one of a, b is NaN. */
double oprun_error(const struct tensor *tensor, const void *a, const void *b);

/* The allowed error of a fast kernel; oprun.c explains it. */
double oprun_tolerance(const struct opcase *c, const struct op *op, int output, enum dtype dtype);

#endif
