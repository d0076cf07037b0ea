/*
 * plugin.c -- finds libsnug_cuda.so and takes its backend.
 *
 * It is looked for where SNUG_CUDA_PLUGIN says, or beside the program or library that this code is part
 * of, or in the lib folder beside that one's.  It stays loaded until the process ends.
 */
#include "exec/plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"

static const char file_name[] = "libsnug_cuda.so";

/* The path of what is there; false: nothing is, and the path is where it was looked for first. */
static bool find_plugin(char path[PATH_MAX])
{
    static const char *const places[] = {"", "../lib/"};
    const char *wish = getenv("SNUG_CUDA_PLUGIN");
    Dl_info self;
    char real[PATH_MAX];
    if (wish != NULL && wish[0] != '\0')
        return snprintf(path, PATH_MAX, "%s", wish) < PATH_MAX && access(path, R_OK) == 0;
    snprintf(path, PATH_MAX, "%s", file_name);
    if (dladdr(file_name, &self) == 0 || self.dli_fname == NULL)
        return false;
    /* of a program, the name may be what it was called by */
    const char *name = realpath(self.dli_fname, real);
    if (name == NULL || access(name, R_OK) != 0)
        name = realpath("/proc/self/exe", real);
    const char *slash = name == NULL ? NULL : strrchr(name, '/');
    int length = slash == NULL ? 0 : (int)(slash - name) + 1;
    for (int i = 1; i >= 0 && length > 0; i--)
        if (snprintf(path, PATH_MAX, "%.*s%s%s", length, name, places[i], file_name) < PATH_MAX &&
            access(path, R_OK) == 0)
            return true;
    return false;
}

typedef const struct backend *entry_fn(void);

/* A pointer to data as one to a function: what dlsym is for. */
static entry_fn *entry_of(void *library)
{
    entry_fn *entry = NULL;
    void *symbol = dlsym(library, "snug_cuda_backend");
    memcpy(&entry, &symbol, sizeof entry);
    return entry;
}

static enum snug_status load(const struct backend **out, struct snug_error *err)
{
    char path[PATH_MAX];
    if (!find_plugin(path))
        return snug_fail(err, SNUG_UNSUPPORTED,
                         "--device cuda: there is no plugin %s; build snug where nvcc is, or set "
                         "SNUG_CUDA_PLUGIN",
                         path);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return snug_fail(err, SNUG_UNSUPPORTED, "--device cuda: the plugin does not load: %s",
                         dlerror());
    entry_fn *entry = entry_of(library);
    const struct backend *backend = entry == NULL ? NULL : entry();
    if (backend == NULL || backend->version == NULL ||
        strcmp(backend->version, SNUG_VERSION_STRING) != 0)
        return snug_fail(err, SNUG_MISMATCH,
                         "--device cuda: %s is of another version than this snug (%s)", path,
                         SNUG_VERSION_STRING);
    *out = backend;
    return SNUG_OK;
}

enum snug_status plugin_backend(const struct backend *planned, const struct backend **runs,
                                struct snug_error *err)
{
    *runs = planned;
    return planned->alloc != NULL ? SNUG_OK : load(runs, err);
}

void plugin_describe(struct text *out)
{
    char path[PATH_MAX];
    if (!find_plugin(path)) {
        text_add(out, "without CUDA: no plugin was built or found\n");
        return;
    }
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    text_add(out, "CUDA: plugin %s, %s\n", path,
             driver != NULL ? "driver found" : "no driver on this machine");
    if (driver != NULL)
        dlclose(driver);
}
