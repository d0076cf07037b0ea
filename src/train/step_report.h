/*
 * step_report.h -- the report of a compiled step: `snug plan` shows it, a run saves it as
 * plan.json.
 */
#ifndef SNUG_TRAIN_STEP_REPORT_H
#define SNUG_TRAIN_STEP_REPORT_H

#include "report/report.h"
#include "compile/compile.h"

/* Fills *report except for its alternatives.  `line` receives the description of the recipe and
 * must outlive *report. */
bool step_report(const struct compiled_step *compiled, const struct snug_recipe *recipe,
                 const char *model_name, struct text *line, struct report_plan *report);
char *step_report_json(const struct compiled_step *compiled, const struct snug_recipe *recipe,
                       const char *model_name); /* for the caller to free; NULL if out of memory */

#endif
