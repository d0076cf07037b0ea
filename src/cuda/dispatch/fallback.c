/*
 * fallback.c -- own rows that stand behind those of a library.
 */
#include "cuda/dispatch/fallback.h"

size_t cuda_behind_workspace(rows_fn *own, size_t library_bytes, const struct program *prog,
                             const struct op *op, const struct device_facts *facts)
{
    const struct kernel *row = rows_find(&own, 1, prog, op, op->kind);
    size_t own_bytes =
        row == NULL || row->workspace_bytes == NULL ? 0 : row->workspace_bytes(prog, op, facts);
    return library_bytes > own_bytes ? library_bytes : own_bytes;
}

enum snug_status cuda_behind_prepare(rows_fn *own, const struct program *prog, const struct op *op,
                                     const struct device_facts *facts, struct cuda_behind *behind,
                                     struct snug_error *err)
{
    behind->row = rows_find(&own, 1, prog, op, op->kind);
    if (behind->row == NULL)
        return snug_fail(err, SNUG_UNSUPPORTED,
                         "%s: the library refuses it, and there is no own kernel",
                         op_infos[op->kind].name);
    return behind->row->prepare == NULL
               ? SNUG_OK
               : behind->row->prepare(prog, op, facts, &behind->prepared, err);
}

void cuda_behind_release(const struct cuda_behind *behind)
{
    if (behind->row != NULL && behind->row->release != NULL)
        behind->row->release(behind->prepared);
}

enum snug_status cuda_behind_run(const struct cuda_behind *behind, const struct kernel_call *call,
                                 struct snug_error *err)
{
    struct kernel_call own = *call;
    own.prepared = behind->prepared;
    return behind->row->run(&own, err);
}
