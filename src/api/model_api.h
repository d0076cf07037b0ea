/*
 * model_api.h -- opens a model folder, for snug_model_open and the functions that take a run.
 */
#ifndef SNUG_API_MODEL_API_H
#define SNUG_API_MODEL_API_H

#include <string.h>

#include "model/model.h"

/* Is it a name, and more than the ending alone, that ends so? */
static inline bool name_ends_in(const char *name, const char *ending)
{
    size_t n = strlen(name), m = strlen(ending);
    return n > m && strcmp(name + n - m, ending) == 0;
}

/* path: a folder with config.json (and weights), or the config.json itself. */
enum snug_status open_model_folder(const char *path, struct snug_model *model,
                                   struct snug_error *err);

#endif
