/*
 * product_pins.c -- the table of chosen algorithms, and its file.
 *
 * The file is text.  Its first line names the library and the GPU; each of the others is a pin: the
 * numbers of its shape, the 8 words of the algorithm in hex, and milliseconds.
 */
#include "cuda/product_pins.h"

#include <cuda_runtime_api.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_KEY = 18, N_WORDS = sizeof(cublasLtMatmulAlgo_t) / sizeof(uint64_t) };

struct pin {
    int64_t key[N_KEY];
    uint64_t algorithm[N_WORDS];
    float ms;
};

static struct { /* one thread prepares */
    struct pin *pins;
    size_t n, capacity;
    bool is_read;     /* the file, if there is one */
    const char *path; /* where new pins are added; NULL: nowhere */
} table;

static void write_key(const struct cuda_product_shape *s, int64_t key[N_KEY])
{
    const int64_t numbers[N_KEY] = {s->m,
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

static bool append(const struct pin *pin)
{
    if (table.n == table.capacity) {
        size_t capacity = table.capacity > 0 ? 2 * table.capacity : 64;
        struct pin *pins = realloc(table.pins, capacity * sizeof *pins);
        if (pins == NULL)
            return false;
        table.pins = pins;
        table.capacity = capacity;
    }
    table.pins[table.n++] = *pin;
    return true;
}

/* ---- the file ------------------------------------------------------------------------------- */

static bool title(char *out, size_t size)
{
    struct cudaDeviceProp prop;
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaGetDeviceProperties(&prop, device) != cudaSuccess)
        return false;
    snprintf(out, size, "cuBLASLt %zu on %s\n", cublasLtGetVersion(), prop.name);
    return true;
}

static bool read_pin(FILE *file, struct pin *pin)
{
    for (int i = 0; i < N_KEY; i++)
        if (fscanf(file, "%" SCNd64, &pin->key[i]) != 1)
            return false;
    for (int i = 0; i < N_WORDS; i++)
        if (fscanf(file, "%" SCNx64, &pin->algorithm[i]) != 1)
            return false;
    return fscanf(file, "%f", &pin->ms) == 1;
}

static void write_pin(FILE *file, const struct pin *pin)
{
    for (int i = 0; i < N_KEY; i++)
        fprintf(file, "%" PRId64 " ", pin->key[i]);
    for (int i = 0; i < N_WORDS; i++)
        fprintf(file, "%" PRIx64 " ", pin->algorithm[i]);
    fprintf(file, "%.9g\n", (double)pin->ms);
}

/* What cannot be read is timed again; what cannot be written is not kept. */
static void read_file(void)
{
    const char *path = getenv("SNUG_CUDA_PINS");
    char own[320], there[320] = "";
    table.is_read = true;
    if (path == NULL || !title(own, sizeof own))
        return;
    FILE *file = fopen(path, "r");
    if (file == NULL) { /* a new one */
        file = fopen(path, "w");
        if (file != NULL && fputs(own, file) >= 0)
            table.path = path;
    } else if (fgets(there, sizeof there, file) != NULL && strcmp(own, there) == 0) {
        struct pin pin;
        table.path = path;
        while (read_pin(file, &pin) && append(&pin))
            continue;
    }
    if (file != NULL)
        fclose(file);
}

bool product_pin_find(const struct cuda_product_shape *shape, cublasLtMatmulAlgo_t *algorithm,
                      float *ms)
{
    int64_t key[N_KEY];
    write_key(shape, key);
    if (!table.is_read)
        read_file();
    for (size_t i = 0; i < table.n; i++)
        if (memcmp(table.pins[i].key, key, sizeof key) == 0) {
            memcpy(algorithm, table.pins[i].algorithm, sizeof *algorithm);
            *ms = table.pins[i].ms;
            return true;
        }
    return false;
}

enum snug_status product_pin_add(const struct cuda_product_shape *shape,
                                 const cublasLtMatmulAlgo_t *algorithm, float ms,
                                 struct snug_error *err)
{
    struct pin pin = {.ms = ms};
    write_key(shape, pin.key);
    memcpy(pin.algorithm, algorithm, sizeof *algorithm);
    if (!append(&pin))
        return snug_fail(err, SNUG_NO_MEMORY, "product: no memory for the chosen algorithms");
    FILE *file = table.path != NULL ? fopen(table.path, "a") : NULL;
    if (file != NULL) {
        write_pin(file, &pin);
        fclose(file);
    }
    return SNUG_OK;
}
