/*
 * fallback.h -- the own row of an op that stands behind a library's: it runs what the library refuses.
 *
 * Whether a library takes an op is known only where there is a device, when the op is prepared.  So the
 * workspace is enough for both, and which of them runs is decided then.
 */
#ifndef SNUG_CUDA_DISPATCH_FALLBACK_H
#define SNUG_CUDA_DISPATCH_FALLBACK_H

#include "exec/backend.h"

struct cuda_behind {
    const struct kernel *row; /* NULL: the library runs it */
    void *prepared;
};

/* What the library's row wants, or the own one if that is more. */
size_t cuda_behind_workspace(rows_fn *own, size_t library_bytes, const struct program *prog,
                             const struct op *op, const struct device_facts *facts);
/* The library has refused it. */
enum snug_status cuda_behind_prepare(rows_fn *own, const struct program *prog, const struct op *op,
                                     const struct device_facts *facts, struct cuda_behind *behind,
                                     struct snug_error *err);
void cuda_behind_release(const struct cuda_behind *behind);
enum snug_status cuda_behind_run(const struct cuda_behind *behind, const struct kernel_call *call,
                                 struct snug_error *err);

#endif
