/*
 * dispatch_gemm.c -- what follows from the shape of a gemm alone, for planning without a device.
 */
#include "cuda/lib/cuda_gemm.h"

struct cuda_gemm_shape cuda_gemm_unpacked(const struct cuda_gemm_shape *shape)
{
    struct cuda_gemm_shape full = *shape;
    if (full.lda == 0)
        full.lda = full.a_transposed ? full.m : full.k;
    if (full.ldb == 0)
        full.ldb = full.b_transposed ? full.k : full.n;
    if (full.ldc == 0)
        full.ldc = full.n;
    if (full.n_batch == 0)
        full.n_batch = 1;
    if (full.alignment == 0)
        full.alignment = 16;
    return full;
}

bool cuda_gemm_has_pre_act(const struct cuda_gemm_shape *shape)
{
    return shape->epilogue == GEMM_dgelu || shape->epilogue == GEMM_dgelu_sums ||
           (shape->epilogue == GEMM_gelu && shape->saves_pre_act);
}

bool cuda_gemm_epilogue_fits(const struct cuda_gemm_shape *shape)
{
    bool rows_fit = !cuda_gemm_has_pre_act(shape) || shape->n % 8 == 0;
    return shape->epilogue == GEMM_plain || (shape->n_batch <= 1 && rows_fit);
}

/* Hopper's algorithms need at most 32 MiB.  A small gemm gets less: enough for eight partial
 * results in fp32, in case its sum over k is split. */
size_t cuda_gemm_work_bytes(const struct cuda_gemm_shape *shape)
{
    const size_t least = (size_t)64 << 10, most = (size_t)32 << 20;
    size_t n_batch = shape->n_batch > 1 ? (size_t)shape->n_batch : 1;
    size_t partials = (size_t)shape->m * (size_t)shape->n * n_batch * 8 * sizeof(float);
    size_t bytes = partials < most ? partials : most;
    return bytes > least ? (bytes + 255) / 256 * 256 : least;
}

int cuda_gemm_alignment(const struct program *prog, const struct op *op)
{
    int64_t bits = 16;
    for (int k = 0; k < op->n_in + op->n_out; k++) {
        tensor_id id = k < op->n_in ? op->in[k] : op->out[k - op->n_in];
        if (id != TENSOR_NONE)
            bits |= prog->tensors[id].offset_elems * (int64_t)dtype_bytes(prog->tensors[id].dtype);
    }
    return (int)(bits & -bits);
}
