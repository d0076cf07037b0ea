/*
 * cuda_libs.h -- NVIDIA's libraries, opened once per process and shared by all kernels that use
 * them.
 *
 * A handle is created on first use, before the first step: a model without attention or
 * convolutions never loads cuDNN.  The device memory that a handle takes is not part of the plan;
 * it is reported as `runtime`.  Like the plugin, a handle lives until the process ends.
 */
#ifndef SNUG_CUDA_LIB_CUDA_LIBS_H
#define SNUG_CUDA_LIB_CUDA_LIBS_H

#include <cublasLt.h>
#include <cudnn.h>
#include <stdbool.h>

#include "base/status.h"

enum snug_status cuda_library_blas(cublasLtHandle_t *handle, struct snug_error *err);
/* Was SNUG_CUDA_UNALIGNED set when the handle was created?  gemm_algorithm.c says what it does. */
bool cuda_library_blas_is_unaligned(void);
/* The handle is bound to the stream: work executed with it goes there.  NULL: nothing is executed
 * yet. */
enum snug_status cuda_library_dnn(void *stream, cudnnHandle_t *handle, struct snug_error *err);

/* Turns a failed library call into a status; `what` says what was attempted ("running a
 * matmul"). */
enum snug_status cuda_library_check_blas(cublasStatus_t status, const char *what,
                                         struct snug_error *err);
enum snug_status cuda_library_check_dnn(cudnnStatus_t status, const char *what,
                                        struct snug_error *err);

#endif
