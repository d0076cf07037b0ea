/*
 * metrics.h -- metrics.jsonl: one line of JSON per step, each step exactly once.
 *
 * A run resumed from step S repeats the steps after S.  Their old lines are removed first.
 */
#ifndef SNUG_IO_METRICS_H
#define SNUG_IO_METRICS_H

#include "io/file.h"

struct metrics;

/* Opens or creates the file and keeps its lines up to step `keep_steps`.  0 empties the file. */
enum snug_status metrics_open(const char *path, int64_t keep_steps, struct metrics **out,
                              struct snug_error *err);
/* `line` is a JSON object without a newline.  After a failure the file ends with a complete
 * line. */
enum snug_status metrics_append(struct metrics *metrics, const char *line,
                                struct file_faults *faults, struct snug_error *err);
/* Stores a line that is not final yet in PATH.held, so that it survives the process.  The next
 * append replaces it.  metrics_open appends it if it reopens the file at the line's step. */
enum snug_status metrics_hold(struct metrics *metrics, const char *line, struct file_faults *faults,
                              struct snug_error *err);
void metrics_close(struct metrics *metrics);

/* Summary of a log. */
struct metrics_tally {
    bool is_log; /* every complete line has a step */
    int64_t n_steps, last_step;
    double loss; /* of the last step; NaN if it has none */
};
enum snug_status metrics_count(const char *path, struct metrics_tally *tally,
                               struct snug_error *err);

#endif
