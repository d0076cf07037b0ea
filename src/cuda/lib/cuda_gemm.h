/*
 * cuda_gemm.h -- matmuls on the device, prepared before the step:
 *
 *     C[m,n] = end(alpha op(A)[m,k] op(B)[k,n] + beta R[m,n])
 *
 * Row-major, with strides between rows and between the matrices of a batch.  Made by cuBLASLt
 * (cuda_gemm.c), or under emulation by plain loops over the same numbers (gemm_emulated.c).
 *
 * A and B have one type: bf16, f16 or f32.  C has that type or is f32, and so have R, bias, `before`
 * and `sums`, which are of C's type.  Sums are kept in fp32 and rounded once, on their way into C.
 * fp32 matmuls are in true fp32.  The same matmul gives the same bits every time: no atomics, and
 * one algorithm for each shape in a process.
 *
 * Workspace is booked from the shape alone, so that a plan can be made where there is no device; no
 * algorithm that wants more is taken.
 */
#ifndef SNUG_CUDA_LIB_CUDA_GEMM_H
#define SNUG_CUDA_LIB_CUDA_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "cuda/kernels/launch.h"
#include "ir/program.h"

enum cuda_gemm_end {
    GEMM_plain,
    GEMM_bias,      /* + bias[n] */
    GEMM_gelu,      /* v = ... + bias[n] if has_bias; `before` = v if keeps_before; C = gelu(v) */
    GEMM_dgelu,     /* times gelu'(before) */
    GEMM_sums_a,    /* plain, and sums[m] = op(A) summed over k: a bias gradient */
    GEMM_sums_b,    /* plain, and sums[n] = op(B) summed over k */
    GEMM_dgelu_sums /* dgelu, and sums[n] = C summed over m, rounded or before it is */
};

struct cuda_gemm_shape {
    int64_t m, n, k;                 /* all at least 1 */
    bool a_transposed, b_transposed; /* A lies as [k,m], B lies as [n,k] */
    int64_t lda, ldb, ldc;    /* elements from row to row as they lie; 0: packed.  R has ldc */
    int64_t n_batch;          /* 0 and 1: one matmul; more: no end but plain */
    int64_t batch_a, batch_b; /* elements from matrix to matrix; 0: the same one again */
    int64_t batch_c;          /* of C and of R */
    enum dtype type, c_type;  /* of A and B; of all the others */
    enum cuda_gemm_end end;
    bool has_bias, keeps_before; /* of GEMM_gelu */
    /* What every operand's address is a multiple of, at most 256; 0: 16. */
    int alignment;
};

struct cuda_gemm_call {
    const void *a, *b;
    void *c;
    const void *r; /* NULL with beta 0; may be c; else it may not overlap c */
    float alpha, beta;
    const void *bias;
    /* Written by gelu, read by the dgelus; rows lie packed, n apart; it may not be c. */
    void *before;
    void *sums;
    void *work; /* as many bytes as cuda_gemm_work_bytes said, 256-byte aligned */
    void *stream;
};

struct cuda_gemm;

/* The shape with every stride between rows filled in. */
struct cuda_gemm_shape cuda_gemm_unpacked(const struct cuda_gemm_shape *shape);
/* Is there a matrix `before`, to be read or written? */
bool cuda_gemm_has_before(const struct cuda_gemm_shape *shape);
/* GELU keeps what was before it in rows of a multiple of 8 numbers, and knows no batches; neither
 * do the other ends.  What this allows the library may still refuse. */
bool cuda_gemm_end_fits(const struct cuda_gemm_shape *shape);
/* What the addresses of all operands of an op are multiples of; a view may begin anywhere in its
 * base. */
int cuda_gemm_alignment(const struct program *prog, const struct op *op);

/* The name of the rows that are made with it. */
#define GEMM_NAME "cublaslt"

size_t cuda_gemm_work_bytes(const struct cuda_gemm_shape *shape);
/* Chooses the algorithm; times the candidates of a shape that neither this process nor the file of pins
 * (tuning_cache_file.h) knows.
 * *matmul is NULL, which is not an error, if an end other than the plain one cannot be had: then
 * prepare the plain matmul and do the rest apart. */
CUDA_LAUNCHER enum snug_status cuda_gemm_prepare(const struct cuda_gemm_shape *shape,
                                                 struct cuda_gemm **gemm, struct snug_error *err);
CUDA_LAUNCHER void cuda_gemm_release(struct cuda_gemm *gemm); /* NULL is fine */
/* Is a matmul that ends in `fused` faster than `plain` and a walk over n_bytes after it?  By what both
 * took when their algorithms were chosen; near ties, and what was not timed, go to the fused one. */
CUDA_LAUNCHER bool cuda_gemm_is_worth(const struct cuda_gemm *fused, const struct cuda_gemm *plain,
                                      int64_t n_bytes);
/* Queues it on the stream.  One thread at a time for one matmul. */
CUDA_LAUNCHER enum snug_status
cuda_gemm_run(struct cuda_gemm *gemm, const struct cuda_gemm_call *call, struct snug_error *err);

#endif
