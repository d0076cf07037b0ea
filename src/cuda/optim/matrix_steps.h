/*
 * matrix_steps.h -- launchers of matrix_steps.cu: what the optimizers that work on whole matrices do between matmuls.
 */
#ifndef SNUG_CUDA_OPTIM_MATRIX_STEPS_H
#define SNUG_CUDA_OPTIM_MATRIX_STEPS_H

#include "cuda/kernels/launch.h"
#include "cuda/kernels/parts.h"

CUDA_LAUNCHERS_BEGIN

/* ---- muon: nothing happens to m, and u is 0, if scalars[skip] ---------------------------------- */

/* m = mu m + (1-mu) g; parts: the squares of u = (1-mu) g + mu m by parts */
CUDA_LAUNCHER int cuda_muon_momentum(double mu, const double *scalars, int64_t n,
                                     struct cuda_array g, float *m, double *parts, void *stream);
/* x = bf16(u / max(|u|, 1e-7)), u recomputed */
CUDA_LAUNCHER int cuda_muon_begin(double mu, const double *scalars, int64_t n, struct cuda_array g,
                                  const float *m, const double *parts, uint16_t *x, void *stream);
CUDA_LAUNCHER int cuda_muon_end(const double *scalars, int64_t n, const uint16_t *x,
                                struct cuda_array u, void *stream);

/* ---- shampoo, caspr, soap: all numbers fp32, squares without gaps ------------------------------- */

/* y = keep y + rest x */
CUDA_LAUNCHER int cuda_matrix_mix(int64_t n, float keep, float *y, float rest, const float *x,
                                  void *stream);
/* to = factor from; they may be the same */
CUDA_LAUNCHER int cuda_matrix_scale(int64_t n, float factor, const float *from, float *to,
                                    void *stream);
CUDA_LAUNCHER int cuda_matrix_clear(int64_t n, float *x, void *stream);
/* a [n,n] = factor on the diagonal */
CUDA_LAUNCHER int cuda_matrix_identity(int64_t n, float factor, float *a, void *stream);
/* *sum = that of a[i step] b[i step] for n numbers i; b NULL: of a alone.  parts: PARTS_MOST */
CUDA_LAUNCHER int cuda_matrix_sum(int64_t n, int64_t step, const float *a, const float *b,
                                  double *parts, double *sum, void *stream);
/* Rows of q [n,n] times a value each; values[i] = row i of a times that of b. */
CUDA_LAUNCHER int cuda_matrix_scale_rows(int64_t n, const float *values, float *q, void *stream);
CUDA_LAUNCHER int cuda_matrix_row_gemms(int64_t n, const float *a, const float *b, float *values,
                                        void *stream);
/* to [n_rows,width]: its rows, or its columns, are those of `from` in this order. */
CUDA_LAUNCHER int cuda_matrix_take(bool columns, int64_t n_rows, int64_t width,
                                   const int64_t *order, const float *from, float *to,
                                   void *stream);

struct moments_job {                  /* of one block of a matrix, for shampoo and caspr */
    int64_t rows, cols, first, pitch; /* its first element in the tensor, from row to row */
    float clip, beta1, rest1, beta, rest, scale, root_scale, eps;
};

/* g, h [rows,cols] of the block; u, m, v of the tensor; *sum: of a^2, which u is.  parts: PARTS_MOST */
CUDA_LAUNCHER int cuda_matrix_moments(const struct moments_job *job, struct cuda_array gradient,
                                      float *g, float *h, float *u, float *m, float *v,
                                      double *parts, double *sum, void *stream);
/* The block of u = factor g */
CUDA_LAUNCHER int cuda_matrix_store(const struct moments_job *job, float factor, const float *g,
                                    float *u, void *stream);

/* m = beta1 m + rest1 x; v = beta2 v + rest2 x^2; x = m / (sqrt(v) + eps) */
CUDA_LAUNCHER int cuda_matrix_adam(int64_t n, float beta1, float rest1, float beta2, float rest2,
                                   float eps, float *x, float *m, float *v, void *stream);

/* Between the host and the device, done when they return; they fail while the stream is recorded. */
CUDA_LAUNCHER int cuda_matrix_fetch(void *to, const void *from, size_t bytes, void *stream);
CUDA_LAUNCHER int cuda_matrix_send(void *to, const void *from, size_t bytes, void *stream);

CUDA_LAUNCHERS_END

#endif
