/*
 * fallback.c -- own kernels that stand behind those of a library.
 */
#include "cuda/dispatch/fallback.h"

static const struct kernel *find_own(kernels_fn *own, const struct program *prog,
                                     const struct op *op)
{
    return kernels_at(&own, 1, kernels_find(&own, 0, 1, prog, op, op->kind));
}

size_t cuda_fallback_workspace(kernels_fn *own, size_t library_bytes, const struct program *prog,
                               const struct op *op, const struct device_facts *facts)
{
    const struct kernel *row = find_own(own, prog, op);
    size_t own_bytes =
        row == NULL || row->workspace_bytes == NULL ? 0 : row->workspace_bytes(prog, op, facts);
    return library_bytes > own_bytes ? library_bytes : own_bytes;
}

enum snug_status cuda_fallback_prepare(kernels_fn *own, const struct program *prog,
                                       const struct op *op, const struct device_facts *facts,
                                       struct cuda_fallback *fallback, struct snug_error *err)
{
    fallback->row = find_own(own, prog, op);
    if (fallback->row == NULL)
        return snug_fail(err, SNUG_UNSUPPORTED,
                         "%s: the library refuses it, and there is no own kernel",
                         op_infos[op->kind].name);
    return fallback->row->prepare == NULL
               ? SNUG_OK
               : fallback->row->prepare(prog, op, facts, &fallback->prepared, err);
}

void cuda_fallback_release(const struct cuda_fallback *fallback)
{
    if (fallback->row != NULL && fallback->row->release != NULL)
        fallback->row->release(fallback->prepared);
}

enum snug_status cuda_fallback_run(const struct cuda_fallback *fallback,
                                   const struct kernel_call *call, struct snug_error *err)
{
    struct kernel_call own = *call;
    own.prepared = fallback->prepared;
    return fallback->row->run(&own, err);
}
