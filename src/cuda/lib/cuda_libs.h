/*
 * cuda_libs.h -- NVIDIA's libraries, opened once a process and shared by all kernels that use them.
 *
 * A handle is made when it is first asked for, before the first step: a model without attention never
 * loads cuDNN.  What a handle takes of the device's memory is no part of the plan but of `runtime`.  It is
 * there until the process ends, as the plugin is.
 */
#ifndef SNUG_CUDA_LIB_CUDA_LIBS_H
#define SNUG_CUDA_LIB_CUDA_LIBS_H

#include <cublasLt.h>
#include <cudnn.h>

#include "base/status.h"

enum snug_status cuda_library_blas(cublasLtHandle_t *handle, struct snug_error *err);
/* Bound to the stream: what is executed with it goes there.  NULL: it will not be executed with yet. */
enum snug_status cuda_library_dnn(void *stream, cudnnHandle_t *handle, struct snug_error *err);

/* A failed call of a library as one of ours; `what` says what was tried. */
enum snug_status cuda_library_check_blas(cublasStatus_t status, const char *what,
                                         struct snug_error *err);
enum snug_status cuda_library_check_dnn(cudnnStatus_t status, const char *what,
                                        struct snug_error *err);

#endif
