/*
 * agree.h -- what the ranks of a run settle among themselves, beside the numbers of the model.
 */
#ifndef SNUG_TRAIN_AGREE_H
#define SNUG_TRAIN_AGREE_H

#include "train/trainer.h"

/* Refuses ranks that were started with other flags or data than rank 0: all ranks come to it. */
enum snug_status trainer_agree(const struct snug_trainer *trainer, struct snug_error *err);

/* Does one of the ranks say so?  Then all do; all come to it. */
enum snug_status agree_on_any(struct comm *comm, bool *flag, struct snug_error *err);

#endif
