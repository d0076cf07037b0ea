/*
 * tuning_cache.c -- the table of chosen gemm algorithms.
 */
#include "cuda/lib/tuning_cache.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#include "cuda/tuning_cache_file.h"

_Static_assert(sizeof(cublasLtMatmulAlgo_t) == TUNING_WORDS * sizeof(uint64_t),
               "a tuning stores the whole algorithm");

static struct { /* not locked: one thread prepares */
    struct tuning_list list;
    bool is_read; /* the file was read, if there is one */
    char title[384];
    char *path; /* where new tunings are added, NULL if nowhere; lives as long as the process */
} table;

static void write_key(const struct cuda_gemm_shape *s, int64_t key[TUNING_KEY])
{
    const int64_t fields[TUNING_KEY] = {s->m,
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
                                        s->epilogue,
                                        s->has_bias,
                                        s->saves_pre_act,
                                        s->alignment,
                                        s->a_transposed,
                                        s->b_transposed};
    memcpy(key, fields, sizeof fields);
}

/* What an algorithm depends on besides its shape.  The 1 is the version of the key order and of the
 * conditions that gemm_algorithm.c sets for candidates. */
static bool write_title(char *out, size_t size)
{
    struct cudaDeviceProp prop;
    int device = 0, driver = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaGetDeviceProperties(&prop, device) != cudaSuccess ||
        cudaDriverGetVersion(&driver) != cudaSuccess)
        return false;
    snprintf(out, size, "gemm tuning 1: cuBLASLt %zu on %s, driver %d", cublasLtGetVersion(),
             prop.name, driver);
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
    struct tuning *existing = tuning_list_find(&table.list, tuning.key);
    if (existing != NULL) {
        tuning.replaces = true;
        *existing = tuning;
    } else if (table.list.failed || !tuning_list_add(&table.list, &tuning))
        return snug_fail(err, SNUG_NO_MEMORY, "matmul: out of memory for the tuning cache");
    if (table.path != NULL)
        tuning_cache_file_add(table.path, table.title, &table.list);
    return SNUG_OK;
}
