/*
 * tuning_cache.c -- the table of chosen algorithms.
 */
#include "cuda/lib/tuning_cache.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#include "cuda/tuning_cache_file.h"

_Static_assert(sizeof(cublasLtMatmulAlgo_t) == TUNING_WORDS * sizeof(uint64_t),
               "the words of a pin");

static struct { /* one thread prepares */
    struct tuning_list list;
    bool is_read; /* the file, if there is one */
    char title[384];
    char *path; /* where new pins are added; NULL: nowhere.  Lives as long as the process */
} table;

static void write_key(const struct cuda_gemm_shape *s, int64_t key[TUNING_KEY])
{
    const int64_t numbers[TUNING_KEY] = {s->m,
                                         s->n,
                                         s->k,
                                         s->lda,
                                         s->ldb,
                                         s->ldc,
                                         s->n_batch,
                                         s->batch_a,
                                         s->batch_b,
                                         s->batch_c,
                                         s->type,
                                         s->c_type,
                                         s->end,
                                         s->has_bias,
                                         s->keeps_before,
                                         s->alignment,
                                         s->a_transposed,
                                         s->b_transposed};
    memcpy(key, numbers, sizeof numbers);
}

/* What an algorithm depends on beside its shape.  1: the order of the key, and what gemm_algorithm.c asks
 * of candidates. */
static bool write_title(char *out, size_t size)
{
    struct cudaDeviceProp prop;
    int device = 0, driver = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaGetDeviceProperties(&prop, device) != cudaSuccess ||
        cudaDriverGetVersion(&driver) != cudaSuccess)
        return false;
    snprintf(out, size, "pins 1: cuBLASLt %zu on %s, driver %d", cublasLtGetVersion(), prop.name,
             driver);
    return true;
}

static void read_file(void)
{
    table.is_read = true;
    if (!write_title(table.title, sizeof table.title))
        return;
    table.list.failed = !tuning_cache_file_path(table.title, &table.path);
    if (table.path != NULL)
        (void)tuning_cache_file_read(table.path, table.title, &table.list);
}

bool tuning_cache_find(const struct cuda_gemm_shape *shape, cublasLtMatmulAlgo_t *algorithm,
                       float *ms, bool *from_file)
{
    int64_t key[TUNING_KEY];
    write_key(shape, key);
    if (!table.is_read)
        read_file();
    const struct tuning *tuning = tuning_list_find(&table.list, key);
    if (tuning == NULL)
        return false;
    memcpy(algorithm, tuning->algorithm, sizeof *algorithm);
    *ms = tuning->ms;
    *from_file = tuning->from_file;
    return true;
}

enum snug_status tuning_cache_add(const struct cuda_gemm_shape *shape,
                                  const cublasLtMatmulAlgo_t *algorithm, float ms,
                                  struct snug_error *err)
{
    struct tuning tuning = {.ms = ms};
    write_key(shape, tuning.key);
    memcpy(tuning.algorithm, algorithm, sizeof *algorithm);
    struct tuning *there = tuning_list_find(&table.list, tuning.key);
    if (there != NULL) {
        tuning.replaces = true;
        *there = tuning;
    } else if (table.list.failed || !tuning_list_add(&table.list, &tuning))
        return snug_fail(err, SNUG_NO_MEMORY, "matmul: no memory for the chosen algorithms");
    if (table.path != NULL)
        tuning_cache_file_add(table.path, table.title, &table.list);
    return SNUG_OK;
}
