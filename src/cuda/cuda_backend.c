/*
 * cuda_backend.c -- the CUDA backend: the device, its streams, its memory, and recorded work.
 *
 * A device has four streams: kernels, copies to the GPU, copies from it, and sends to distant
 * pipeline stages.  Events order them.  All are non-blocking: they do not synchronize with the
 * legacy default stream.  A recording is a CUDA graph; stream capture collects the calls of one
 * section on all streams.
 */
#include "cuda/cuda_backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/kernels/copy.h"
#include "cuda/cuda.h"
#include "cuda/kernels/elementwise.h"
#include "cuda/kernels/peak_rates.h"
#include "cuda/nccl.h"
#include "cuda/pinned_pool.h"
#include "cuda/dispatch/kernel_table.h"

static enum snug_status check(cudaError_t error, const char *what, struct snug_error *err)
{
    if (error == cudaSuccess)
        return SNUG_OK;
    (void)cudaGetLastError(); /* clear it, so that the next launch does not report it */
    return snug_fail(err, error == cudaErrorMemoryAllocation ? SNUG_NO_MEMORY : SNUG_UNSUPPORTED,
                     "CUDA error while %s: %s", what, cudaGetErrorString(error));
}

const char *cuda_error_text(int error)
{
    return cudaGetErrorString((cudaError_t)error);
}

int cuda_copy(void *to, const void *from, int64_t n_bytes, void *stream)
{
    return (int)cudaMemcpyAsync(to, from, (size_t)n_bytes, cudaMemcpyDefault, (cudaStream_t)stream);
}

/* ---- a device ------------------------------------------------------------------------------- */

static void close_device(struct device *device)
{
    if (device == NULL)
        return;
    if (device->compute != NULL)
        (void)cudaStreamDestroy(device->compute);
    if (device->copies != NULL)
        (void)cudaStreamDestroy(device->copies);
    if (device->evictions != NULL)
        (void)cudaStreamDestroy(device->evictions);
    if (device->far != NULL)
        (void)cudaStreamDestroy(device->far);
    free(device);
}

static int count_devices(void)
{
    int n_devices = 0;
    return cudaGetDeviceCount(&n_devices) == cudaSuccess ? n_devices : 0;
}

static enum snug_status open_streams(struct device *device, struct snug_error *err)
{
    int n_devices = 0;
    cudaError_t error = cudaGetDeviceCount(&n_devices);
    if (error != cudaSuccess || n_devices == 0)
        return snug_fail(err, SNUG_UNSUPPORTED,
                         "--device cuda: found no GPU or no NVIDIA driver (%s)",
                         cudaGetErrorString(error));
    TRY(check(cudaSetDevice(device->number), "selecting the GPU", err));
    TRY(check(cudaStreamCreateWithFlags(&device->compute, cudaStreamNonBlocking),
              "creating a stream", err));
    TRY(check(cudaStreamCreateWithFlags(&device->copies, cudaStreamNonBlocking),
              "creating a stream", err));
    TRY(check(cudaStreamCreateWithFlags(&device->evictions, cudaStreamNonBlocking),
              "creating a stream", err));
    return check(cudaStreamCreateWithFlags(&device->far, cudaStreamNonBlocking),
                 "creating a stream", err);
}

static enum snug_status open_device(int number, struct device **out, struct snug_error *err)
{
    struct device *device = calloc(1, sizeof *device);
    if (device == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    device->number = number;
    enum snug_status status = open_streams(device, err);
    if (status != SNUG_OK) {
        close_device(device);
        return status;
    }
    *out = device;
    return SNUG_OK;
}

static void identify(struct device *device, char name[DEVICE_TEXT_MAX], char place[DEVICE_TEXT_MAX])
{
    struct cudaDeviceProp found;
    bool is_known = cudaGetDeviceProperties(&found, device->number) == cudaSuccess;
    snprintf(name, DEVICE_TEXT_MAX, "%.90s", is_known ? found.name : "a GPU");
    if (cudaDeviceGetPCIBusId(place, DEVICE_TEXT_MAX, device->number) != cudaSuccess)
        snprintf(place, DEVICE_TEXT_MAX, "%d", device->number);
}

static int number_of(struct device *device)
{
    return device->number;
}

/* A new thread starts on GPU 0. */
static void use_device(struct device *device)
{
    (void)cudaSetDevice(device->number);
}

static void *compute_stream(struct device *device)
{
    return device->compute;
}

static void *copy_stream(struct device *device)
{
    return device->copies;
}

static void *evict_stream(struct device *device)
{
    return device->evictions;
}

static void *far_stream(struct device *device)
{
    return device->far;
}

static enum snug_status finish_copies(struct device *device, struct snug_error *err)
{
    TRY(check(cudaStreamSynchronize(device->copies), "copying", err));
    return check(cudaStreamSynchronize(device->evictions), "copying", err);
}

static enum snug_status synchronize(struct device *device, struct snug_error *err)
{
    TRY(check(cudaStreamSynchronize(device->compute), "running kernels", err));
    TRY(check(cudaStreamSynchronize(device->far), "sending", err));
    return finish_copies(device, err);
}

/* The result of a query: done, not yet done, or an error. */
static enum snug_status query_status(cudaError_t error, bool *done, struct snug_error *err)
{
    *done = error == cudaSuccess;
    return error == cudaErrorNotReady ? SNUG_OK : check(error, "running kernels", err);
}

static enum snug_status is_done(struct device *device, bool *done, struct snug_error *err)
{
    TRY(query_status(cudaStreamQuery(device->compute), done, err));
    if (*done)
        TRY(query_status(cudaStreamQuery(device->copies), done, err));
    if (*done)
        TRY(query_status(cudaStreamQuery(device->evictions), done, err));
    return *done ? query_status(cudaStreamQuery(device->far), done, err) : SNUG_OK;
}

/* ---- memory --------------------------------------------------------------------------------- */

/* Returns zeroed memory, as fresh pages of the host are. */
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

static void *alloc_host(size_t bytes)
{
    void *block = NULL;
    if (cudaHostAlloc(&block, bytes > 0 ? bytes : 1, cudaHostAllocDefault) != cudaSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    return block;
}

static void release_host(void *block)
{
    if (block != NULL)
        (void)cudaFreeHost(block);
}

static enum snug_status push(struct device *device, void *to, const void *from, int64_t n_bytes,
                             struct snug_error *err)
{
    return check(
        cudaMemcpyAsync(to, from, (size_t)n_bytes, cudaMemcpyHostToDevice, device->compute),
        "copying to the GPU", err);
}

static enum snug_status pull(struct device *device, void *to, const void *from, int64_t n_bytes,
                             struct snug_error *err)
{
    return check(
        cudaMemcpyAsync(to, from, (size_t)n_bytes, cudaMemcpyDeviceToHost, device->compute),
        "copying from the GPU", err);
}

static enum snug_status clear(struct device *device, void *to, int64_t n_bytes,
                              struct snug_error *err)
{
    return check(cudaMemsetAsync(to, 0, (size_t)n_bytes, device->compute), "zeroing memory", err);
}

static enum snug_status copy(struct device *device, void *to, const void *from, int64_t n_bytes,
                             struct snug_error *err)
{
    return check((cudaError_t)cuda_copy(to, from, n_bytes, device->copies), "copying", err);
}

static enum snug_status add(struct device *device, enum dtype dtype, void *to, const void *from,
                            int64_t n_elems, struct snug_error *err)
{
    struct cuda_array sum = {.dtype = dtype, .data = to},
                      more = {.dtype = dtype, .data = (void *)from};
    return check((cudaError_t)cuda_add(n_elems, sum, more, sum, device->copies), "adding", err);
}

static enum snug_status read_block(struct device *device, const void *from, void *to,
                                   int64_t n_bytes, struct snug_error *err)
{
    use_device(device); /* any thread may call */
    TRY(pull(device, to, from, n_bytes, err));
    return check(cudaStreamSynchronize(device->compute), "copying from the GPU", err);
}

static enum snug_status write_block(struct device *device, void *to, const void *from,
                                    int64_t n_bytes, struct snug_error *err)
{
    use_device(device);
    TRY(push(device, to, from, n_bytes, err));
    return check(cudaStreamSynchronize(device->compute), "copying to the GPU", err);
}

static enum snug_status set_scalar(struct device *device, double *at, double value,
                                   struct snug_error *err)
{
    return check((cudaError_t)cuda_set_scalar(at, value, device->compute), "setting a scalar", err);
}

static int64_t used_bytes(void)
{
    size_t free_bytes = 0, total_bytes = 0;
    if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess)
        return 0;
    return (int64_t)(total_bytes - free_bytes);
}

static int64_t memory_bytes(int number)
{
    struct cudaDeviceProp properties;
    bool ok = cudaGetDeviceProperties(&properties, number) == cudaSuccess;
    return ok ? (int64_t)properties.totalGlobalMem : 0;
}

/* ---- the offload pool
 * ------------------------------------------------------------------------- */

static enum snug_status read_pool(struct offload_pool *pool, int64_t at, void *to, int64_t n_bytes,
                                  struct snug_error *err)
{
    (void)err;
    memcpy(to, ((const struct pinned_pool *)pool)->base + at, (size_t)n_bytes);
    return SNUG_OK;
}

static enum snug_status write_pool(struct offload_pool *pool, int64_t at, const void *from,
                                   int64_t n_bytes, struct snug_error *err)
{
    (void)err;
    memcpy(((struct pinned_pool *)pool)->base + at, from, (size_t)n_bytes);
    return SNUG_OK;
}

static void close_pool(struct offload_pool *pool)
{
    release_host(((struct pinned_pool *)pool)->base);
    free(pool);
}

static enum snug_status open_pool(const struct device_facts *facts, int64_t n_bytes,
                                  struct offload_pool **out, struct snug_error *err)
{
    (void)facts;
    struct pinned_pool *s = calloc(1, sizeof *s);
    unsigned char *base = s == NULL ? NULL : alloc_host((size_t)n_bytes);
    if (base == NULL) {
        free(s);
        return snug_fail(err, SNUG_NO_MEMORY,
                         "cannot allocate %lld bytes of pinned host memory for the offload pool: "
                         "offload less or free host memory",
                         (long long)n_bytes);
    }
    memset(base, 0, (size_t)n_bytes);
    *s = (struct pinned_pool){.pool = {.read = read_pool, .write = write_pool, .close = close_pool},
                              .base = base};
    *out = &s->pool;
    return SNUG_OK;
}

/* ---- events and recordings ------------------------------------------------------------------ */

static enum snug_status event_make(void **event, struct snug_error *err)
{
    cudaEvent_t created = NULL;
    TRY(check(cudaEventCreateWithFlags(&created, 0), "creating an event", err));
    *event = created;
    return SNUG_OK;
}

static void event_free(void *event)
{
    if (event != NULL)
        (void)cudaEventDestroy((cudaEvent_t)event);
}

static enum snug_status event_record(void *event, void *stream, struct snug_error *err)
{
    return check(cudaEventRecord((cudaEvent_t)event, (cudaStream_t)stream), "recording an event",
                 err);
}

static enum snug_status event_wait(void *stream, void *event, struct snug_error *err)
{
    return check(cudaStreamWaitEvent((cudaStream_t)stream, (cudaEvent_t)event, 0),
                 "waiting for an event", err);
}

static enum snug_status event_finish(void *event, struct snug_error *err)
{
    return check(cudaEventSynchronize((cudaEvent_t)event), "running kernels", err);
}

static enum snug_status event_is_done(void *event, bool *done, struct snug_error *err)
{
    return query_status(cudaEventQuery((cudaEvent_t)event), done, err);
}

static double event_seconds(void *begin, void *end)
{
    float milliseconds = 0;
    if (cudaEventElapsedTime(&milliseconds, (cudaEvent_t)begin, (cudaEvent_t)end) != cudaSuccess)
        return 0;
    return 1e-3 * (double)milliseconds;
}

struct recording {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
};

static void recording_free(struct recording *recording)
{
    if (recording->exec != NULL)
        (void)cudaGraphExecDestroy(recording->exec);
    if (recording->graph != NULL)
        (void)cudaGraphDestroy(recording->graph);
    free(recording);
}

/* Relaxed capture: libraries may load code while it is active. */
static enum snug_status record_begin(struct device *device, struct snug_error *err)
{
    const char *setting = getenv("SNUG_CUDA_RECORD");
    if (setting != NULL && strcmp(setting, "off") == 0)
        return snug_fail(err, SNUG_UNSUPPORTED, "CUDA graphs are disabled by SNUG_CUDA_RECORD=off");
    return check(cudaStreamBeginCapture(device->compute, cudaStreamCaptureModeRelaxed),
                 "starting to capture a graph", err);
}

static enum snug_status record_end(struct device *device, struct recording **out,
                                   struct snug_error *err)
{
    struct recording *recording = calloc(1, sizeof *recording);
    cudaGraph_t graph = NULL;
    enum snug_status status =
        check(cudaStreamEndCapture(device->compute, &graph), "capturing a graph", err);
    if (recording == NULL) {
        if (graph != NULL)
            (void)cudaGraphDestroy(graph);
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    }
    recording->graph = graph;
    if (status == SNUG_OK)
        status =
            check(cudaGraphInstantiate(&recording->exec, graph, 0), "instantiating a graph", err);
    if (status != SNUG_OK)
        recording_free(recording);
    else
        *out = recording;
    return status;
}

static enum snug_status replay(struct device *device, struct recording *recording,
                               struct snug_error *err)
{
    return check(cudaGraphLaunch(recording->exec, device->compute), "launching a graph", err);
}

/* ---- the backend ---------------------------------------------------------------------------- */

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

static const struct device_hooks hooks = {.count = count_devices,
                                          .open = open_device,
                                          .close = close_device,
                                          .identify = identify,
                                          .number = number_of,
                                          .use = use_device,
                                          .stream = compute_stream,
                                          .copy_stream = copy_stream,
                                          .evict_stream = evict_stream,
                                          .far_stream = far_stream,
                                          .synchronize = synchronize,
                                          .is_done = is_done,
                                          .alloc_host = alloc_host,
                                          .release_host = release_host,
                                          .push = push,
                                          .pull = pull,
                                          .clear = clear,
                                          .copy = copy,
                                          .add = add,
                                          .finish_copies = finish_copies,
                                          .set_scalar = set_scalar,
                                          .read = read_block,
                                          .write = write_block,
                                          .event_make = event_make,
                                          .event_free = event_free,
                                          .event_record = event_record,
                                          .event_wait = event_wait,
                                          .event_finish = event_finish,
                                          .event_is_done = event_is_done,
                                          .event_seconds = event_seconds,
                                          .record_begin = record_begin,
                                          .record_end = record_end,
                                          .replay = replay,
                                          .recording_free = recording_free,
                                          .used_bytes = used_bytes,
                                          .memory_bytes = memory_bytes,
                                          .direct = &cuda_direct};

/* The only symbol that the plugin exports. */
__attribute__((visibility("default"))) const struct backend *snug_cuda_backend(void)
{
    static const struct backend backend = {.version = SNUG_VERSION_STRING,
                                           .name = "cuda",
                                           .alignment = CUDA_ALIGNMENT,
                                           .choose = cuda_choose,
                                           .kernel = cuda_kernel,
                                           .alloc = alloc_block,
                                           .release = release_block,
                                           .hooks = &hooks,
                                           .pool_place = CUDA_POOL_PLACE,
                                           .open_pool = open_pool,
                                           .run_begin = run_begin,
                                           .run_end = run_end,
                                           .measure = cuda_measure};
    return &backend;
}
