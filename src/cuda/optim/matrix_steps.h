/*
 * matrix_steps.h -- launchers of matrix_steps.cu: what the matrix optimizers do between gemms.
 */
#ifndef SNUG_CUDA_OPTIM_MATRIX_STEPS_H
#define SNUG_CUDA_OPTIM_MATRIX_STEPS_H

#include "cuda/kernels/launch.h"
#include "cuda/kernels/parts.h"

CUDA_LAUNCHERS_BEGIN

/* ---- muon; if scalars[skip], m is unchanged and u is 0
 * ----------------------------------------- */

/* m = mu m + (1-mu) g; parts: partial sums of the squares of u = (1-mu) g + mu m */
CUDA_LAUNCHER int cuda_muon_momentum(double mu, const double *scalars, int64_t n,
                                     struct cuda_array g, float *m, double *parts, void *stream);
/* x = bf16(u / max(|u|, 1e-7)), u recomputed */
CUDA_LAUNCHER int cuda_muon_begin(double mu, const double *scalars, int64_t n, struct cuda_array g,
                                  const float *m, const double *parts, uint16_t *x, void *stream);
CUDA_LAUNCHER int cuda_muon_end(const double *scalars, int64_t n, const uint16_t *x,
                                struct cuda_array u, void *stream);

/* ---- shampoo, caspr, soap; everything is fp32, square matrices are packed
 * ---------------------- */

/* y = keep y + rest x */
CUDA_LAUNCHER int cuda_matrix_mix(int64_t n, float keep, float *y, float rest, const float *x,
                                  void *stream);
/* to = factor from; both may be the same */
CUDA_LAUNCHER int cuda_matrix_scale(int64_t n, float factor, const float *from, float *to,
                                    void *stream);
CUDA_LAUNCHER int cuda_matrix_clear(int64_t n, float *x, void *stream);
/* a [n,n] = factor on the diagonal */
CUDA_LAUNCHER int cuda_matrix_identity(int64_t n, float factor, float *a, void *stream);
/* *sum = sum of a[i step] b[i step] for i < n, or of a alone if b is NULL.  parts: PARTS_MOST
 * doubles */
CUDA_LAUNCHER int cuda_matrix_sum(int64_t n, int64_t step, const float *a, const float *b,
                                  double *parts, double *sum, void *stream);
/* scale_rows: row i of q [n,n] *= values[i].  row_dots: values[i] = row i of a . row i of b. */
CUDA_LAUNCHER int cuda_matrix_scale_rows(int64_t n, const float *values, float *q, void *stream);
CUDA_LAUNCHER int cuda_matrix_row_dots(int64_t n, const float *a, const float *b, float *values,
                                       void *stream);
/* Permutes rows or columns: those of `to` [n_rows,width] are those of `from` in this order. */
CUDA_LAUNCHER int cuda_matrix_take(bool columns, int64_t n_rows, int64_t width,
                                   const int64_t *order, const float *from, float *to,
                                   void *stream);

struct moments_job {                  /* one block of a matrix, for shampoo and caspr */
    int64_t rows, cols, first, pitch; /* first: offset of its first element in the tensor; pitch:
                                       * between rows */
    float clip, beta1, rest1, beta, rest, scale, root_scale, eps;
};

/* g, h [rows,cols] of the block; u, m, v of the tensor; *sum: of the squares of the step in u.
 * parts: PARTS_MOST doubles */
CUDA_LAUNCHER int cuda_matrix_moments(const struct moments_job *job, struct cuda_array gradient,
                                      float *g, float *h, float *u, float *m, float *v,
                                      double *parts, double *sum, void *stream);
/* u = factor g, for the block of u */
CUDA_LAUNCHER int cuda_matrix_store(const struct moments_job *job, float factor, const float *g,
                                    float *u, void *stream);

/* m = beta1 m + rest1 x; v = beta2 v + rest2 x^2; x = m / (sqrt(v) + eps) */
CUDA_LAUNCHER int cuda_matrix_adam(int64_t n, float beta1, float rest1, float beta2, float rest2,
                                   float eps, float *x, float *m, float *v, void *stream);

/* Copies between host and device.  Blocking; they fail while the stream is captured. */
CUDA_LAUNCHER int cuda_matrix_fetch(void *to, const void *from, size_t bytes, void *stream);
CUDA_LAUNCHER int cuda_matrix_send(void *to, const void *from, size_t bytes, void *stream);

CUDA_LAUNCHERS_END

#endif
