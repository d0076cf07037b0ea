/*
 * plugin_file.h -- finds the shared objects that snug loads on demand.
 */
#ifndef SNUG_BASE_PLUGIN_FILE_H
#define SNUG_BASE_PLUGIN_FILE_H

#include <limits.h>
#include <stdbool.h>

/* Looks for the file in ../lib/, relative to the folder of the executable or library that contains
 * this code, and then in that folder.  If it is in neither, returns false and the second path. */
bool plugin_file_find(const char *name, char path[PATH_MAX]);

#endif
