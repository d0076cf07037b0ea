/*
 * progress.h -- the progress of a run, for a terminal or a log.
 */
#ifndef SNUG_CLI_PROGRESS_H
#define SNUG_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdio.h>

#include "snug.h"

enum progress_mode {
    PROGRESS_NONE,
    PROGRESS_LIVE, /* one line, redrawn in place; evaluations and saves scroll above it */
    PROGRESS_LINES /* a few plain lines */
};

struct progress {
    enum progress_mode mode;
    FILE *to;
    const char *unit;         /* "tokens" or "samples" */
    struct snug_metrics last; /* step 0: no step yet */
    struct snug_metrics last_validation;
    double begun_s, drawn_s; /* CLOCK_MONOTONIC */
    int64_t first_step;
    bool line_is_open;   /* a live line is on the screen */
    double evaluation_s; /* start of the current evaluation; 0: no evaluation */
    const char *out;     /* NULL: nothing is saved */
    bool is_mute;        /* rank > 0: prints nothing */
};

void progress_begin(struct progress *progress, enum progress_mode mode, FILE *to);
/* Call before the first step, when the unit is known. */
void progress_start_clock(struct progress *progress, const char *unit);
int progress_step(const struct snug_metrics *metrics, void *progress); /* a snug_progress_fn */
int progress_watch(const struct snug_doing *doing, void *progress);    /* a snug_watch_fn */
void progress_end(struct progress *progress);                          /* clears the live line */

#endif
