/*
 * run_format.h -- the "format" number of state.json, and migration of older runs.
 */
#ifndef SNUG_CHECKPOINT_RUN_FORMAT_H
#define SNUG_CHECKPOINT_RUN_FORMAT_H

#include "io/json.h"

enum { RUN_FORMAT = 3 }; /* what is written today */

/* Rewrites the saved recipe of an older run so that it keeps training by the rules it started with.
 * Refuses a run saved by a newer snug. */
enum snug_status run_format_migrate(json_t *state, const char *run, struct snug_error *err);

#endif
