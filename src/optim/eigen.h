/*
 * eigen.h -- eigenvectors of symmetric matrices, and orthonormal rows.
 *
 * With LAPACK, where the system has it, on one thread; else by our own loops, which are the reference's:
 * right, but slow from a few hundred rows on.  Workspace is booked as LAPACK's formulas say, in every
 * build.  A false result leaves garbage: a matrix with numbers that are not finite, or no convergence.
 */
#ifndef SNUG_OPTIM_EIGEN_H
#define SNUG_OPTIM_EIGEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void spectral_load(void); /* LAPACK, if it is there; before the first of these */
size_t spectral_work_bytes(int64_t n);

/* a [n,n] symmetric becomes its eigenvectors, one a row, of values in any order.  f32: tried in fp32
 * first if `quick`, then in fp64; without `vectors` only values count. */
bool eigen_f32(int64_t n, float *a, float *values, bool quick, bool vectors, void *work);
bool eigen_f64(int64_t n, double *a, double *values, void *work);

/* The rows of z [n,n], made orthonormal one after the other, as QR does with columns. */
bool orthonormal_f32(int64_t n, float *z, void *work);
bool orthonormal_f64(int64_t n, double *z, void *work);

struct text;
void spectral_describe(struct text *out); /* one line */

#endif
