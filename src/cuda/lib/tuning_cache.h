/*
 * tuning_cache.h -- remembers which algorithm was chosen for each gemm shape.
 *
 * The table lives as long as the process, its file (tuning_cache_file.h) longer.  Later runs use
 * the same algorithm for every gemm, so they give the same bits and start without timing anything.
 */
#ifndef SNUG_CUDA_LIB_TUNING_CACHE_H
#define SNUG_CUDA_LIB_TUNING_CACHE_H

#include "cuda/lib/cuda_libs.h"
#include "cuda/lib/cuda_gemm.h"

/* All strides of the shape must be filled in.  ms: the time measured when the algorithm was chosen.
 * An added tuning replaces one that is no longer valid.  Call find after add: the file may hold
 * another choice. */
bool tuning_cache_find(const struct cuda_gemm_shape *shape, cublasLtMatmulAlgo_t *algorithm,
                       float *ms, bool *from_file);
enum snug_status tuning_cache_add(const struct cuda_gemm_shape *shape,
                                  const cublasLtMatmulAlgo_t *algorithm, float ms,
                                  struct snug_error *err);

#endif
