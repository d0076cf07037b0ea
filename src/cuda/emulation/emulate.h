/*
 * emulate.h -- enough of CUDA on the host to test kernels and backend without a GPU.
 *
 * The sources are the same as for nvcc, compiled with g++ and SNUG_CUDA_EMULATED.  Device memory is
 * host memory.  A launch runs its blocks one after another.  The threads of a block are fibers that
 * run until they reach a barrier or a shuffle.  Half of the launches, in an aperiodic order, run
 * blocks and threads from the last to the first: a kernel that lacks a barrier then gives different
 * bits, and the tests run everything twice.
 *
 * Streams execute work at once, in the order of the calls; a captured stream adds it to the graph
 * instead.  So work that a real GPU might run concurrently happens here in one of the orders that
 * events allow: the emulation checks arithmetic, bounds and replay, but not missing events.
 */
#ifndef SNUG_CUDA_EMULATION_EMULATE_H
#define SNUG_CUDA_EMULATION_EMULATE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the runtime functions that cuda_backend.c calls, as in cuda_runtime_api.h --------------- */

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorNotReady = 600,
    cudaErrorStreamCaptureUnsupported = 900
} cudaError_t;
typedef struct emulated_stream *cudaStream_t;
typedef struct emulated_event *cudaEvent_t;
typedef struct emulated_graph *cudaGraph_t;
typedef struct emulated_graph *cudaGraphExec_t;
enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};
enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal,
    cudaStreamCaptureModeThreadLocal,
    cudaStreamCaptureModeRelaxed
};
enum cudaDeviceAttr {
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaHostAllocDefault = 0 };
struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem;
    int major, minor, multiProcessorCount;
};

const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError(void);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
cudaError_t cudaMalloc(void **block, size_t bytes);
cudaError_t cudaFree(void *block);
cudaError_t cudaHostAlloc(void **block, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *block);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                 unsigned long long flags);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);

#ifdef __cplusplus
}

/* ---- what kernels use
 * ------------------------------------------------------------------------- */

#include <cmath>
#include <cstring>
#include <functional>
#include <tuple>

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};
extern dim3 threadIdx, blockIdx, blockDim, gridDim; /* of the running thread */

void emulated_submit(cudaStream_t stream, std::function<void()> work);
void emulated_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &thread);
void *emulated_shared(void); /* dynamic shared memory of the block, uninitialized */

void __syncthreads(void);
/* A warp-wide exchange: waits for all threads of the warp, then returns the value of `lane`, or the
 * caller's own value if that thread has ended or does not exist. */
const void *emulated_shuffle(const void *mine, size_t bytes, int lane);
int emulated_lane(void);

static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    (void)mask;
    (void)emulated_shuffle(&mask, sizeof mask, emulated_lane());
}

template <class T> static inline T emulated_from(T value, int lane)
{
    T result;
    memcpy(&result, emulated_shuffle(&value, sizeof value, lane), sizeof result);
    return result;
}

template <class T> static inline T __shfl_sync(unsigned, T value, int lane)
{
    return emulated_from(value, lane & 31);
}
template <class T> static inline T __shfl_xor_sync(unsigned, T value, int mask)
{
    return emulated_from(value, emulated_lane() ^ mask);
}
template <class T> static inline T __shfl_down_sync(unsigned, T value, unsigned by)
{
    int lane = emulated_lane() + (int)by;
    return emulated_from(value, lane < 32 ? lane : emulated_lane());
}
template <class T> static inline T __shfl_up_sync(unsigned, T value, unsigned by)
{
    int lane = emulated_lane() - (int)by;
    return emulated_from(value, lane >= 0 ? lane : emulated_lane());
}
unsigned __ballot_sync(unsigned mask, int predicate);
static inline int __any_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) != 0;
}

/* The warp-level mma of mma.h. */
void emulated_mma(float d[4], const uint32_t a[4], const uint32_t b[2], bool is_bf16);

static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
#define __expf expf /* macros, because glibc declares functions with these names */
#define __logf logf
static inline float __fdividef(float a, float b)
{
    return a / b;
}

/* Integers only: atomic float sums would depend on the order. */
static inline int atomicAdd(int *at, int by)
{
    int before = *at;
    *at += by;
    return before;
}
static inline unsigned atomicAdd(unsigned *at, unsigned by)
{
    unsigned before = *at;
    *at += by;
    return before;
}

template <class... P, class... A>
static inline int launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                         void *stream, A... args)
{
    std::tuple<P...> params(static_cast<P>(args)...);
    emulated_submit((cudaStream_t)stream, [=] {
        emulated_grid(grid, block, shared_bytes, [=] { std::apply(kernel, params); });
    });
    return cudaSuccess;
}

#endif
#endif
