/*
 * budget.h -- does a plan fit?
 */
#ifndef SNUG_COMPILE_BUDGET_H
#define SNUG_COMPILE_BUDGET_H

#include "compile/compile.h"

/* "the budget" if the user gave --memory, else where the limit comes from: "the GPU's memory". */
const char *budget_name(const struct snug_recipe *recipe);

/* text_size, but rounded up: a budget of the printed size is enough. */
const char *budget_size(int64_t bytes, char out[TEXT_SIZE_MAX]);

/* Compares the plan plus the runtime with `limit_bytes`, called `limit_name` in the message ("the
 * budget", "the default budget").  If it is over, fails with SNUG_OVER_BUDGET and suggests the
 * recipe that fits with the smallest change (advice.h), or the smallest one. */
enum snug_status budget_check(const struct snug_model *model, const struct snug_recipe *recipe,
                              const struct compiled_step *compiled, int64_t limit_bytes,
                              const char *limit_name, struct snug_error *err);

/* For a run on this machine: the limit is --memory, or the machine's memory if that is less. */
enum snug_status budget_check_run(const struct snug_model *model, const struct snug_recipe *recipe,
                                  const struct compiled_step *compiled, struct snug_error *err);

/* The same for a forward-only compiled step; the message suggests no other recipe. */
enum snug_status budget_check_forward(const struct compiled_step *compiled,
                                      const struct snug_recipe *recipe, const char *name,
                                      struct snug_error *err);

#endif
