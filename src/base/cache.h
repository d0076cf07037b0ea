/*
 * cache.h -- the folder in which snug keeps what it has measured, from one run to the next.
 */
#ifndef SNUG_BASE_CACHE_H
#define SNUG_BASE_CACHE_H

#include "base/status.h"

/* $XDG_CACHE_HOME/snug, or ~/.cache/snug: it need not be there.  The caller's; NULL: no memory, or no
 * home. */
char *cache_folder(void);

/* The folder and those above it; one that is there already is no mistake. */
enum snug_status cache_make_folder(const char *folder, struct snug_error *err);

#endif
