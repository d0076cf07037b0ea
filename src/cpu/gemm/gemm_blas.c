/*
 * gemm_blas.c -- matmuls by cblas_sgemm, where there is no oneDNN.
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

struct gemm {
    struct gemm_shape shape;
    int threads;
};

size_t gemm_work_bytes(const struct gemm_shape *shape, int threads)
{
    (void)shape;
    (void)threads;
    return 0;
}

enum snug_status gemm_prepare(const struct gemm_shape *shape, int threads, struct gemm **gemm,
                              struct snug_error *err)
{
    const int64_t sizes[] = {shape->m, shape->n, shape->k, shape->lda, shape->ldb, shape->ldc};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] > INT_MAX)
            return snug_fail(err, SNUG_UNSUPPORTED,
                             "a matmul has a dimension of %lld, more than this BLAS can "
                             "count; build with oneDNN",
                             (long long)sizes[i]);
    *gemm = malloc(sizeof **gemm);
    if (*gemm == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "no memory to prepare a matmul");
    **gemm = (struct gemm){*shape, threads};
    return SNUG_OK;
}

void gemm_release(struct gemm *gemm)
{
    free(gemm);
}

/* OpenBLAS has one number of threads for the whole process: the caller's is given back. */
static int collective_threads(int threads)
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

enum snug_status gemm_run(const struct gemm *gemm, const float *a, const float *b, float *c,
                          bool add, void *work, struct snug_error *err)
{
    (void)work;
    (void)err;
    const struct gemm_shape *s = &gemm->shape;
    int threads_before = collective_threads(gemm->threads);
    cblas_sgemm(CblasRowMajor, s->a_transposed ? CblasTrans : CblasNoTrans,
                s->b_transposed ? CblasTrans : CblasNoTrans, (int)s->m, (int)s->n, (int)s->k, 1.0f,
                a, (int)s->lda, b, (int)s->ldb, add ? 1.0f : 0.0f, c, (int)s->ldc);
    (void)collective_threads(threads_before);
    return SNUG_OK;
}

void gemm_describe(struct text *out)
{
#if defined(OPENBLAS_VERSION)
    text_add(out, "%s, matmuls; its buffers are outside the plan\n", openblas_get_config());
#else
    text_add(out, "BLAS, matmuls; its buffers are outside the plan\n");
#endif
    text_add(out, "without oneDNN: a BLAS multiplies in its place\n");
}

#endif
