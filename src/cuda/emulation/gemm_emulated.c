/*
 * gemm_emulated.c -- the gemms of cuda_gemm.h with plain loops in host memory, for the emulation.
 *
 * It replaces cuBLASLt so that everything around a gemm can be tested without a device: sums in
 * fp32, epilogues applied before rounding, and the same epilogues rejected.
 */
#include "cuda/lib/cuda_gemm.h"

#include <math.h>
#include <stdlib.h>

#include "cuda/emulation/stand_in.h"

enum { BLOCK = 64 }; /* columns of C that are summed at a time */

struct cuda_gemm {
    struct cuda_gemm_shape shape;
};

enum snug_status cuda_gemm_prepare(const struct cuda_gemm_shape *shape, struct cuda_gemm **gemm,
                                   struct snug_error *err)
{
    *gemm = NULL;
    if (!cuda_gemm_epilogue_fits(shape))
        return SNUG_OK;
    *gemm = malloc(sizeof **gemm);
    if (*gemm == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "matmul: out of memory while preparing it");
    (*gemm)->shape = cuda_gemm_unpacked(shape);
    return SNUG_OK;
}

void cuda_gemm_release(struct cuda_gemm *gemm)
{
    free(gemm);
}

bool cuda_gemm_fused_is_faster(const struct cuda_gemm *fused, const struct cuda_gemm *plain,
                               int64_t n_bytes)
{
    (void)fused, (void)plain, (void)n_bytes;
    return true;
}

static float load(enum dtype type, const void *data, int64_t at)
{
    return (float)dtype_load(type, data, at);
}

static float gelu_tanh(float x)
{
    return tanhf(0.7978845608f * (x + 0.044715f * x * x * x));
}

static float gelu(float x)
{
    return 0.5f * x * (1.0f + gelu_tanh(x));
}

static float gelu_slope(float x)
{
    float t = gelu_tanh(x);
    return 0.5f * (1.0f + t) +
           0.5f * x * (1.0f - t * t) * 0.7978845608f * (1.0f + 3.0f * 0.044715f * x * x);
}

/* Applies the epilogue to the sum at row i, column j, and stores it. */
static void finish(const struct cuda_gemm *p, const struct cuda_gemm_call *call, int64_t i,
                   int64_t j, int64_t c_at, float sum)
{
    const struct cuda_gemm_shape *s = &p->shape;
    float value = call->alpha * sum;
    if (call->beta != 0.0f)
        value += call->beta * load(s->c_type, call->r, c_at);
    if (s->epilogue == GEMM_bias || (s->epilogue == GEMM_gelu && s->has_bias))
        value += load(s->c_type, call->bias, j);
    if (s->epilogue == GEMM_gelu && s->saves_pre_act)
        dtype_store(s->c_type, call->pre_act, i * s->n + j, (double)value);
    if (s->epilogue == GEMM_gelu)
        value = gelu(value);
    if (s->epilogue == GEMM_dgelu || s->epilogue == GEMM_dgelu_sums)
        value *= gelu_slope(load(s->c_type, call->pre_act, i * s->n + j));
    dtype_store(s->c_type, call->c, c_at, (double)value);
}

struct batch_offsets { /* offsets of one gemm of a batch */
    int64_t a, b, c;
};

static void one_block(const struct cuda_gemm *p, const struct cuda_gemm_call *call,
                      const struct batch_offsets *at, int64_t i, int64_t first)
{
    const struct cuda_gemm_shape *s = &p->shape;
    int64_t a_row = s->a_transposed ? 1 : s->lda, a_step = s->a_transposed ? s->lda : 1;
    int64_t b_row = s->b_transposed ? 1 : s->ldb, b_step = s->b_transposed ? s->ldb : 1;
    int64_t n = s->n - first < BLOCK ? s->n - first : BLOCK;
    float sum[BLOCK] = {0};
    for (int64_t k = 0; k < s->k; k++) {
        float a = load(s->type, call->a, at->a + i * a_row + k * a_step);
        for (int64_t j = 0; j < n; j++)
            sum[j] += a * load(s->type, call->b, at->b + k * b_row + (first + j) * b_step);
    }
    for (int64_t j = 0; j < n; j++)
        finish(p, call, i, first + j, at->c + i * s->ldc + first + j, sum[j]);
}

static void sum_over_k(const struct cuda_gemm *p, const struct cuda_gemm_call *call)
{
    const struct cuda_gemm_shape *s = &p->shape;
    bool of_a = s->epilogue == GEMM_sums_a;
    const void *data = of_a ? call->a : call->b;
    bool k_first = of_a ? s->a_transposed : !s->b_transposed;
    int64_t ld = of_a ? s->lda : s->ldb;
    for (int64_t i = 0; i < (of_a ? s->m : s->n); i++) {
        float sum = 0.0f;
        for (int64_t k = 0; k < s->k; k++)
            sum += load(s->type, data, k_first ? k * ld + i : i * ld + k);
        dtype_store(s->c_type, call->sums, i, (double)sum);
    }
}

/* Sums C as stored. */
static void sum_over_m(const struct cuda_gemm *p, const struct cuda_gemm_call *call)
{
    const struct cuda_gemm_shape *s = &p->shape;
    for (int64_t j = 0; j < s->n; j++) {
        float sum = 0.0f;
        for (int64_t i = 0; i < s->m; i++)
            sum += load(s->c_type, call->c, i * s->ldc + j);
        dtype_store(s->c_type, call->sums, j, (double)sum);
    }
}

struct work { /* one run; a graph may execute it later, and more than once */
    struct cuda_gemm gemm;
    struct cuda_gemm_call call;
};

static void multiply(const void *arguments)
{
    const struct work *work = arguments;
    const struct cuda_gemm_shape *s = &work->gemm.shape;
    for (int64_t b = 0; b < s->n_batch; b++) {
        struct batch_offsets at = {b * s->batch_a, b * s->batch_b, b * s->batch_c};
        for (int64_t i = 0; i < s->m; i++)
            for (int64_t first = 0; first < s->n; first += BLOCK)
                one_block(&work->gemm, &work->call, &at, i, first);
    }
    if (s->epilogue == GEMM_sums_a || s->epilogue == GEMM_sums_b)
        sum_over_k(&work->gemm, &work->call);
    if (s->epilogue == GEMM_dgelu_sums)
        sum_over_m(&work->gemm, &work->call);
}

enum snug_status cuda_gemm_run(struct cuda_gemm *gemm, const struct cuda_gemm_call *call,
                               struct snug_error *err)
{
    if (call->work == NULL || (uintptr_t)call->work % 256 != 0)
        return snug_fail(err, SNUG_BAD_PROGRAM,
                         "matmul: the workspace is missing or not 256-byte aligned");
    struct work work = {*gemm, *call};
    stand_in_submit(call->stream, multiply, &work, sizeof work);
    return SNUG_OK;
}
