/*
 * progress.h -- how a run goes on, for someone who watches or for a log.
 */
#ifndef SNUG_CLI_PROGRESS_H
#define SNUG_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdio.h>

#include "snug.h"

enum progress_mode {
    PROGRESS_NONE,
    PROGRESS_LIVE, /* one line, redrawn; evaluations and saves stay above it */
    PROGRESS_LINES /* plain lines, few */
};

struct progress {
    enum progress_mode mode;
    FILE *to;
    const char *unit;         /* "tokens" or "samples" */
    struct snug_metrics last; /* step 0: none yet */
    struct snug_metrics last_validation;
    double begun_s, drawn_s; /* by the monotonic clock */
    int64_t first_step;
    bool line_is_open;   /* a live line is on the screen */
    double evaluation_s; /* when the present evaluation began; 0: there is none */
    const char *out;     /* NULL: nothing is saved */
    bool is_mute;        /* of several ranks, one speaks */
};

void progress_begin(struct progress *progress, enum progress_mode mode, FILE *to);
/* Call before the first step, once the trainer knows what it counts. */
void progress_start_clock(struct progress *progress, const char *unit);
int progress_step(const struct snug_metrics *metrics, void *progress); /* a snug_progress_fn */
int progress_watch(const struct snug_doing *doing, void *progress);    /* a snug_watch_fn */
void progress_end(struct progress *progress);                          /* clears the live line */

#endif
