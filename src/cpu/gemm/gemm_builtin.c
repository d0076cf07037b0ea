/*
 * gemm_builtin.c -- products by our own loops, for builds without oneDNN and BLAS.
 *
 * The loops are in simd_gemm.c, compiled per instruction level; here is what they book, which is
 * the same for every level, so that a plan does not depend on the machine that makes it.
 */
#include "cpu/cpu.h"

#include <stdlib.h>

#include "base/text.h"

size_t product_plain_work_bytes(const struct product_shape *shape, int threads)
{
    size_t depth = (size_t)(shape->k < PRODUCT_KC ? shape->k : PRODUCT_KC), total = 0;
    work_take(&total, depth * (size_t)product_panel_cols(shape) * sizeof(float));
    work_take(&total, depth * PRODUCT_ITEM_ROWS * sizeof(float) * (size_t)threads);
    return total;
}

#if !defined(SNUG_ONEDNN) && !defined(SNUG_BLAS)

struct product {
    struct product_shape shape;
    int threads;
    const struct cpu_loops *loops;
};

size_t product_work_bytes(const struct product_shape *shape, int threads)
{
    return product_plain_work_bytes(shape, threads);
}

enum snug_status product_prepare(const struct product_shape *shape, int threads,
                                 struct product **product, struct snug_error *err)
{
    *product = malloc(sizeof **product);
    if (*product == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "no memory to prepare a matrix product");
    **product = (struct product){*shape, product_threads(shape, threads), cpu_loops()};
    return SNUG_OK;
}

void product_release(struct product *product)
{
    free(product);
}

enum snug_status product_run(const struct product *product, const float *a, const float *b,
                             float *c, bool add, void *work, struct snug_error *err)
{
    (void)err;
    product->loops->product(product->threads, &product->shape, a, b, c, add, work);
    return SNUG_OK;
}

void product_describe(struct text *out)
{
    text_add(out, "without oneDNN and BLAS: matrix products by snug's own loops\n");
}

#endif
