/*
 * gemm_builtin.c -- the workspace of our own matmul loops, in every build; and gemm.h with these
 * loops alone, for builds without oneDNN.
 *
 * The loops are in simd_gemm.c, compiled per instruction level.  Their workspace size, computed
 * here, is the same for every level, so a plan does not depend on the planning machine.
 */
#include "cpu/cpu.h"

#include <stdlib.h>

#include "base/text.h"

size_t gemm_plain_work_bytes(const struct gemm_shape *shape, int threads)
{
    size_t depth = (size_t)(shape->k < GEMM_KC ? shape->k : GEMM_KC), total = 0;
    work_take(&total, depth * (size_t)gemm_panel_cols(shape) * sizeof(float));
    work_take(&total, depth * GEMM_ITEM_ROWS * sizeof(float) * (size_t)threads);
    return total;
}

#if !defined(SNUG_ONEDNN)

struct gemm {
    struct gemm_shape shape;
    int threads;
    const struct cpu_loops *loops;
};

size_t gemm_work_bytes(const struct gemm_shape *shape, int threads)
{
    return gemm_plain_work_bytes(shape, threads);
}

enum snug_status gemm_prepare(const struct gemm_shape *shape, int threads,
                              const struct cpu_loops *loops, struct gemm **gemm,
                              struct snug_error *err)
{
    *gemm = malloc(sizeof **gemm);
    if (*gemm == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory preparing a matmul");
    **gemm = (struct gemm){*shape, gemm_threads(shape, threads), loops};
    return SNUG_OK;
}

void gemm_release(struct gemm *gemm)
{
    free(gemm);
}

enum snug_status gemm_run(const struct gemm *gemm, const float *a, const float *b, float *c,
                          bool add, void *work, struct snug_error *err)
{
    (void)err;
    gemm->loops->gemm(gemm->threads, &gemm->shape, a, b, c, add, work);
    return SNUG_OK;
}

void gemm_describe(struct text *out)
{
    text_add(out, "without oneDNN: matmuls use snug's own loops\n");
}

#endif
