/*
 * matrix.h -- launchers of matrix.cu: what the optimizers that work on whole matrices do between products.
 */
#ifndef SNUG_CUDA_MATRIX_H
#define SNUG_CUDA_MATRIX_H

#include "cuda/launch.h"
#include "cuda/parts.h"

CUDA_LAUNCHERS_BEGIN

/* ---- muon: nothing happens to m, and u is 0, if scalars[skip] ---------------------------------- */

/* m = mu m + (1-mu) g; parts: the squares of u = (1-mu) g + mu m by parts */
CUDA_LAUNCHER int cuda_muon_momentum(double mu, const double *scalars, int64_t n,
                                     struct cuda_array g, float *m, double *parts, void *stream);
/* x = bf16(u / max(|u|, 1e-7)), u made again */
CUDA_LAUNCHER int cuda_muon_begin(double mu, const double *scalars, int64_t n, struct cuda_array g,
                                  const float *m, const double *parts, uint16_t *x, void *stream);
CUDA_LAUNCHER int cuda_muon_end(const double *scalars, int64_t n, const uint16_t *x,
                                struct cuda_array u, void *stream);

CUDA_LAUNCHERS_END

#endif
