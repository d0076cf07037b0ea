/*
 * cuda_gemm.h -- gemms on the device, prepared before the step:
 *
 *     C[m,n] = epilogue(alpha op(A)[m,k] op(B)[k,n] + beta R[m,n])
 *
 * Matrices are row-major, with strides between rows and between the matrices of a batch.  cuBLASLt
 * runs them (cuda_gemm.c); under emulation plain loops over the same data do (gemm_emulated.c).
 *
 * A and B have one type: bf16, f16 or f32.  C has that type or f32; R, the bias, pre_act and `sums`
 * have the type of C.  Sums are accumulated in fp32 and rounded once, when stored to C.  fp32 gemms
 * use true fp32, not TF32.  The same gemm gives the same bits every time: no atomics, and one
 * algorithm per shape in a process.
 *
 * The workspace size follows from the shape alone, so a plan can be made without a device.
 * Algorithms that need more are rejected.
 */
#ifndef SNUG_CUDA_LIB_CUDA_GEMM_H
#define SNUG_CUDA_LIB_CUDA_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "cuda/kernels/launch.h"
#include "ir/program.h"

enum cuda_gemm_epilogue {
    GEMM_plain,
    GEMM_bias,      /* + bias[n] */
    GEMM_gelu,      /* v = ... + bias[n] if has_bias; pre_act = v if saves_pre_act; C = gelu(v) */
    GEMM_dgelu,     /* times gelu'(pre_act) */
    GEMM_sums_a,    /* plain, and sums[m] = op(A) summed over k: a bias gradient */
    GEMM_sums_b,    /* plain, and sums[n] = op(B) summed over k */
    GEMM_dgelu_sums /* dgelu, and sums[n] = C summed over m, before or after rounding */
};

struct cuda_gemm_shape {
    int64_t m, n, k;                 /* all at least 1 */
    bool a_transposed, b_transposed; /* A is stored [k,m], B is stored [n,k] */
    int64_t lda, ldb, ldc;           /* elements between rows as stored; 0: packed. R has ldc */
    int64_t n_batch;                 /* 0 or 1: one gemm; more: only the plain epilogue */
    int64_t batch_a, batch_b;        /* elements between matrices; 0: the same matrix for all */
    int64_t batch_c;                 /* for C and R */
    enum dtype type, c_type;         /* of A and B; of everything else */
    enum cuda_gemm_epilogue epilogue;
    bool has_bias, saves_pre_act; /* for GEMM_gelu */
    /* Every operand's address is a multiple of this, at most 256; 0 means 16. */
    int alignment;
};

struct cuda_gemm_call {
    const void *a, *b;
    void *c;
    const void *r; /* NULL if beta is 0; may be c, but must not overlap it otherwise */
    float alpha, beta;
    const void *bias;
    /* Written by gelu, read by the dgelus.  Packed rows of n elements; must not be c. */
    void *pre_act;
    void *sums;
    void *work; /* cuda_gemm_work_bytes bytes, 256-byte aligned */
    void *stream;
};

struct cuda_gemm;

/* dispatch_gemm.c has the functions that plans need: these four and cuda_gemm_work_bytes.
 *
 * The shape with all strides filled in. */
struct cuda_gemm_shape cuda_gemm_unpacked(const struct cuda_gemm_shape *shape);
/* Does the epilogue read or write pre_act? */
bool cuda_gemm_has_pre_act(const struct cuda_gemm_shape *shape);
/* Does the shape allow its epilogue?  pre_act needs rows of a multiple of 8 elements, and only the
 * plain epilogue supports batches.  The library may still reject what this allows. */
bool cuda_gemm_epilogue_fits(const struct cuda_gemm_shape *shape);
/* The largest power of two, at most 16, that divides the addresses of all operands of an op.  A
 * view may begin anywhere in its base. */
int cuda_gemm_alignment(const struct program *prog, const struct op *op);

/* The name of the kernels that use it. */
#define GEMM_NAME "cublaslt"

size_t cuda_gemm_work_bytes(const struct cuda_gemm_shape *shape);
/* Chooses the algorithm.  Times the candidates unless this process or the tuning cache
 * (tuning_cache_file.h) knows the shape.  If the library does not support an epilogue other than
 * plain, *gemm is NULL and the status is OK: prepare the plain gemm and do the rest in a separate
 * kernel. */
CUDA_LAUNCHER enum snug_status cuda_gemm_prepare(const struct cuda_gemm_shape *shape,
                                                 struct cuda_gemm **gemm, struct snug_error *err);
CUDA_LAUNCHER void cuda_gemm_release(struct cuda_gemm *gemm); /* NULL is fine */
/* Is `fused` faster than `plain` followed by a pass over n_bytes?  Compares the times measured when
 * the algorithms were chosen.  Near ties and gemms that were not timed go to the fused one. */
CUDA_LAUNCHER bool cuda_gemm_fused_is_faster(const struct cuda_gemm *fused,
                                             const struct cuda_gemm *plain, int64_t n_bytes);
/* Enqueues the gemm on the stream.  Only one thread at a time may run a given gemm. */
CUDA_LAUNCHER enum snug_status
cuda_gemm_run(struct cuda_gemm *gemm, const struct cuda_gemm_call *call, struct snug_error *err);

#endif
