/*
 * tuning_cache.h -- which algorithm makes which matmul, from its first choice on.
 *
 * The table lives as long as the process, and its file (tuning_cache_file.h) longer: another run makes every
 * matmul with the same algorithm, gives the same bits, and starts without timing anything.
 */
#ifndef SNUG_CUDA_LIB_TUNING_CACHE_H
#define SNUG_CUDA_LIB_TUNING_CACHE_H

#include "cuda/lib/cuda_libs.h"
#include "cuda/lib/cuda_gemm.h"

/* The shape is one with every stride filled in.  ms: what it took when it was chosen.  A pin that is added
 * takes the place of one that no longer serves; what counts afterwards is what is found. */
bool tuning_cache_find(const struct cuda_gemm_shape *shape, cublasLtMatmulAlgo_t *algorithm,
                       float *ms, bool *from_file);
enum snug_status tuning_cache_add(const struct cuda_gemm_shape *shape,
                                  const cublasLtMatmulAlgo_t *algorithm, float ms,
                                  struct snug_error *err);

#endif
