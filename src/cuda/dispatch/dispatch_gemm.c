/*
 * dispatch_gemm.c -- what is known of a matmul from its shape alone, for the rows that plan one.
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

bool cuda_gemm_has_before(const struct cuda_gemm_shape *shape)
{
    return shape->end == GEMM_dgelu || shape->end == GEMM_dgelu_sums ||
           (shape->end == GEMM_gelu && shape->keeps_before);
}

bool cuda_gemm_end_fits(const struct cuda_gemm_shape *shape)
{
    bool rows_fit = !cuda_gemm_has_before(shape) || shape->n % 8 == 0;
    return shape->end == GEMM_plain || (shape->n_batch <= 1 && rows_fit);
}

/* What Hopper's algorithms want at most is 32 MiB; a small matmul is not worth so much: room for
 * eight partial results in fp32, should its sums over k be split. */
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
