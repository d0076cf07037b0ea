/*
 * open.h -- opening a folder with a model, for everything in the public interface that names one.
 */
#ifndef SNUG_API_OPEN_H
#define SNUG_API_OPEN_H

#include "model/model.h"

/* A folder with config.json (and weights), or the config.json itself. */
enum snug_status open_model_folder(const char *path, struct snug_model *model,
                                   struct snug_error *err);

#endif
