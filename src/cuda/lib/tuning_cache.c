/*
 * tuning_cache.c -- the table of chosen algorithms.
 */
#include "cuda/lib/tuning_cache.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#include "cuda/tuning_cache_file.h"

_Static_assert(sizeof(cublasLtMatmulAlgo_t) == PIN_WORDS * sizeof(uint64_t), "the words of a pin");

static struct { /* one thread prepares */
    struct pin_list list;
    bool is_read; /* the file, if there is one */
    char title[384];
    char *path; /* where new pins are added; NULL: nowhere.  Lives as long as the process */
} table;

static void write_key(const struct cuda_product_shape *s, int64_t key[PIN_KEY])
{
    const int64_t numbers[PIN_KEY] = {s->m,
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
    table.list.failed = !pins_file_path(table.title, &table.path);
    if (table.path != NULL)
        (void)pins_file_read(table.path, table.title, &table.list);
}

bool product_pin_find(const struct cuda_product_shape *shape, cublasLtMatmulAlgo_t *algorithm,
                      float *ms, bool *from_file)
{
    int64_t key[PIN_KEY];
    write_key(shape, key);
    if (!table.is_read)
        read_file();
    const struct pin *pin = pin_list_find(&table.list, key);
    if (pin == NULL)
        return false;
    memcpy(algorithm, pin->algorithm, sizeof *algorithm);
    *ms = pin->ms;
    *from_file = pin->from_file;
    return true;
}

enum snug_status product_pin_add(const struct cuda_product_shape *shape,
                                 const cublasLtMatmulAlgo_t *algorithm, float ms,
                                 struct snug_error *err)
{
    struct pin pin = {.ms = ms};
    write_key(shape, pin.key);
    memcpy(pin.algorithm, algorithm, sizeof *algorithm);
    struct pin *there = pin_list_find(&table.list, pin.key);
    if (there != NULL) {
        pin.replaces = true;
        *there = pin;
    } else if (table.list.failed || !pin_list_add(&table.list, &pin))
        return snug_fail(err, SNUG_NO_MEMORY, "product: no memory for the chosen algorithms");
    if (table.path != NULL)
        pins_file_add(table.path, table.title, &table.list);
    return SNUG_OK;
}
