/*
 * library.c -- NVIDIA's libraries, opened once a process.
 */
#include "cuda/library.h"

#include <cuda_runtime_api.h>
#include <stdio.h>

#include "cuda/library_version.h"

/* One backend a process, and one thread that prepares and runs: no lock. */
static struct {
    cublasLtHandle_t blas;
    cudnnHandle_t dnn;
    void *dnn_stream;
    size_t bytes;
} library;

enum snug_status cuda_library_check_blas(cublasStatus_t status, const char *what,
                                         struct snug_error *err)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return SNUG_OK;
    return snug_fail(err, SNUG_UNSUPPORTED, "cuBLASLt: %s: %s", what,
                     cublasLtGetStatusString(status));
}

enum snug_status cuda_library_check_dnn(cudnnStatus_t status, const char *what,
                                        struct snug_error *err)
{
    if (status == CUDNN_STATUS_SUCCESS)
        return SNUG_OK;
    char detail[256] = "";
    cudnnGetLastErrorString(detail, sizeof detail);
    return snug_fail(err, SNUG_UNSUPPORTED, "cuDNN: %s: %s %s", what, cudnnGetErrorString(status),
                     detail);
}

enum snug_status cuda_library_check(cudaError_t status, const char *what, struct snug_error *err)
{
    if (status == cudaSuccess)
        return SNUG_OK;
    return snug_fail(err, status == cudaErrorMemoryAllocation ? SNUG_NO_MEMORY : SNUG_UNSUPPORTED,
                     "CUDA: %s: %s", what, cudaGetErrorString(status));
}

static size_t free_bytes(void)
{
    size_t free = 0, total = 0;
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? free : 0;
}

static void count_from(size_t before)
{
    size_t now = free_bytes();
    library.bytes += before > now ? before - now : 0;
}

enum snug_status cuda_library_blas(cublasLtHandle_t *handle, struct snug_error *err)
{
    if (library.blas == NULL) {
        size_t before = free_bytes();
        TRY(cuda_library_check_blas(cublasLtCreate(&library.blas), "opening the library", err));
        count_from(before);
    }
    *handle = library.blas;
    return SNUG_OK;
}

enum snug_status cuda_library_dnn(void *stream, cudnnHandle_t *handle, struct snug_error *err)
{
    if (library.dnn == NULL) {
        size_t before = free_bytes();
        TRY(cuda_library_check_dnn(cudnnCreate(&library.dnn), "opening the library", err));
        count_from(before);
        library.dnn_stream = NULL; /* as it is made */
    }
    if (stream != NULL && stream != library.dnn_stream) {
        TRY(cuda_library_check_dnn(cudnnSetStream(library.dnn, stream), "taking a stream", err));
        library.dnn_stream = stream;
    }
    *handle = library.dnn;
    return SNUG_OK;
}

void cuda_library_close(void)
{
    if (library.blas != NULL)
        cublasLtDestroy(library.blas);
    if (library.dnn != NULL)
        cudnnDestroy(library.dnn);
    library.blas = NULL;
    library.dnn = NULL;
    library.bytes = 0;
}

size_t cuda_library_bytes(void)
{
    return library.bytes;
}

void cuda_library_describe(char *out, size_t out_bytes)
{
    int runtime = 0;
    cudaRuntimeGetVersion(&runtime);
    size_t blas = cublasLtGetVersion(), dnn = cudnnGetVersion();
    snprintf(out, out_bytes, "CUDA %d.%d, cuBLASLt %zu.%zu.%zu, cuDNN %zu.%zu.%zu", runtime / 1000,
             runtime % 1000 / 10, blas / 10000, blas / 100 % 100, blas % 100, dnn / 10000,
             dnn / 100 % 100, dnn % 100);
}
