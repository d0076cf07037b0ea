/*
 * cache.h -- the folder in which snug keeps what it has measured, from one run to the next.
 */
#ifndef SNUG_BASE_CACHE_H
#define SNUG_BASE_CACHE_H

#include "base/status.h"

/* $XDG_CACHE_HOME/snug, or ~/.cache/snug: it need not be there.  *folder is the caller's; NULL: there
 * is no home. */
enum snug_status cache_folder(char **folder, struct snug_error *err);

/* The folder and those above it; one that is there already is no mistake. */
enum snug_status cache_make_folder(const char *folder, struct snug_error *err);

#endif
