/*
 * backend.c -- the CUDA backend: a device, its streams and its memory.
 */
#include "cuda/backend.h"

#include <stdlib.h>

#include "cuda/cuda.h"
#include "cuda/launch.h"
#include "cuda/table.h"

static enum snug_status check(cudaError_t error, const char *what, struct snug_error *err)
{
    if (error == cudaSuccess)
        return SNUG_OK;
    (void)cudaGetLastError(); /* so that the next launch is not blamed for it */
    return snug_fail(err, error == cudaErrorMemoryAllocation ? SNUG_NO_MEMORY : SNUG_UNSUPPORTED,
                     "CUDA, %s: %s", what, cudaGetErrorString(error));
}

const char *cuda_error_text(int error)
{
    return cudaGetErrorString((cudaError_t)error);
}

static void close_device(struct device *device)
{
    if (device == NULL)
        return;
    if (device->compute != NULL)
        (void)cudaStreamDestroy(device->compute);
    if (device->copies != NULL)
        (void)cudaStreamDestroy(device->copies);
    free(device);
}

static enum snug_status open_streams(struct device *device, struct snug_error *err)
{
    TRY(check(cudaStreamCreateWithFlags(&device->compute, cudaStreamNonBlocking), "a stream", err));
    return check(cudaStreamCreateWithFlags(&device->copies, cudaStreamNonBlocking), "a stream",
                 err);
}

static enum snug_status open_device(struct device **out, struct snug_error *err)
{
    struct device *device = calloc(1, sizeof *device);
    if (device == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    enum snug_status status = open_streams(device, err);
    if (status != SNUG_OK) {
        close_device(device);
        return status;
    }
    *out = device;
    return SNUG_OK;
}

static void *compute_stream(struct device *device)
{
    return device->compute;
}

static void *alloc_block(size_t bytes)
{
    void *block = NULL;
    if (cudaMalloc(&block, bytes > 0 ? bytes : 1) != cudaSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    if (cudaMemsetAsync(block, 0, bytes, NULL) != cudaSuccess ||
        cudaStreamSynchronize(NULL) != cudaSuccess) {
        (void)cudaFree(block);
        return NULL;
    }
    return block;
}

static void release_block(void *block, size_t bytes)
{
    (void)bytes;
    (void)cudaFree(block);
}

static enum snug_status copy(struct device *device, void *to, const void *from, int64_t n_bytes,
                             enum cudaMemcpyKind kind, struct snug_error *err)
{
    TRY(check(cudaMemcpyAsync(to, from, (size_t)n_bytes, kind, device->compute), "a copy", err));
    return check(cudaStreamSynchronize(device->compute), "a copy", err);
}

static enum snug_status read_block(struct device *device, const void *from, void *to,
                                   int64_t n_bytes, struct snug_error *err)
{
    return copy(device, to, from, n_bytes, cudaMemcpyDeviceToHost, err);
}

static enum snug_status write_block(struct device *device, void *to, const void *from,
                                    int64_t n_bytes, struct snug_error *err)
{
    return copy(device, to, from, n_bytes, cudaMemcpyHostToDevice, err);
}

static struct run_modes run_begin(const struct device_facts *facts)
{
    (void)facts;
    return (struct run_modes){0};
}

static void run_end(const struct device_facts *facts, const struct run_modes *modes)
{
    (void)facts;
    (void)modes;
}

/* The one symbol of the plugin. */

__attribute__((visibility("default"))) const struct backend *snug_cuda_backend(void)
{
    static const struct backend backend = {.name = "cuda",
                                           .alignment = CUDA_ALIGNMENT,
                                           .choose = cuda_choose,
                                           .alloc = alloc_block,
                                           .release = release_block,
                                           .open = open_device,
                                           .close = close_device,
                                           .stream = compute_stream,
                                           .read = read_block,
                                           .write = write_block,
                                           .store_place = CUDA_STORE_PLACE,
                                           .run_begin = run_begin,
                                           .run_end = run_end};
    return &backend;
}
