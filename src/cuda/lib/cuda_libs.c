/*
 * cuda_libs.c -- NVIDIA's libraries, opened once per process.
 */
#include "cuda/lib/cuda_libs.h"

#include <stdlib.h>

/* No lock: one backend per process, and one thread prepares and runs. */
static struct {
    cublasLtHandle_t blas;
    bool blas_is_unaligned;
    cudnnHandle_t dnn;
    void *dnn_stream;
} library;

enum snug_status cuda_library_check_blas(cublasStatus_t status, const char *what,
                                         struct snug_error *err)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return SNUG_OK;
    return snug_fail(err, SNUG_UNSUPPORTED, "cuBLASLt error while %s: %s", what,
                     cublasLtGetStatusString(status));
}

enum snug_status cuda_library_check_dnn(cudnnStatus_t status, const char *what,
                                        struct snug_error *err)
{
    if (status == CUDNN_STATUS_SUCCESS)
        return SNUG_OK;
    char detail[256] = "";
    cudnnGetLastErrorString(detail, sizeof detail);
    return snug_fail(err, SNUG_UNSUPPORTED, "cuDNN error while %s: %s %s", what,
                     cudnnGetErrorString(status), detail);
}

enum snug_status cuda_library_blas(cublasLtHandle_t *handle, struct snug_error *err)
{
    if (library.blas == NULL) {
        TRY(cuda_library_check_blas(cublasLtCreate(&library.blas), "opening the library", err));
        library.blas_is_unaligned = getenv("SNUG_CUDA_UNALIGNED") != NULL;
    }
    *handle = library.blas;
    return SNUG_OK;
}

bool cuda_library_blas_is_unaligned(void)
{
    return library.blas_is_unaligned;
}

enum snug_status cuda_library_dnn(void *stream, cudnnHandle_t *handle, struct snug_error *err)
{
    if (library.dnn == NULL) {
        TRY(cuda_library_check_dnn(cudnnCreate(&library.dnn), "opening the library", err));
        library.dnn_stream = NULL; /* a new handle uses the default stream */
    }
    if (stream != NULL && stream != library.dnn_stream) {
        TRY(cuda_library_check_dnn(cudnnSetStream(library.dnn, stream), "setting the stream", err));
        library.dnn_stream = stream;
    }
    *handle = library.dnn;
    return SNUG_OK;
}
