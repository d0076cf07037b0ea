/*
 * model_api.h -- opens a model folder, for snug_model_open and the functions that take a run.
 */
#ifndef SNUG_API_MODEL_API_H
#define SNUG_API_MODEL_API_H

#include "model/model.h"

/* path: a folder with config.json (and weights), or the config.json itself. */
enum snug_status open_model_folder(const char *path, struct snug_model *model,
                                   struct snug_error *err);

#endif
