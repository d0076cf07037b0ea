/*
 * cuda_gemm.c -- gemms with cuBLASLt: their descriptors, and launching them.
 *
 * Everything about a gemm that stays the same from step to step is described once, when it is
 * prepared.  A run only sets the addresses.
 */
#include "cuda/lib/cuda_gemm.h"

#include <stdlib.h>

#include "cuda/lib/gemm_cublaslt.h"

static cudaDataType_t type_of(enum dtype type)
{
    return type == DTYPE_f32 ? CUDA_R_32F : type == DTYPE_bf16 ? CUDA_R_16BF : CUDA_R_16F;
}

static cublasLtEpilogue_t epilogue_of(const struct cuda_gemm_shape *s)
{
    switch (s->epilogue) {
    case GEMM_bias:
        return CUBLASLT_EPILOGUE_BIAS;
    case GEMM_gelu:
        if (s->saves_pre_act)
            return s->has_bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
        return s->has_bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    case GEMM_dgelu:
        return CUBLASLT_EPILOGUE_DGELU;
    case GEMM_dgelu_sums: /* sums our columns, which are cuBLASLt's rows */
        return CUBLASLT_EPILOGUE_DGELU_BGRAD;
    case GEMM_sums_a: /* our A is its right matrix, which it calls B */
        return CUBLASLT_EPILOGUE_BGRADB;
    case GEMM_sums_b:
        return CUBLASLT_EPILOGUE_BGRADA;
    default:
        return CUBLASLT_EPILOGUE_DEFAULT;
    }
}

/* The address passed as the bias: the bias itself, or where the sums go. */
static void *bias_of(const struct cuda_gemm_shape *s, const struct cuda_gemm_call *call)
{
    if (s->epilogue == GEMM_sums_a || s->epilogue == GEMM_sums_b || s->epilogue == GEMM_dgelu_sums)
        return call->sums;
    return s->epilogue == GEMM_bias || s->has_bias ? (void *)call->bias : NULL;
}

static cublasStatus_t set(cublasLtMatmulDesc_t how, cublasLtMatmulDescAttributes_t attribute,
                          const void *value, size_t bytes)
{
    return cublasLtMatmulDescSetAttribute(how, attribute, value, bytes);
}

static cublasStatus_t set_addresses(const struct cuda_gemm *p, const struct cuda_gemm_call *call)
{
    void *bias = bias_of(&p->shape, call);
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    if (bias != NULL)
        status = set(p->how, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    if (status == CUBLAS_STATUS_SUCCESS && cuda_gemm_has_pre_act(&p->shape))
        status = set(p->how, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &call->pre_act,
                     sizeof call->pre_act);
    return status;
}

static cublasStatus_t describe_how(struct cuda_gemm *p)
{
    const struct cuda_gemm_shape *s = &p->shape;
    /* Accumulates in fp32 for every type; fp32 operands are multiplied in true fp32, not TF32. */
    cublasStatus_t status = cublasLtMatmulDescCreate(&p->how, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    int32_t left = s->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    int32_t right = s->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    uint32_t epilogue = (uint32_t)epilogue_of(s);
    int64_t pre_act_pitch = s->n;
    if (status == CUBLAS_STATUS_SUCCESS)
        status = set(p->how, CUBLASLT_MATMUL_DESC_TRANSA, &left, sizeof left);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = set(p->how, CUBLASLT_MATMUL_DESC_TRANSB, &right, sizeof right);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = set(p->how, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (status == CUBLAS_STATUS_SUCCESS && cuda_gemm_has_pre_act(s))
        status =
            set(p->how, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &pre_act_pitch, sizeof pre_act_pitch);
    /* The algorithm search uses these addresses only for their alignment. */
    void *aligned = (void *)(uintptr_t)s->alignment; // NOLINT(performance-no-int-to-ptr)
    struct cuda_gemm_call nowhere = {.bias = aligned, .pre_act = aligned, .sums = aligned};
    return status == CUBLAS_STATUS_SUCCESS ? set_addresses(p, &nowhere) : status;
}

static cublasStatus_t describe_matrix(cublasLtMatrixLayout_t *matrix, enum dtype type, int64_t rows,
                                      int64_t columns, int64_t pitch, int64_t n_batch,
                                      int64_t batch_step)
{
    cublasStatus_t status =
        cublasLtMatrixLayoutCreate(matrix, type_of(type), (uint64_t)rows, (uint64_t)columns, pitch);
    int32_t count = (int32_t)n_batch;
    if (status == CUBLAS_STATUS_SUCCESS && n_batch > 1)
        status = cublasLtMatrixLayoutSetAttribute(*matrix, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                  &count, sizeof count);
    if (status == CUBLAS_STATUS_SUCCESS && n_batch > 1)
        status = cublasLtMatrixLayoutSetAttribute(
            *matrix, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch_step, sizeof batch_step);
    return status;
}

static cublasStatus_t describe(struct cuda_gemm *p)
{
    const struct cuda_gemm_shape *s = &p->shape;
    cublasStatus_t status = describe_how(p);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = describe_matrix(&p->left, s->type, s->b_transposed ? s->k : s->n,
                                 s->b_transposed ? s->n : s->k, s->ldb, s->n_batch, s->batch_b);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = describe_matrix(&p->right, s->type, s->a_transposed ? s->m : s->k,
                                 s->a_transposed ? s->k : s->m, s->lda, s->n_batch, s->batch_a);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = describe_matrix(&p->result, s->c_type, s->n, s->m, s->ldc, s->n_batch, s->batch_c);
    return status;
}

void cuda_gemm_release(struct cuda_gemm *p)
{
    if (p == NULL)
        return;
    if (p->left != NULL)
        cublasLtMatrixLayoutDestroy(p->left);
    if (p->right != NULL)
        cublasLtMatrixLayoutDestroy(p->right);
    if (p->result != NULL)
        cublasLtMatrixLayoutDestroy(p->result);
    if (p->how != NULL)
        cublasLtMatmulDescDestroy(p->how);
    free(p);
}

static enum snug_status nothing_found(const struct cuda_gemm_shape *s, struct snug_error *err)
{
    return snug_fail(err, SNUG_UNSUPPORTED,
                     "cuBLASLt has no algorithm for a %lld x %lld x %lld matmul of %s to %s",
                     (long long)s->m, (long long)s->n, (long long)s->k, dtype_name(s->type),
                     dtype_name(s->c_type));
}

enum snug_status cuda_gemm_prepare(const struct cuda_gemm_shape *shape, struct cuda_gemm **gemm,
                                   struct snug_error *err)
{
    *gemm = NULL;
    if (!cuda_gemm_epilogue_fits(shape))
        return SNUG_OK;
    struct cuda_gemm *p = calloc(1, sizeof *p);
    if (p == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "matmul: out of memory while preparing it");
    p->shape = cuda_gemm_unpacked(shape);
    bool found = false;
    enum snug_status status = cuda_library_blas(&p->handle, err);
    if (status == SNUG_OK)
        status = cuda_library_check_blas(describe(p), "describing a matmul", err);
    if (status == SNUG_OK)
        status = cuda_gemm_choose(p, &found, err);
    if (status == SNUG_OK && !found && shape->epilogue == GEMM_plain)
        status = nothing_found(&p->shape, err);
    if (status == SNUG_OK && found)
        *gemm = p;
    else
        cuda_gemm_release(p);
    return status;
}

cublasStatus_t cuda_gemm_launch(const struct cuda_gemm *p, const cublasLtMatmulAlgo_t *algorithm,
                                const struct cuda_gemm_call *call)
{
    cublasStatus_t status = set_addresses(p, call);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    return cublasLtMatmul(p->handle, p->how, &call->alpha, call->b, p->left, call->a, p->right,
                          &call->beta, call->r != NULL ? call->r : call->c, p->result, call->c,
                          p->result, algorithm, call->work, cuda_gemm_work_bytes(&p->shape),
                          call->stream);
}

enum snug_status cuda_gemm_run(struct cuda_gemm *gemm, const struct cuda_gemm_call *call,
                               struct snug_error *err)
{
    return cuda_library_check_blas(cuda_gemm_launch(gemm, &gemm->algorithm, call),
                                   "running a matmul", err);
}
