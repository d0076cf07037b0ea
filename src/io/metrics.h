/*
 * metrics.h -- metrics.jsonl: one line of JSON a step, each step once.
 *
 * A run that is resumed from step S repeats what came after S; those lines are cut off first.
 */
#ifndef SNUG_IO_METRICS_H
#define SNUG_IO_METRICS_H

#include "io/file.h"

struct metrics;

/* Opens or makes the file and keeps its lines up to step `keep_steps`; 0: begins anew. */
enum snug_status metrics_open(const char *path, int64_t keep_steps, struct metrics **out,
                              struct snug_error *err);
/* `line` is a JSON object without the newline.  After a failure the file ends with a whole line. */
enum snug_status metrics_append(struct metrics *metrics, const char *line,
                                struct file_faults *faults, struct snug_error *err);
/* A line that is not complete yet, but must not be lost with the process: until the next append, or until the
 * file is opened again at its step, it is in PATH.held. */
enum snug_status metrics_hold(struct metrics *metrics, const char *line, struct file_faults *faults,
                              struct snug_error *err);
void metrics_close(struct metrics *metrics);

/* What a log says so far. */
struct metrics_tally {
    bool is_log; /* every whole line is that of a step */
    int64_t n_steps, last_step;
    double loss; /* of the last step; NaN: it has none */
};
enum snug_status metrics_count(const char *path, struct metrics_tally *tally,
                               struct snug_error *err);

#endif
