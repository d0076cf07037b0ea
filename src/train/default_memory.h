/*
 * default_memory.h -- the memory budget of --checkpoint auto when --memory is not given.
 */
#ifndef SNUG_TRAIN_DEFAULT_MEMORY_H
#define SNUG_TRAIN_DEFAULT_MEMORY_H

#include "train/trainer.h"

/* --checkpoint auto without --memory: sets the recipe's memory, and memory_origin to where it comes
 * from.  n_ranks_here ranks share the machine.  Other recipes are left unchanged. */
enum snug_status default_memory_set(struct snug_recipe *recipe, int n_ranks_here,
                                    struct snug_error *err);
/* The same for a run.  All ranks must plan with the same budget, so they take the smallest.
 * Collective. */
enum snug_status default_memory_agree(struct snug_trainer *trainer, struct snug_error *err);

#endif
