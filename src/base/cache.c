/*
 * cache.c -- the cache folder.  See cache.h.
 */
#include "base/cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/text.h"

enum snug_status cache_folder(char **folder, struct snug_error *err)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    struct text path = {0};
    if (cache != NULL && *cache != '\0')
        text_add(&path, "%s/snug", cache);
    else if (home != NULL && *home != '\0')
        text_add(&path, "%s/.cache/snug", home);
    bool has_home = path.data != NULL || path.failed;
    *folder = has_home ? text_take(&path) : NULL;
    return has_home && *folder == NULL
               ? snug_fail(err, SNUG_NO_MEMORY, "no memory for the path of the cache folder")
               : SNUG_OK;
}

enum snug_status cache_make_folder(const char *folder, struct snug_error *err)
{
    struct text part = {0};
    enum snug_status status = SNUG_OK;
    for (const char *end = strchr(folder + 1, '/'); status == SNUG_OK;
         end = end == NULL ? NULL : strchr(end + 1, '/')) {
        text_free(&part);
        text_add(&part, "%.*s", end == NULL ? (int)strlen(folder) : (int)(end - folder), folder);
        if (part.failed)
            status = snug_fail(err, SNUG_NO_MEMORY, "out of memory");
        else if (mkdir(part.data, 0777) != 0 && errno != EEXIST)
            status =
                snug_fail(err, SNUG_IO_ERROR, "cannot create %s: %s", part.data, strerror(errno));
        if (end == NULL)
            break;
    }
    text_free(&part);
    return status;
}
