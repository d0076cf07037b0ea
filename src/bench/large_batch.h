/*
 * large_batch.h -- what a larger batch costs in accuracy, and which learning rate makes up for it.
 */
#ifndef SNUG_BENCH_LARGE_BATCH_H
#define SNUG_BENCH_LARGE_BATCH_H

#include "report/report.h"
#include "recipe/recipe.h"

/* Trains the model at the recipe's batch, then at the larger one with the learning rate as it is,
 * times the root of the ratio and times the ratio, without warm-up and with it; each with n_seeds
 * seeds.  `say` hears a line a run.  Names are the caller's to set. */
enum snug_status large_batch_run(const snug_model *model, const struct snug_recipe *recipe,
                                 const struct snug_large_batch *options, snug_say_fn *say,
                                 void *user, struct report_large_batch *result,
                                 struct snug_error *err);

#endif
