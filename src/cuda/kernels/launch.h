/*
 * launch.h -- how C calls kernels: what every header of launchers (elementwise.h, norm.h...) begins with.
 *
 * A launcher is a C function over one kernel family: plain pointers of the device, sizes, enums and a
 * stream, no ops and no tensors.  It starts its kernels on the stream and returns: 0, or CUDA's error.
 * What changes from step to step is read by the kernels from the scalar table in device memory, so that
 * a recorded section can be run again; the micro-batch is scalars[SCALAR_micro].
 *
 *     CUDA_LAUNCHERS_BEGIN
 *     CUDA_LAUNCHER int cuda_add(...);
 *     CUDA_LAUNCHERS_END
 *
 * The rows (rows_*.c) are compiled twice.  In the plugin they run the kernels.  In libsnug they only
 * plan, on machines that have no CUDA: there the launchers are missing, which `weak` allows.  In the tests
 * the emulated launchers are linked to those same rows.
 */
#ifndef SNUG_CUDA_KERNELS_LAUNCH_H
#define SNUG_CUDA_KERNELS_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"

#if defined(SNUG_CUDA_PLUGIN) || defined(SNUG_CUDA_EMULATED)
#define CUDA_LAUNCHER
#else
#define CUDA_LAUNCHER __attribute__((weak, visibility("hidden")))
#endif

#ifdef __cplusplus
#define CUDA_LAUNCHERS_BEGIN extern "C" {
#define CUDA_LAUNCHERS_END   }
#else
#define CUDA_LAUNCHERS_BEGIN
#define CUDA_LAUNCHERS_END
#endif

struct cuda_array { /* an operand, as kernels see it */
    enum dtype dtype;
    void *data; /* NULL: left out */
};

CUDA_LAUNCHERS_BEGIN
CUDA_LAUNCHER const char *cuda_error_text(int error);
CUDA_LAUNCHERS_END

#endif
