/*
 * plugin.h -- backends that are loaded when they are to run.
 */
#ifndef SNUG_EXEC_PLUGIN_H
#define SNUG_EXEC_PLUGIN_H

#include "exec/backend.h"

/* The backend that runs what `planned` planned: itself, or the one of the plugin, which is loaded.  The
 * failure says in a line what is missing. */
enum snug_status plugin_backend(const struct backend *planned, const struct backend **runs,
                                struct snug_error *err);

/* For `snug --version`: is the plugin there, is a driver, is NCCL?  A line or two. */
void plugin_describe(struct text *out);

/* Has every kernel the same number in both?  A plan names kernels by their numbers. */
bool plugin_has_kernels_of(const struct backend *planned, const struct backend *runs);

#endif
