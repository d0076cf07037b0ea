/*
 * plugin.h -- backends that are loaded as plugins when a program runs.
 */
#ifndef SNUG_EXEC_PLUGIN_H
#define SNUG_EXEC_PLUGIN_H

#include "exec/backend.h"

/* The backend that runs what `planned` planned: itself, or the plugin's, which is loaded.  On
 * failure the message names what is missing. */
enum snug_status plugin_backend(const struct backend *planned, const struct backend **runs,
                                struct snug_error *err);

/* For `snug --version`: one or two lines about the plugin, the driver and NCCL. */
void plugin_describe(struct text *out);

/* Do both have the same kernels under the same numbers?  A plan refers to kernels by number. */
bool plugin_has_kernels_of(const struct backend *planned, const struct backend *runs);

#endif
