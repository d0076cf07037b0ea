/*
 * gemm_algorithm.c -- which of cuBLASLt's algorithms makes a matmul.
 *
 * The library names candidates, best guess first.  They are timed once, in turns, on numbers like those
 * of training (constants run faster than data does), and the fastest is pinned to the shape: like
 * matmuls of a model are made alike, and give like bits.  Candidates that differ by less than MARGIN
 * are not told apart by a timing, and so the earlier one stays.  Pins are kept in a file: another run
 * takes the same (tuning_cache.h).
 *
 * No candidate may add parts of a sum in an order of its own: sums over k are in one piece, or their
 * parts are kept in fp32 in the workspace and added up in a second step.
 */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/lib/gemm_cublaslt.h"
#include "cuda/lib/tuning_cache.h"

enum { N_CANDIDATES = 8, N_TIMED = 5 };
static const float MARGIN = 0.97f;

/* ---- candidates ----------------------------------------------------------------------------- */

/* The least alignment of operands, in bytes.  Algorithms that load whole tiles by hardware need 16, and
 * compute-sanitizer's racecheck breaks on them: SNUG_CUDA_UNALIGNED leaves them out of what is chosen from
 * (not out of what was pinned before). */
static uint32_t alignment_of(const struct cuda_gemm_shape *s)
{
    size_t least = dtype_bytes(s->type) < dtype_bytes(s->c_type) ? dtype_bytes(s->type)
                                                                 : dtype_bytes(s->c_type);
    return getenv("SNUG_CUDA_UNALIGNED") != NULL ? (uint32_t)least : (uint32_t)s->alignment;
}

static cublasStatus_t prefer(cublasLtMatmulPreference_t wish, const struct cuda_gemm_shape *s)
{
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    uint64_t work_bytes = cuda_gemm_work_bytes(s);
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint32_t alignment = alignment_of(s);
    cublasStatus_t status = cublasLtMatmulPreferenceSetAttribute(
        wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &work_bytes, sizeof work_bytes);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulPreferenceSetAttribute(
            wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes);
    for (size_t i = 0; i < sizeof alignments / sizeof *alignments; i++)
        if (status == CUBLAS_STATUS_SUCCESS)
            status = cublasLtMatmulPreferenceSetAttribute(wish, alignments[i], &alignment,
                                                          sizeof alignment);
    return status;
}

/* *n_good: how many there are; 0 if the library refuses the matmul. */
static cublasStatus_t candidates(const struct cuda_gemm *p,
                                 cublasLtMatmulHeuristicResult_t found[N_CANDIDATES], int *n_good)
{
    cublasLtMatmulPreference_t wish = NULL;
    int n = 0;
    cublasStatus_t status = cublasLtMatmulPreferenceCreate(&wish);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = prefer(wish, &p->shape);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulAlgoGetHeuristic(p->handle, p->how, p->left, p->right, p->result,
                                                p->result, wish, N_CANDIDATES, found, &n);
    if (wish != NULL)
        cublasLtMatmulPreferenceDestroy(wish);
    *n_good = 0;
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < n; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS)
            found[(*n_good)++] = found[i];
    return status;
}

/* ---- timing --------------------------------------------------------------------------------- */

struct room { /* where candidates are tried: one block of memory for as long as it takes */
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

/* Numbers of about the size of activations: a short row of random ones, copied on and on. */
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

static cudaError_t open_room(const struct cuda_gemm_shape *s, struct room *room)
{
    /* A bias gradient comes with that of the weights, which is added to what is there. */
    bool is_added = s->end == GEMM_sums_a || s->end == GEMM_sums_b;
    size_t a = take(&room->total, matrix_bytes(s->a_transposed ? s->k : s->m, s->lda, s->n_batch,
                                               s->batch_a, s->type));
    size_t b = take(&room->total, matrix_bytes(s->b_transposed ? s->n : s->k, s->ldb, s->n_batch,
                                               s->batch_b, s->type));
    size_t vector = take(&room->total, (size_t)(s->m + s->n) * sizeof(float));
    size_t operands = room->total;
    size_t c = take(&room->total, matrix_bytes(s->m, s->ldc, s->n_batch, s->batch_c, s->c_type));
    size_t before = take(
        &room->total, cuda_gemm_has_before(s) ? (size_t)(s->m * s->n) * dtype_bytes(s->c_type) : 0);
    size_t work = take(&room->total, cuda_gemm_work_bytes(s));

    cudaError_t status = cudaMalloc((void **)&room->block, room->total);
    if (status == cudaSuccess)
        status = fill(room->block, operands, s->type);
    if (status == cudaSuccess)
        status = fill(room->block + c, work - c, s->c_type);
    if (status == cudaSuccess)
        status = cudaEventCreate(&room->begin);
    if (status == cudaSuccess)
        status = cudaEventCreate(&room->end);
    if (status != cudaSuccess)
        return status;
    room->call = (struct cuda_gemm_call){.a = room->block + a,
                                         .b = room->block + b,
                                         .c = room->block + c,
                                         .r = room->block + c,
                                         .alpha = 1.0f,
                                         .beta = is_added ? 1.0f : 0.0f,
                                         .bias = room->block + vector,
                                         .before = room->block + before,
                                         .sums = room->block + vector,
                                         .work = room->block + work};
    return cudaSuccess;
}

static void close_room(struct room *room)
{
    if (room->begin != NULL)
        cudaEventDestroy(room->begin);
    if (room->end != NULL)
        cudaEventDestroy(room->end);
    cudaFree(room->block);
    (void)cudaGetLastError(); /* no room to try them in is not an error of what comes next */
}

/* Milliseconds between the two events; negative: something failed. */
static float elapsed(const struct room *room)
{
    float ms = -1.0f;
    bool done = cudaEventRecord(room->end, NULL) == cudaSuccess &&
                cudaEventSynchronize(room->end) == cudaSuccess &&
                cudaEventElapsedTime(&ms, room->begin, room->end) == cudaSuccess;
    return done ? ms : -1.0f;
}

/* Milliseconds; negative: it does not run. */
static float time_one(const struct cuda_gemm *p, const cublasLtMatmulAlgo_t *algorithm,
                      const struct room *room)
{
    if (cudaEventRecord(room->begin, NULL) != cudaSuccess ||
        cuda_gemm_launch(p, algorithm, &room->call) != CUBLAS_STATUS_SUCCESS)
        return -1.0f;
    return elapsed(room);
}

/* Once: a GPU that was idle is slow at first. */
static void warm_up(const struct cuda_gemm *p, const cublasLtMatmulAlgo_t *algorithm,
                    const struct room *room)
{
    static bool is_warm;
    const float enough_ms = 200.0f;
    float ms = 0.0f, spent_ms = 0.0f;
    for (int i = 0; i < 20000 && !is_warm && ms >= 0.0f && spent_ms < enough_ms; i++) {
        ms = time_one(p, algorithm, room);
        spent_ms += ms;
    }
    is_warm = true;
}

/* The least of some timings of each, in turns; 0: it does not run. */
static void time_all(const struct cuda_gemm *p, const cublasLtMatmulHeuristicResult_t *found,
                     int n_found, const struct room *room, float *ms)
{
    warm_up(p, &found[0].algo, room);
    for (int turn = 0; turn <= N_TIMED; turn++)
        for (int i = 0; i < n_found; i++) {
            float now = turn == 0 || ms[i] > 0.0f ? time_one(p, &found[i].algo, room) : 0.0f;
            if (now < 0.0f)
                ms[i] = 0.0f;
            else if (turn <= 1 || now < ms[i]) /* the first one loads its code */
                ms[i] = now;
        }
}

/* Chooses among what was found; where there is no room to time, the first.  False: none of them runs,
 * whatever the library says. */
static bool take_fastest(struct cuda_gemm *p, const cublasLtMatmulHeuristicResult_t *found,
                         int n_found)
{
    struct room room = {0};
    float ms[N_CANDIDATES] = {0};
    bool is_timed = open_room(&p->shape, &room) == cudaSuccess;
    if (is_timed)
        time_all(p, found, n_found, &room, ms);
    close_room(&room);
    p->algorithm = found[0].algo;
    p->ms = ms[0];
    for (int i = 1; i < n_found; i++)
        if (ms[i] > 0.0f && (p->ms == 0.0f || ms[i] < MARGIN * p->ms)) {
            p->ms = ms[i];
            p->algorithm = found[i].algo;
        }
    return !is_timed || p->ms > 0.0f;
}

/* Bytes that a copy reads and writes in a millisecond; 0: there is no room to try one. */
static float time_copy(void)
{
    const size_t half = (size_t)128 << 20; /* more than a cache holds */
    struct room room = {0};
    float best = 0.0f;
    bool ready = cudaMalloc((void **)&room.block, 2 * half) == cudaSuccess &&
                 cudaEventCreate(&room.begin) == cudaSuccess &&
                 cudaEventCreate(&room.end) == cudaSuccess;
    for (int i = 0; i <= N_TIMED && ready; i++) {
        ready = cudaEventRecord(room.begin, NULL) == cudaSuccess &&
                cudaMemcpyAsync(room.block + half, room.block, half, cudaMemcpyDeviceToDevice,
                                NULL) == cudaSuccess;
        float ms = ready ? elapsed(&room) : 0.0f;
        best = ms > 0.0f && (best == 0.0f || ms < best) ? ms : best;
    }
    close_room(&room);
    return best > 0.0f ? 2.0f * (float)half / best : 0.0f;
}

/* Pinned as algorithms are, under a shape that no matmul has: choices made with it stay the same. */
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

bool cuda_gemm_is_worth(const struct cuda_gemm *fused, const struct cuda_gemm *plain,
                        int64_t n_bytes)
{
    const double tie = 1.1;
    float rate = copy_rate();
    if (fused->ms == 0.0f || plain->ms == 0.0f || rate == 0.0f)
        return true;
    double walk_ms = (double)n_bytes / (double)rate;
    return (double)fused->ms <= tie * ((double)plain->ms + walk_ms);
}

/* A pin comes from a file that anybody may have written. */
static bool still_serves(const struct cuda_gemm *p)
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
        (!from_file || still_serves(p)))
        return SNUG_OK;
    cublasLtMatmulHeuristicResult_t results[N_CANDIDATES];
    int n = 0;
    cublasStatus_t status = candidates(p, results, &n);
    *found = n > 0;
    if (n == 0) /* an end may be refused in many ways; a matmul without one should not be */
        return p->shape.end == GEMM_plain
                   ? cuda_library_check_blas(status, "looking for an algorithm", err)
                   : SNUG_OK;
    *found = take_fastest(p, results, n);
    if (!*found)
        return SNUG_OK;
    TRY(tuning_cache_add(&p->shape, &p->algorithm, p->ms, err));
    /* another rank's, if it was first */
    (void)tuning_cache_find(&p->shape, &p->algorithm, &p->ms, &from_file);
    return SNUG_OK;
}
