/*
 * step_report.h -- a compiled step as its report: what `snug plan` shows and a run keeps as plan.json.
 */
#ifndef SNUG_TRAIN_STEP_REPORT_H
#define SNUG_TRAIN_STEP_REPORT_H

#include "report/report.h"
#include "compile/compile.h"

/* Fills *report but for its alternatives.  `line` gets the recipe in words and must outlive it. */
bool plan_report(const struct compiled_step *compiled, const struct snug_recipe *recipe,
                 const char *model_name, struct text *line, struct report_plan *report);
char *plan_json(const struct compiled_step *compiled, const struct snug_recipe *recipe,
                const char *model_name); /* the caller's; NULL: out of memory */

#endif
