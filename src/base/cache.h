/*
 * cache.h -- the folder where snug stores measurements between runs.
 */
#ifndef SNUG_BASE_CACHE_H
#define SNUG_BASE_CACHE_H

#include "base/status.h"

/* Returns $XDG_CACHE_HOME/snug or ~/.cache/snug, which may not exist.  The caller frees *folder; it
 * is NULL if neither XDG_CACHE_HOME nor HOME is set. */
enum snug_status cache_folder(char **folder, struct snug_error *err);

/* mkdir -p */
enum snug_status cache_make_folder(const char *folder, struct snug_error *err);

#endif
