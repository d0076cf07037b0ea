/*
 * rank_save.h -- saving what lies on several ranks as if it lay on one.
 */
#ifndef SNUG_TRAIN_RANK_SAVE_H
#define SNUG_TRAIN_RANK_SAVE_H

#include "io/safetensors.h"
#include "train/trainer.h"

struct rank_parts;

/* All ranks come to it.  On rank 0, entries of all tensors of some roles (bit ROLE_...), wherever they
 * lie; both are the caller's.  Elsewhere none. */
enum snug_status rank_save_entries(struct snug_trainer *trainer, unsigned roles,
                                   struct st_entry **entries, int *n, struct rank_parts **parts,
                                   struct snug_error *err);
void rank_parts_free(struct rank_parts *parts);

/* While rank 0 writes, the others give it what it asks for, until it says that it is done. */
enum snug_status rank_save_serve(struct snug_trainer *trainer, struct snug_error *err);
enum snug_status rank_save_done(struct snug_trainer *trainer, struct snug_error *err);

#endif
