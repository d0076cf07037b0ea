/*
 * product_choose.c -- which of cuBLASLt's algorithms makes a product.
 *
 * The library names candidates, best guess first.  They are timed once, on numbers like those of
 * training (constants run faster than data does), and the fastest is pinned to the shape for the life
 * of the process: like products of a model are made alike, and give like bits.  Candidates that differ
 * by less than MARGIN are not told apart by a timing, and so the earlier one stays: another run
 * chooses the same.
 *
 * No candidate may add parts of a sum in an order of its own: sums over k are in one piece, or their
 * parts are kept in fp32 in the workspace and added up in a second step.
 */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/product_lt.h"

enum { N_CANDIDATES = 8, N_TIMED = 5, N_KEY = 18 };
static const float MARGIN = 0.97f;

struct key {
    int64_t of[N_KEY];
};

struct pin {
    struct key key;
    cublasLtMatmulAlgo_t algorithm;
};

static struct { /* one thread prepares */
    struct pin *pins;
    size_t n, capacity;
} table;

static struct key key_of(const struct cuda_product_shape *s)
{
    return (struct key){{s->m, s->n, s->k, s->a_transposed, s->b_transposed, s->lda, s->ldb, s->ldc,
                         s->n_batch, s->batch_a, s->batch_b, s->batch_c, s->type, s->c_type, s->end,
                         s->has_bias, s->keeps_before, s->alignment}};
}

static const struct pin *find_pin(const struct key *key)
{
    for (size_t i = 0; i < table.n; i++)
        if (memcmp(&table.pins[i].key, key, sizeof *key) == 0)
            return &table.pins[i];
    return NULL;
}

static enum snug_status add_pin(const struct key *key, const cublasLtMatmulAlgo_t *algorithm,
                                struct snug_error *err)
{
    if (table.n == table.capacity) {
        size_t capacity = table.capacity > 0 ? 2 * table.capacity : 64;
        struct pin *pins = realloc(table.pins, capacity * sizeof *pins);
        if (pins == NULL)
            return snug_fail(err, SNUG_NO_MEMORY, "product: no memory for the chosen algorithms");
        table.pins = pins;
        table.capacity = capacity;
    }
    table.pins[table.n++] = (struct pin){*key, *algorithm};
    return SNUG_OK;
}

/* ---- candidates ----------------------------------------------------------------------------- */

static cublasStatus_t prefer(cublasLtMatmulPreference_t wish, const struct cuda_product_shape *s)
{
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    uint64_t work_bytes = cuda_product_work_bytes(s);
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint32_t alignment = (uint32_t)s->alignment;
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

/* How many there are; 0: the library refuses the product. */
static int candidates(const struct cuda_product *p,
                      cublasLtMatmulHeuristicResult_t found[N_CANDIDATES])
{
    cublasLtMatmulPreference_t wish = NULL;
    int n = 0, n_good = 0;
    cublasStatus_t status = cublasLtMatmulPreferenceCreate(&wish);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = prefer(wish, &p->shape);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulAlgoGetHeuristic(p->handle, p->how, p->left, p->right, p->result,
                                                p->result, wish, N_CANDIDATES, found, &n);
    if (wish != NULL)
        cublasLtMatmulPreferenceDestroy(wish);
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < n; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS)
            found[n_good++] = found[i];
    return n_good;
}

/* ---- timing --------------------------------------------------------------------------------- */

struct room { /* where candidates are tried: one block of memory for as long as it takes */
    char *block;
    size_t total;
    struct cuda_product_call call;
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

static cudaError_t open_room(const struct cuda_product_shape *s, struct room *room)
{
    size_t a = take(&room->total, matrix_bytes(s->a_transposed ? s->k : s->m, s->lda, s->n_batch,
                                               s->batch_a, s->type));
    size_t b = take(&room->total, matrix_bytes(s->b_transposed ? s->n : s->k, s->ldb, s->n_batch,
                                               s->batch_b, s->type));
    size_t vector = take(&room->total, (size_t)(s->m + s->n) * sizeof(float));
    size_t operands = room->total;
    size_t c = take(&room->total, matrix_bytes(s->m, s->ldc, s->n_batch, s->batch_c, s->c_type));
    size_t before = take(&room->total, s->end == PRODUCT_dgelu || s->keeps_before
                                           ? (size_t)(s->m * s->n) * dtype_bytes(s->c_type)
                                           : 0);
    size_t work = take(&room->total, cuda_product_work_bytes(s));

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
    room->call = (struct cuda_product_call){.a = room->block + a,
                                            .b = room->block + b,
                                            .c = room->block + c,
                                            .alpha = 1.0f,
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

/* Milliseconds at best; negative: it does not run. */
static float time_one(const struct cuda_product *p, const cublasLtMatmulAlgo_t *algorithm,
                      const struct room *room)
{
    float best = -1.0f;
    for (int i = 0; i <= N_TIMED; i++) { /* the first one loads its code */
        float ms = 0.0f;
        if (cudaEventRecord(room->begin, NULL) != cudaSuccess ||
            cuda_product_launch(p, algorithm, &room->call) != CUBLAS_STATUS_SUCCESS ||
            cudaEventRecord(room->end, NULL) != cudaSuccess ||
            cudaEventSynchronize(room->end) != cudaSuccess ||
            cudaEventElapsedTime(&ms, room->begin, room->end) != cudaSuccess)
            return -1.0f;
        if (i > 0 && (best < 0.0f || ms < best))
            best = ms;
    }
    return best;
}

static int fastest(const struct cuda_product *p, const cublasLtMatmulHeuristicResult_t *found,
                   int n_found)
{
    struct room room = {0};
    int chosen = 0;
    float best = -1.0f;
    if (n_found > 1 && open_room(&p->shape, &room) == cudaSuccess)
        for (int i = 0; i < n_found; i++) {
            float ms = time_one(p, &found[i].algo, &room);
            if (ms >= 0.0f && (best < 0.0f || ms < MARGIN * best)) {
                best = ms;
                chosen = i;
            }
        }
    close_room(&room);
    return chosen;
}

enum snug_status cuda_product_choose(struct cuda_product *p, bool *found, struct snug_error *err)
{
    struct key key = key_of(&p->shape);
    const struct pin *pin = find_pin(&key);
    *found = true;
    if (pin != NULL) {
        p->algorithm = pin->algorithm;
        return SNUG_OK;
    }
    cublasLtMatmulHeuristicResult_t results[N_CANDIDATES];
    int n = candidates(p, results);
    *found = n > 0;
    if (n == 0)
        return SNUG_OK;
    p->algorithm = results[fastest(p, results, n)].algo;
    return add_pin(&key, &p->algorithm, err);
}
