/*
 * safetensors_folder.c -- open the weights of a folder; see safetensors.h.
 */
#include "io/safetensors.h"

#include <stdlib.h>

#include "base/fd.h"

enum snug_status safetensors_open_folder(const char *folder, struct safetensors **out,
                                         struct snug_error *err)
{
    char *path = path_join(folder, SAFETENSORS_MODEL, "");
    *out = NULL;
    if (path == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory opening the weights", folder);
    enum snug_status status = safetensors_open(path, out, err);
    free(path);
    return status;
}
