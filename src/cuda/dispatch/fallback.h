/*
 * fallback.h -- our own kernel for an op that the library rejects.
 *
 * Whether a library accepts an op is known only on a device, when the op is prepared.  So the
 * workspace is planned for both, and prepare decides which one runs.
 */
#ifndef SNUG_CUDA_DISPATCH_FALLBACK_H
#define SNUG_CUDA_DISPATCH_FALLBACK_H

#include "exec/backend.h"

struct cuda_fallback {
    const struct kernel *kernel; /* NULL if the library runs the op */
    void *prepared;
};

/* The larger of the library's workspace and the fallback's. */
size_t cuda_fallback_workspace(kernels_fn *kernels, size_t library_bytes,
                               const struct program *prog, const struct op *op,
                               const struct device_facts *facts);
/* Called when the library has rejected the op. */
enum snug_status cuda_fallback_prepare(kernels_fn *kernels, const struct program *prog,
                                       const struct op *op, const struct device_facts *facts,
                                       struct cuda_fallback *fallback, struct snug_error *err);
void cuda_fallback_release(const struct cuda_fallback *fallback);
enum snug_status cuda_fallback_run(const struct cuda_fallback *fallback,
                                   const struct kernel_call *call, struct snug_error *err);

#endif
