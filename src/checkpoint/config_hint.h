/*
 * config_hint.h -- which key of config.json explains that a model and its weights do not match.
 */
#ifndef SNUG_CHECKPOINT_CONFIG_HINT_H
#define SNUG_CHECKPOINT_CONFIG_HINT_H

#include "io/safetensors.h"

enum { CONFIG_HINT_MAX = 96 };

/* For a tensor that the model has and the file lacks, or the other way round: the end of a message
 * that names the key (": check "num_hidden_layers" in config.json"), or "" if none is known. */
const char *config_hint(const struct program *prog, const struct safetensors *st, const char *name,
                        char out[CONFIG_HINT_MAX]);

#endif
