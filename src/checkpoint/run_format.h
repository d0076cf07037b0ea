/*
 * run_format.h -- the number "format" of state.json: which rules a saved run was trained by.
 */
#ifndef SNUG_CHECKPOINT_RUN_FORMAT_H
#define SNUG_CHECKPOINT_RUN_FORMAT_H

#include "io/json.h"

enum { RUN_FORMAT = 3 }; /* what is written today */

/* Changes the saved recipe of an older run so that it goes on by the rules that it began with.  Refuses
 * a run that was saved by a newer snug. */
enum snug_status run_format_migrate(json_t *state, const char *run, struct snug_error *err);

#endif
