/*
 * budget.h -- does a plan fit?
 */
#ifndef SNUG_COMPILE_BUDGET_H
#define SNUG_COMPILE_BUDGET_H

#include "compile/compile.h"

/* "the budget", or where it comes from if it was not given. */
const char *budget_name(const struct snug_recipe *recipe);

/* Rounded up to a tenth of a GiB, or to a MiB: a budget of so much is enough. */
const char *budget_size(int64_t bytes, char out[TEXT_SIZE_MAX]);

/* The plan and the runtime beside it against `limit_bytes`, called `limit_name` in the message
 * ("the budget", "this machine's memory").  Over it: SNUG_OVER_BUDGET, and the mildest recipe that
 * fits (advice.h), or else the smallest. */
enum snug_status budget_check(const struct snug_model *model, const struct snug_recipe *recipe,
                              const struct compiled_step *compiled, int64_t limit_bytes,
                              const char *limit_name, struct snug_error *err);

/* For a run on this machine: against --memory, or against all the memory there is. */
enum snug_status budget_check_run(const struct snug_model *model, const struct snug_recipe *recipe,
                                  const struct compiled_step *compiled, struct snug_error *err);

/* The same for a forward-only compiled step, which has no smaller neighbours to offer. */
enum snug_status budget_check_forward(const struct compiled_step *compiled,
                                      const struct snug_recipe *recipe, const char *name,
                                      struct snug_error *err);

#endif
