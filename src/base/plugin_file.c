/*
 * plugin_file.c -- finds a plugin relative to the file that this code was loaded from.
 */
#include "base/plugin_file.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool plugin_file_find(const char *name, char path[PATH_MAX])
{
    static const char *const places[] = {"../lib/", ""};
    Dl_info self;
    char real[PATH_MAX];
    snprintf(path, PATH_MAX, "%s", name);
    if (dladdr(places, &self) == 0 || self.dli_fname == NULL)
        return false;
    /* for an executable, dli_fname may be argv[0], which need not be a path */
    const char *own = realpath(self.dli_fname, real);
    if (own == NULL || access(own, R_OK) != 0)
        own = realpath("/proc/self/exe", real);
    const char *slash = own == NULL ? NULL : strrchr(own, '/');
    int length = slash == NULL ? 0 : (int)(slash - own) + 1;
    for (size_t i = 0; i < sizeof places / sizeof *places && length > 0; i++)
        if (snprintf(path, PATH_MAX, "%.*s%s%s", length, own, places[i], name) < PATH_MAX &&
            access(path, R_OK) == 0)
            return true;
    return false;
}
