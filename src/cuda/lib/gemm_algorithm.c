/*
 * gemm_algorithm.c -- chooses the cuBLASLt algorithm of a gemm.
 *
 * The library proposes candidates, best guess first.  They are timed once, in alternation, on data
 * like that of training (constants would run faster), and the fastest is fixed for the shape.  So
 * equal gemms of a model use the same algorithm and give the same bits.  Timings cannot separate
 * candidates that differ by less than MARGIN; the earlier one wins.  The choice is stored in a
 * file, so later runs take the same algorithm (tuning_cache.h).
 *
 * Candidates must be deterministic: a sum over k is either not split, or its parts are kept in fp32
 * in the workspace and added in a second step.
 */
#include <cuda_runtime_api.h>
#include <string.h>

#include "cuda/lib/gemm_cublaslt.h"
#include "cuda/lib/tuning_cache.h"

enum { N_CANDIDATES = 8, N_TIMED = 5 };
static const float MARGIN = 0.97f;

/* ---- candidates ----------------------------------------------------------------------------- */

/* The guaranteed alignment of operands, in bytes.  Algorithms that load whole tiles in hardware
 * (TMA) need 16, and compute-sanitizer's racecheck fails on them.  SNUG_CUDA_UNALIGNED excludes
 * them from new choices, but not from the tuning cache. */
static uint32_t alignment_of(const struct cuda_gemm_shape *s)
{
    size_t least = dtype_bytes(s->type) < dtype_bytes(s->c_type) ? dtype_bytes(s->type)
                                                                 : dtype_bytes(s->c_type);
    return cuda_library_blas_is_unaligned() ? (uint32_t)least : (uint32_t)s->alignment;
}

static cublasStatus_t prefer(cublasLtMatmulPreference_t preference, const struct cuda_gemm_shape *s)
{
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    uint64_t work_bytes = cuda_gemm_work_bytes(s);
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint32_t alignment = alignment_of(s);
    cublasStatus_t status = cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &work_bytes, sizeof work_bytes);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulPreferenceSetAttribute(
            preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes);
    for (size_t i = 0; i < sizeof alignments / sizeof *alignments; i++)
        if (status == CUBLAS_STATUS_SUCCESS)
            status = cublasLtMatmulPreferenceSetAttribute(preference, alignments[i], &alignment,
                                                          sizeof alignment);
    return status;
}

/* *n_good: the number of usable candidates; 0 if the library rejects the gemm. */
static cublasStatus_t candidates(const struct cuda_gemm *p,
                                 cublasLtMatmulHeuristicResult_t found[N_CANDIDATES], int *n_good)
{
    cublasLtMatmulPreference_t preference = NULL;
    int n = 0;
    cublasStatus_t status = cublasLtMatmulPreferenceCreate(&preference);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = prefer(preference, &p->shape);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulAlgoGetHeuristic(p->handle, p->how, p->left, p->right, p->result,
                                                p->result, preference, N_CANDIDATES, found, &n);
    if (preference != NULL)
        cublasLtMatmulPreferenceDestroy(preference);
    *n_good = 0;
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < n; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS)
            found[(*n_good)++] = found[i];
    return status;
}

/* ---- timing --------------------------------------------------------------------------------- */

struct trial { /* buffers for timing candidates: one block, freed afterwards */
    char *block;
    size_t total;
    struct cuda_gemm_call call;
    cudaEvent_t begin, end;
};

static size_t take(size_t *total, size_t bytes)
{
    size_t at = *total;
    *total += (bytes + 255) / 256 * 256;
    return at;
}

static size_t matrix_bytes(int64_t rows, int64_t pitch, int64_t n_batch, int64_t batch_step,
                           enum dtype type)
{
    return (size_t)((n_batch - 1) * batch_step + rows * pitch) * dtype_bytes(type);
}

/* Values about the size of activations: a short random pattern, repeated. */
static cudaError_t fill(char *block, size_t bytes, enum dtype type)
{
    enum { N_RANDOM = 8192 };
    static uint32_t bits[N_RANDOM];
    uint32_t state = 1;
    for (int i = 0; i < N_RANDOM; i++) {
        float pair[2];
        for (int k = 0; k < 2; k++) {
            state = state * 1664525u + 1013904223u;
            pair[k] = (float)(state >> 8) / (float)(1 << 23) - 1.0f;
        }
        if (type == DTYPE_f32)
            memcpy(&bits[i], pair, sizeof bits[i]);
        else if (type == DTYPE_bf16)
            bits[i] = (uint32_t)bf16_from_f32(pair[0]) << 16 | bf16_from_f32(pair[1]);
        else
            bits[i] = (uint32_t)f16_from_f32(pair[0]) << 16 | f16_from_f32(pair[1]);
    }
    size_t done = bytes < sizeof bits ? bytes : sizeof bits;
    cudaError_t status = cudaMemcpy(block, bits, done, cudaMemcpyHostToDevice);
    while (status == cudaSuccess && done < bytes) {
        size_t more = done < bytes - done ? done : bytes - done;
        status = cudaMemcpy(block + done, block, more, cudaMemcpyDeviceToDevice);
        done += more;
    }
    return status;
}

static cudaError_t open_trial(const struct cuda_gemm_shape *s, struct trial *trial)
{
    /* A bias gradient comes with the weight gradient, which accumulates. */
    bool is_added = s->epilogue == GEMM_sums_a || s->epilogue == GEMM_sums_b;
    size_t a = take(&trial->total, matrix_bytes(s->a_transposed ? s->k : s->m, s->lda, s->n_batch,
                                                s->batch_a, s->type));
    size_t b = take(&trial->total, matrix_bytes(s->b_transposed ? s->n : s->k, s->ldb, s->n_batch,
                                                s->batch_b, s->type));
    size_t vector = take(&trial->total, (size_t)(s->m + s->n) * sizeof(float));
    size_t operands = trial->total;
    size_t c = take(&trial->total, matrix_bytes(s->m, s->ldc, s->n_batch, s->batch_c, s->c_type));
    size_t pre_act =
        take(&trial->total,
             cuda_gemm_has_pre_act(s) ? (size_t)(s->m * s->n) * dtype_bytes(s->c_type) : 0);
    size_t work = take(&trial->total, cuda_gemm_work_bytes(s));

    cudaError_t status = cudaMalloc((void **)&trial->block, trial->total);
    if (status == cudaSuccess)
        status = fill(trial->block, operands, s->type);
    if (status == cudaSuccess)
        status = fill(trial->block + c, work - c, s->c_type);
    if (status == cudaSuccess)
        status = cudaEventCreate(&trial->begin);
    if (status == cudaSuccess)
        status = cudaEventCreate(&trial->end);
    if (status != cudaSuccess)
        return status;
    trial->call = (struct cuda_gemm_call){.a = trial->block + a,
                                          .b = trial->block + b,
                                          .c = trial->block + c,
                                          .r = trial->block + c,
                                          .alpha = 1.0f,
                                          .beta = is_added ? 1.0f : 0.0f,
                                          .bias = trial->block + vector,
                                          .pre_act = trial->block + pre_act,
                                          .sums = trial->block + vector,
                                          .work = trial->block + work};
    return cudaSuccess;
}

static void close_trial(struct trial *trial)
{
    if (trial->begin != NULL)
        cudaEventDestroy(trial->begin);
    if (trial->end != NULL)
        cudaEventDestroy(trial->end);
    cudaFree(trial->block);
    (void)cudaGetLastError(); /* running out of memory here must not fail the next call */
}

/* Milliseconds between the two events; negative if something failed. */
static float elapsed(const struct trial *trial)
{
    float ms = -1.0f;
    bool done = cudaEventRecord(trial->end, NULL) == cudaSuccess &&
                cudaEventSynchronize(trial->end) == cudaSuccess &&
                cudaEventElapsedTime(&ms, trial->begin, trial->end) == cudaSuccess;
    return done ? ms : -1.0f;
}

/* Milliseconds; negative if the algorithm does not run. */
static float time_one(const struct cuda_gemm *p, const cublasLtMatmulAlgo_t *algorithm,
                      const struct trial *trial)
{
    if (cudaEventRecord(trial->begin, NULL) != cudaSuccess ||
        cuda_gemm_launch(p, algorithm, &trial->call) != CUBLAS_STATUS_SUCCESS)
        return -1.0f;
    return elapsed(trial);
}

/* Once per process: an idle GPU is slow at first. */
static void warm_up(const struct cuda_gemm *p, const cublasLtMatmulAlgo_t *algorithm,
                    const struct trial *trial)
{
    static bool is_warm;
    const float enough_ms = 200.0f;
    float ms = 0.0f, spent_ms = 0.0f;
    for (int i = 0; i < 20000 && !is_warm && ms >= 0.0f && spent_ms < enough_ms; i++) {
        ms = time_one(p, algorithm, trial);
        spent_ms += ms;
    }
    is_warm = true;
}

/* The minimum of several timings of each candidate, in alternation; 0 if it does not run. */
static void time_all(const struct cuda_gemm *p, const cublasLtMatmulHeuristicResult_t *found,
                     int n_found, const struct trial *trial, float *ms)
{
    warm_up(p, &found[0].algo, trial);
    for (int round = 0; round <= N_TIMED; round++)
        for (int i = 0; i < n_found; i++) {
            float now = round == 0 || ms[i] > 0.0f ? time_one(p, &found[i].algo, trial) : 0.0f;
            if (now < 0.0f)
                ms[i] = 0.0f;
            else if (round <= 1 || now < ms[i]) /* round 0 loads the code */
                ms[i] = now;
        }
}

/* Takes the fastest candidate, or the first one if there is no memory for timing.  Returns false if
 * none of them runs, whatever the library claims. */
static bool take_fastest(struct cuda_gemm *p, const cublasLtMatmulHeuristicResult_t *found,
                         int n_found)
{
    struct trial trial = {0};
    float ms[N_CANDIDATES] = {0};
    bool is_timed = open_trial(&p->shape, &trial) == cudaSuccess;
    if (is_timed)
        time_all(p, found, n_found, &trial, ms);
    close_trial(&trial);
    p->algorithm = found[0].algo;
    p->ms = ms[0];
    for (int i = 1; i < n_found; i++)
        if (ms[i] > 0.0f && (p->ms == 0.0f || ms[i] < MARGIN * p->ms)) {
            p->ms = ms[i];
            p->algorithm = found[i].algo;
        }
    return !is_timed || p->ms > 0.0f;
}

/* Bytes read and written by a copy per millisecond; 0 if there is no memory to time one. */
static float time_copy(void)
{
    const size_t half = (size_t)128 << 20; /* larger than any cache */
    struct trial trial = {0};
    float best = 0.0f;
    bool ready = cudaMalloc((void **)&trial.block, 2 * half) == cudaSuccess &&
                 cudaEventCreate(&trial.begin) == cudaSuccess &&
                 cudaEventCreate(&trial.end) == cudaSuccess;
    for (int i = 0; i <= N_TIMED && ready; i++) {
        ready = cudaEventRecord(trial.begin, NULL) == cudaSuccess &&
                cudaMemcpyAsync(trial.block + half, trial.block, half, cudaMemcpyDeviceToDevice,
                                NULL) == cudaSuccess;
        float ms = ready ? elapsed(&trial) : 0.0f;
        best = ms > 0.0f && (best == 0.0f || ms < best) ? ms : best;
    }
    close_trial(&trial);
    return best > 0.0f ? 2.0f * (float)half / best : 0.0f;
}

/* Stored in the tuning cache under a shape that no gemm has, so that decisions based on it stay the
 * same. */
static float copy_rate(void)
{
    const struct cuda_gemm_shape none = {0};
    cublasLtMatmulAlgo_t no_algorithm = {0};
    float rate = 0.0f;
    bool from_file;
    if (!tuning_cache_find(&none, &no_algorithm, &rate, &from_file)) {
        rate = time_copy();
        (void)tuning_cache_add(&none, &no_algorithm, rate, NULL);
    }
    return rate;
}

bool cuda_gemm_fused_is_faster(const struct cuda_gemm *fused, const struct cuda_gemm *plain,
                               int64_t n_bytes)
{
    const double tie = 1.1;
    float rate = copy_rate();
    if (fused->ms == 0.0f || plain->ms == 0.0f || rate == 0.0f)
        return true;
    double pass_ms = (double)n_bytes / (double)rate;
    return (double)fused->ms <= tie * ((double)plain->ms + pass_ms);
}

/* A cached algorithm comes from a file that anyone may have written. */
static bool is_still_valid(const struct cuda_gemm *p)
{
    cublasLtMatmulHeuristicResult_t checked;
    return cublasLtMatmulAlgoCheck(p->handle, p->how, p->left, p->right, p->result, p->result,
                                   &p->algorithm, &checked) == CUBLAS_STATUS_SUCCESS &&
           checked.state == CUBLAS_STATUS_SUCCESS &&
           checked.workspaceSize <= cuda_gemm_work_bytes(&p->shape);
}

enum snug_status cuda_gemm_choose(struct cuda_gemm *p, bool *found, struct snug_error *err)
{
    bool from_file;
    *found = true;
    if (tuning_cache_find(&p->shape, &p->algorithm, &p->ms, &from_file) &&
        (!from_file || is_still_valid(p)))
        return SNUG_OK;
    cublasLtMatmulHeuristicResult_t results[N_CANDIDATES];
    int n = 0;
    cublasStatus_t status = candidates(p, results, &n);
    *found = n > 0;
    if (n == 0) /* an epilogue may be unsupported for many reasons; a plain gemm must work */
        return p->shape.epilogue == GEMM_plain
                   ? cuda_library_check_blas(status, "searching for an algorithm", err)
                   : SNUG_OK;
    *found = take_fastest(p, results, n);
    if (!*found)
        return SNUG_OK;
    TRY(tuning_cache_add(&p->shape, &p->algorithm, p->ms, err));
    /* takes the choice of another rank if that was first */
    (void)tuning_cache_find(&p->shape, &p->algorithm, &p->ms, &from_file);
    return SNUG_OK;
}
