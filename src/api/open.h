/*
 * open.h -- opening saved things, shared by the commands of the public interface.
 */
#ifndef SNUG_API_OPEN_H
#define SNUG_API_OPEN_H

#include "train/session.h"
#include "train/trainer.h"

/* A folder with config.json (and weights), or the config.json itself. */
enum snug_status open_model_folder(const char *path, struct snug_model *model,
                                   struct snug_error *err);

/* What the run was trained on; NULL if it does not say.  The caller's. */
char *open_data_spec(const char *run);
/* Whether it was trained on bytes of text. */
bool open_is_bytes(const char *run);
/* The length of its sequences, 0 if it does not say. */
int64_t open_seq(const char *run);

#endif
