/*
 * default_memory.h -- the budget of a recipe that needs one and was not given any.
 */
#ifndef SNUG_TRAIN_DEFAULT_MEMORY_H
#define SNUG_TRAIN_DEFAULT_MEMORY_H

#include "train/trainer.h"

/* --checkpoint auto without --memory: sets the memory of the recipe and says in memory_origin where it comes
 * from.  n_ranks_here: so many ranks share the machine.  Leaves every other recipe as it is. */
enum snug_status default_memory_set(struct snug_recipe *recipe, int n_ranks_here,
                                    struct snug_error *err);
/* The same for a run: ranks plan alike, so all of them take the least that any of them has.  All come to it. */
enum snug_status default_memory_agree(struct snug_trainer *trainer, struct snug_error *err);

#endif
