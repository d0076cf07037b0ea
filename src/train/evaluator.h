/*
 * evaluator.h -- runs the forward program on the held-out split.
 */
#ifndef SNUG_TRAIN_EVALUATOR_H
#define SNUG_TRAIN_EVALUATOR_H

#include "comm/comm.h"
#include "exec/exec.h"
#include "train/input_spec.h"

struct evaluator {
    struct compiled_step compiled;
    struct exec *exec;
    struct input_spec input_spec;
    struct data *data; /* borrowed */
    int64_t n_samples; /* to score */
    int64_t first;     /* first sample of the current batch */
    int64_t n_now;     /* samples that the current batch scores */
    struct comm *comm; /* the ranks of a pipeline; NULL if this rank has all stages */
    /* The ranks that run the same batches and stop together; NULL for a single rank. */
    struct comm *ranks;
    /* Called with the progress; returns true to stop the evaluation.  May be NULL. */
    bool (*stop)(void *user, int64_t done, int64_t total);
    void *stop_user;
};
/* Scores at most max_samples (0: all, but at most 131,072 tokens of text), independent of the
 * micro-batch.  request->micro_batch is the largest micro-batch to run.  `shared`: run in the arena
 * of that exec, which has arena_limit bytes.  With several ranks, all must call this and
 * evaluator_run. */
enum snug_status evaluator_make(struct evaluator *evaluator, const struct compile_request *request,
                                struct exec *shared, struct data *data, int64_t max_samples,
                                int64_t arena_limit, struct comm *comm, struct snug_error *err);
/* SNUG_DIVERGED: the loss is not finite; the message names the first non-finite tensor.
 * SNUG_INTERRUPTED: stopped on request, on all ranks. */
enum snug_status evaluator_run(struct evaluator *evaluator, struct snug_eval_result *result,
                               struct snug_error *err);
void evaluator_free(struct evaluator *evaluator);

#endif
