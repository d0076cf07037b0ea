/*
 * cuda_limits.c -- measures the memory bandwidth and the arithmetic rates of the device.
 *
 * Each is the best of a few runs on tensors larger than any GPU cache, timed with events.
 */
#include "cuda/kernels/peak_rates.h"

#include "base/counter_random.h"
#include "cuda/cuda_backend.h"
#include "cuda/kernels/elementwise.h"
#include "cuda/lib/cuda_gemm.h"

#if defined(SNUG_CUDA_EMULATED) /* speed means nothing here; check only that it runs */
enum { N_RUNS = 1, N_BLOCKS = 1, N_ROUNDS = 16, CUBE = 32 };
static const int64_t n_elems = 1 << 14;
#else
enum { N_RUNS = 10, N_BLOCKS = 16384, N_ROUNDS = 1024, CUBE = 8192 };
static const int64_t n_elems = INT64_C(64) << 20;
#endif

struct trial {
    float *x, *y; /* n_elems each */
    struct cuda_gemm *gemm;
    double work; /* per run: bytes or flops */
    cudaStream_t stream;
};

typedef int trial_fn(struct trial *trial);

static int try_read(struct trial *t)
{
    t->work = 4.0 * (double)n_elems;
    return cuda_read_all(n_elems, t->x, t->stream);
}

static int try_copy(struct trial *t)
{
    struct cuda_array x = {DTYPE_f32, t->x}, y = {DTYPE_f32, t->y};
    t->work = 8.0 * (double)n_elems;
    return cuda_scale(1.0f, n_elems, x, y, t->stream);
}

static int try_update(struct trial *t)
{
    struct cuda_array x = {DTYPE_f32, t->x};
    t->work = 8.0 * (double)n_elems;
    return cuda_scale(1.0f, n_elems, x, x, t->stream);
}

static int try_multiply_add(struct trial *t)
{
    return cuda_multiply_add(N_BLOCKS, N_ROUNDS, t->x, &t->work, t->stream);
}

/* A large square bf16 gemm.  Both operands are in x; y holds the result, then the workspace. */
static const struct cuda_gemm_shape cube = {
    .m = CUBE, .n = CUBE, .k = CUBE, .type = DTYPE_bf16, .c_type = DTYPE_bf16, .alignment = 256};

static int try_gemm(struct trial *t)
{
    const size_t matrix = (size_t)CUBE * CUBE;
    struct cuda_gemm_call call = {.a = t->x,
                                  .b = (uint16_t *)t->x + matrix,
                                  .c = t->y,
                                  .alpha = 1,
                                  .work = (uint16_t *)t->y + matrix,
                                  .stream = t->stream};
    t->work = 2.0 * CUBE * CUBE * CUBE;
    return cuda_gemm_run(t->gemm, &call, NULL) == SNUG_OK ? 0 : 1;
}

/* Best work per second; 0 if the device failed. */
static double best_rate(struct trial *t, trial_fn *run, cudaEvent_t begin, cudaEvent_t end)
{
    double best = 0;
    if (run(t) != 0) /* warm-up: loads the code */
        return 0;
    for (int i = 0; i < N_RUNS; i++) {
        float milliseconds = 0;
        if (cudaEventRecord(begin, t->stream) != cudaSuccess || run(t) != 0 ||
            cudaEventRecord(end, t->stream) != cudaSuccess ||
            cudaEventSynchronize(end) != cudaSuccess ||
            cudaEventElapsedTime(&milliseconds, begin, end) != cudaSuccess)
            return 0;
        double rate = 1e3 * t->work / (double)milliseconds;
        best = rate > best ? rate : best;
    }
    return best;
}

/* Returns 0 if there is no such gemm or its workspace does not fit. */
static double gemm_rate(struct trial *t, cudaEvent_t begin, cudaEvent_t end)
{
    size_t work_bytes = (size_t)n_elems * sizeof(float) - sizeof(uint16_t) * CUBE * CUBE;
    if (cuda_gemm_work_bytes(&cube) > work_bytes ||
        cuda_gemm_prepare(&cube, &t->gemm, NULL) != SNUG_OK)
        return 0;
    double rate = best_rate(t, try_gemm, begin, end);
    cuda_gemm_release(t->gemm);
    return rate;
}

static bool measure_with(struct trial *t, struct device_limits *limits)
{
    cudaEvent_t begin = NULL, end = NULL;
    bool ok = cudaEventCreateWithFlags(&begin, 0) == cudaSuccess &&
              cudaEventCreateWithFlags(&end, 0) == cudaSuccess;
    if (ok)
        *limits = (struct device_limits){.f32_flops = best_rate(t, try_multiply_add, begin, end),
                                         .bf16_flops = gemm_rate(t, begin, end),
                                         .read_bytes = best_rate(t, try_read, begin, end),
                                         .copy_bytes = best_rate(t, try_copy, begin, end),
                                         .update_bytes = best_rate(t, try_update, begin, end)};
    if (begin != NULL)
        (void)cudaEventDestroy(begin);
    if (end != NULL)
        (void)cudaEventDestroy(end);
    return ok && limits->f32_flops > 0 && limits->read_bytes > 0 && limits->update_bytes > 0;
}

/* Random values between 0 and 1, whether read as bf16 or as f32: zeros take less power and run
 * faster. */
static bool fill(unsigned char *x, size_t bytes, cudaStream_t stream)
{
    enum { PATTERN = 4096 };
    uint16_t pattern[PATTERN];
    for (int i = 0; i < PATTERN; i++)
        pattern[i] = bf16_from_f32((float)(counter_random(1, (uint64_t)i) >> 8) * 0x1p-24f);
    bool ok = cudaMemcpyAsync(x, pattern, sizeof pattern, cudaMemcpyHostToDevice, stream) ==
                  cudaSuccess &&
              cudaStreamSynchronize(stream) == cudaSuccess;
    for (size_t n = sizeof pattern; n < bytes && ok; n *= 2)
        ok = cudaMemcpyAsync(x + n, x, n < bytes - n ? n : bytes - n, cudaMemcpyDeviceToDevice,
                             stream) == cudaSuccess;
    return ok;
}

bool cuda_measure(const struct device_facts *facts, struct device_limits *limits)
{
    struct trial t = {0};
    void *block = NULL;
    size_t bytes = (size_t)n_elems * sizeof(float);
    (void)facts;
    bool ok = cudaStreamCreateWithFlags(&t.stream, cudaStreamNonBlocking) == cudaSuccess &&
              cudaMalloc(&block, 2 * bytes) == cudaSuccess && fill(block, 2 * bytes, t.stream);
    if (ok) {
        t.x = block;
        t.y = t.x + n_elems;
        ok = measure_with(&t, limits);
    }
    (void)cudaGetLastError();
    if (block != NULL)
        (void)cudaFree(block);
    if (t.stream != NULL)
        (void)cudaStreamDestroy(t.stream);
    return ok;
}
