/*
 * oprun.h -- runs one op of a case with one kernel row, with every byte around it watched.
 */
#ifndef SNUG_TESTS_OPRUN_H
#define SNUG_TESTS_OPRUN_H

#include "exec/backend.h"
#include "support/opcase.h"

struct row_run {
    const struct kernel *row;
    struct device_facts facts;
    /* Whose memory the operands lie in, open as facts.device; NULL: the host's. */
    const struct backend *device_of;
    bool add;    /* outputs that accumulate: += onto random values */
    int inplace; /* the input that output 0 lies on, or -1 */
    /* Timing: run this many times, report the best seconds. */
    int n_repeat;
    double best_seconds;
};

struct row_result {
    void *out[MAX_OUTPUTS]; /* what the op left; NULL: left out */
};

/*
 * Copies the op's operands from c->data into buffers with guard bytes at both ends, gives the row
 * exactly the workspace that it books, and runs it.  Outputs start as NaN, or as random values
 * where the row adds to them.  SNUG_MISMATCH: a guard byte or an input changed.  c is as before.
 */
enum snug_status oprun(const struct opcase *c, int op_index, struct row_run *run,
                       struct row_result *result, struct snug_error *err);
void row_result_free(struct row_result *result);

/* The instruction levels, for tests that try each.  Setting one says whether it is there to be
 * tried; the first time that tiles are not, it also prints so.  NULL: back to the default. */
enum { N_OPRUN_LEVELS = 5 };
extern const char *const oprun_levels[N_OPRUN_LEVELS];
bool oprun_set_level(const char *level);

/* Runs the row and leaves its results in c->data. */
enum snug_status oprun_step(struct opcase *c, int op_index, const struct kernel *row,
                            struct snug_error *err);

/* max |a - b| / (max |b| + tiny) over a tensor; infinity where one is NaN and the other is not. */
double oprun_error(const struct tensor *tensor, const void *a, const void *b);

/* How far a fast row may be from the reference; see oprun.c for the reasons. */
double oprun_tolerance(const struct opcase *c, const struct op *op, int output, enum dtype dtype);

#endif
