/*
 * fallback.c -- our own kernels for ops that a library rejects.
 */
#include "cuda/dispatch/fallback.h"

static const struct kernel *find_kernel(kernels_fn *kernels, const struct program *prog,
                                        const struct op *op)
{
    return kernels_at(&kernels, 1, kernels_find(&kernels, 0, 1, prog, op, op->kind));
}

size_t cuda_fallback_workspace(kernels_fn *kernels, size_t library_bytes,
                               const struct program *prog, const struct op *op,
                               const struct device_facts *facts)
{
    const struct kernel *kernel = find_kernel(kernels, prog, op);
    size_t fallback_bytes = kernel == NULL || kernel->workspace_bytes == NULL
                                ? 0
                                : kernel->workspace_bytes(prog, op, facts);
    return library_bytes > fallback_bytes ? library_bytes : fallback_bytes;
}

enum snug_status cuda_fallback_prepare(kernels_fn *kernels, const struct program *prog,
                                       const struct op *op, const struct device_facts *facts,
                                       struct cuda_fallback *fallback, struct snug_error *err)
{
    fallback->kernel = find_kernel(kernels, prog, op);
    if (fallback->kernel == NULL)
        return snug_fail(err, SNUG_UNSUPPORTED,
                         "%s: cuDNN rejects this op and there is no fallback kernel for it",
                         op_infos[op->kind].name);
    return fallback->kernel->prepare == NULL
               ? SNUG_OK
               : fallback->kernel->prepare(prog, op, facts, &fallback->prepared, err);
}

void cuda_fallback_release(const struct cuda_fallback *fallback)
{
    if (fallback->kernel != NULL && fallback->kernel->release != NULL)
        fallback->kernel->release(fallback->prepared);
}

enum snug_status cuda_fallback_run(const struct cuda_fallback *fallback,
                                   const struct kernel_call *call, struct snug_error *err)
{
    struct kernel_call fallback_call = *call;
    fallback_call.prepared = fallback->prepared;
    return fallback->kernel->run(&fallback_call, err);
}
