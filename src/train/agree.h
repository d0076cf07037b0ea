/*
 * agree.h -- agreement between the ranks of a run: same flags and data, and shared decisions.
 */
#ifndef SNUG_TRAIN_AGREE_H
#define SNUG_TRAIN_AGREE_H

#include "train/trainer.h"

/* Refuses a rank whose flags or data differ from rank 0's.  Collective: all ranks must call it. */
enum snug_status trainer_agree(const struct snug_trainer *trainer, struct snug_error *err);

/* Sets *flag on all ranks if it is set on any of them.  Collective. */
enum snug_status agree_on_any(struct comm *comm, bool *flag, struct snug_error *err);

#endif
