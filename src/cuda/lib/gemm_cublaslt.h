/*
 * gemm_cublaslt.h -- shared by the two halves of the cuBLASLt gemms: cuda_gemm.c describes and runs
 * them, gemm_algorithm.c chooses their algorithms.
 */
#ifndef SNUG_CUDA_LIB_GEMM_CUBLASLT_H
#define SNUG_CUDA_LIB_GEMM_CUBLASLT_H

#include "cuda/lib/cuda_libs.h"
#include "cuda/lib/cuda_gemm.h"

/* cuBLASLt is column-major, so we ask it for C^T = op(B)^T op(A)^T: its left matrix is our B, its
 * right matrix is our A, and its rows are our columns. */
struct cuda_gemm {
    struct cuda_gemm_shape shape; /* with all strides filled in */
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t how;
    cublasLtMatrixLayout_t left, right, result;
    cublasLtMatmulAlgo_t algorithm;
    float ms; /* time of the algorithm when it was chosen; 0: not timed */
};

/* Sets p->algorithm and p->ms.  *found is false if the library has no algorithm. */
enum snug_status cuda_gemm_choose(struct cuda_gemm *p, bool *found, struct snug_error *err);
/* Launches one gemm with `algorithm`. */
cublasStatus_t cuda_gemm_launch(const struct cuda_gemm *p, const cublasLtMatmulAlgo_t *algorithm,
                                const struct cuda_gemm_call *call);

#endif
