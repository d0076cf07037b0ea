/*
 * plugin_file.h -- where the shared objects lie that snug loads when they are needed.
 */
#ifndef SNUG_BASE_PLUGIN_FILE_H
#define SNUG_BASE_PLUGIN_FILE_H

#include <limits.h>
#include <stdbool.h>

/* The path of the file of that name in the lib folder beside the one of the program or library that this
 * code is part of, or beside that itself.  False: it is in neither, and the path is the second. */
bool plugin_file_find(const char *name, char path[PATH_MAX]);

#endif
