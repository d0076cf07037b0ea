/*
 * fallback.h -- our kernel of an op that stands behind a library's: it runs what the library refuses.
 *
 * Whether a library takes an op is known only where there is a device, when the op is prepared.  So the
 * workspace is enough for both, and which of them runs is decided then.
 */
#ifndef SNUG_CUDA_DISPATCH_FALLBACK_H
#define SNUG_CUDA_DISPATCH_FALLBACK_H

#include "exec/backend.h"

struct cuda_fallback {
    const struct kernel *row; /* NULL: the library runs it */
    void *prepared;
};

/* What the library's row wants, or the own one if that is more. */
size_t cuda_fallback_workspace(kernels_fn *own, size_t library_bytes, const struct program *prog,
                               const struct op *op, const struct device_facts *facts);
/* The library has refused it. */
enum snug_status cuda_fallback_prepare(kernels_fn *own, const struct program *prog,
                                       const struct op *op, const struct device_facts *facts,
                                       struct cuda_fallback *fallback, struct snug_error *err);
void cuda_fallback_release(const struct cuda_fallback *fallback);
enum snug_status cuda_fallback_run(const struct cuda_fallback *fallback,
                                   const struct kernel_call *call, struct snug_error *err);

#endif
