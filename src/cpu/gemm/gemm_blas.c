/*
 * gemm_blas.c -- products by cblas_sgemm, where there is no oneDNN.
 *
 * A BLAS keeps its packing buffers to itself, outside the plan; OpenBLAS takes them once, when it
 * is loaded, not in a step.
 */
#include "cpu/gemm/gemm.h"

#if defined(SNUG_BLAS) && !defined(SNUG_ONEDNN)

#include <cblas.h>
#include <limits.h>
#include <stdlib.h>

#include "base/text.h"

struct product {
    struct product_shape shape;
    int threads;
};

size_t product_work_bytes(const struct product_shape *shape, int threads)
{
    (void)shape;
    (void)threads;
    return 0;
}

enum snug_status product_prepare(const struct product_shape *shape, int threads,
                                 struct product **product, struct snug_error *err)
{
    const int64_t sizes[] = {shape->m, shape->n, shape->k, shape->lda, shape->ldb, shape->ldc};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] > INT_MAX)
            return snug_fail(err, SNUG_UNSUPPORTED,
                             "a matrix product has a dimension of %lld, more than this BLAS can "
                             "count; build with oneDNN",
                             (long long)sizes[i]);
    *product = malloc(sizeof **product);
    if (*product == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "no memory to prepare a matrix product");
    **product = (struct product){*shape, threads};
    return SNUG_OK;
}

void product_release(struct product *product)
{
    free(product);
}

/* OpenBLAS has one number of threads for the whole process: the caller's is given back. */
static int exchange_threads(int threads)
{
#if defined(OPENBLAS_VERSION)
    int before = openblas_get_num_threads();
    if (before != threads)
        openblas_set_num_threads(threads);
    return before;
#else
    return threads;
#endif
}

enum snug_status product_run(const struct product *product, const float *a, const float *b,
                             float *c, bool add, void *work, struct snug_error *err)
{
    (void)work;
    (void)err;
    const struct product_shape *s = &product->shape;
    int threads_before = exchange_threads(product->threads);
    cblas_sgemm(CblasRowMajor, s->a_transposed ? CblasTrans : CblasNoTrans,
                s->b_transposed ? CblasTrans : CblasNoTrans, (int)s->m, (int)s->n, (int)s->k, 1.0f,
                a, (int)s->lda, b, (int)s->ldb, add ? 1.0f : 0.0f, c, (int)s->ldc);
    (void)exchange_threads(threads_before);
    return SNUG_OK;
}

void product_describe(struct text *out)
{
#if defined(OPENBLAS_VERSION)
    text_add(out, "%s, matrix products; its buffers are outside the plan\n", openblas_get_config());
#else
    text_add(out, "BLAS, matrix products; its buffers are outside the plan\n");
#endif
    text_add(out, "without oneDNN: a BLAS multiplies in its place\n");
}

#endif
