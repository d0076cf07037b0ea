/*
 * launch.h -- how C code calls kernels: included by every launcher header (elementwise.h, norm.h,
 * ...).
 *
 * A launcher is a C function for one kernel family.  It takes device pointers, sizes, enums and a
 * stream, but no ops and no tensors.  It enqueues its kernels on the stream and returns 0 or CUDA's
 * error.  Values that change from step to step are read by the kernels from the scalar table in
 * device memory, so that a recorded section can be replayed; the micro-batch is
 * scalars[SCALAR_micro].
 *
 *     CUDA_LAUNCHERS_BEGIN
 *     CUDA_LAUNCHER int cuda_add(...);
 *     CUDA_LAUNCHERS_END
 *
 * The dispatch files (dispatch_*.c) are compiled twice.  In the plugin they run the kernels.  In
 * libsnug they only plan, on machines without CUDA; the launchers are missing there, which `weak`
 * allows.  The tests link the same dispatch files with the emulated launchers.
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

struct cuda_array { /* an operand as kernels see it */
    enum dtype dtype;
    void *data; /* NULL if the operand is absent */
};

CUDA_LAUNCHERS_BEGIN
/* src/cuda/cuda_backend.c */
CUDA_LAUNCHER const char *cuda_error_text(int error);
CUDA_LAUNCHERS_END

#endif
