/*
 * plugin.c -- find and load libsnug_cuda.so.
 *
 * SNUG_CUDA_PLUGIN names its path; otherwise it is searched for in the plugin folders
 * (base/plugin_file.h).  It stays loaded until the process ends.
 */
#include "exec/plugin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/plugin_file.h"
#include "base/text.h"

/* The path of the plugin.  False if it does not exist; the path is then where it was expected. */
static bool find_plugin(char path[PATH_MAX])
{
    const char *given = getenv("SNUG_CUDA_PLUGIN");
    if (given == NULL || given[0] == '\0')
        return plugin_file_find("libsnug_cuda.so", path);
    return snprintf(path, PATH_MAX, "%s", given) < PATH_MAX && access(path, R_OK) == 0;
}

typedef const struct backend *entry_fn(void);

/* ISO C has no cast from dlsym's void * to a function pointer, hence the memcpy. */
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
        return snug_fail(
            err, SNUG_UNSUPPORTED,
            "--device cuda: plugin %s not found; build snug on a machine with nvcc, or "
            "set SNUG_CUDA_PLUGIN",
            path);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return snug_fail(err, SNUG_UNSUPPORTED, "--device cuda: cannot load the plugin: %s",
                         dlerror());
    entry_fn *entry = entry_of(library);
    const struct backend *backend = entry == NULL ? NULL : entry();
    if (backend == NULL || backend->version == NULL ||
        strcmp(backend->version, SNUG_VERSION_STRING) != 0)
        return snug_fail(err, SNUG_MISMATCH,
                         "--device cuda: %s is for another version of snug, not %s: rebuild it",
                         path, SNUG_VERSION_STRING);
    *out = backend;
    return SNUG_OK;
}

bool plugin_has_kernels_of(const struct backend *planned, const struct backend *runs)
{
    for (int number = 1;; number++) {
        const struct kernel *a = planned->kernel(number), *b = runs->kernel(number);
        if (a == NULL || b == NULL)
            return a == b;
        if (a->kind != b->kind || strcmp(a->name, b->name) != 0)
            return false;
    }
}

enum snug_status plugin_backend(const struct backend *planned, const struct backend **runs,
                                struct snug_error *err)
{
    *runs = planned;
    if (planned->alloc != NULL)
        return SNUG_OK;
    TRY(load(runs, err));
    return plugin_has_kernels_of(planned, *runs)
               ? SNUG_OK
               : snug_fail(
                     err, SNUG_MISMATCH,
                     "--device cuda: the kernels of the plugin and of this snug differ; build "
                     "both from the same source with make");
}

/* NCCL, which only the plugin can find. */
static void describe_direct(struct text *out)
{
    char direct[DEVICE_TEXT_MAX] = "";
    const struct backend *backend;
    struct snug_error err = {0};
    if (load(&backend, &err) != SNUG_OK)
        text_add(out, "%s\n", err.message);
    else if (backend->hooks->direct->find(direct))
        text_add(out, "%s: used by ranks that have a GPU each\n", direct);
    else
        text_add(out, "without NCCL, %s: ranks on GPUs communicate through the host\n", direct);
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
    describe_direct(out);
}
