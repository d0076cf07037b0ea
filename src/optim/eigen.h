/*
 * eigen.h -- eigenvectors of symmetric matrices, and orthonormal rows.
 *
 * We use LAPACK, on one thread, if the system has it.  Otherwise our own loops, which are also the
 * reference, do the work: correct, but slow from a few hundred rows on.  The workspace is what
 * LAPACK needs, in every build.  The functions return false if the matrix has non-finite elements
 * or the solver does not converge; the outputs are then undefined.
 */
#ifndef SNUG_OPTIM_EIGEN_H
#define SNUG_OPTIM_EIGEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void spectral_load(void); /* loads LAPACK if the system has it; call before the functions below */
size_t spectral_work_bytes(int64_t n);

/* Replaces the symmetric a [n,n] by its eigenvectors, one per row; the values are in no particular
 * order.  f32: if `quick`, tries fp32 before fp64.  Without `vectors` only the values are
 * computed. */
bool eigen_f32(int64_t n, float *a, float *values, bool quick, bool vectors, void *work);
bool eigen_f64(int64_t n, double *a, double *values, void *work);

/* Makes the rows of z [n,n] orthonormal, in order, as QR does with columns. */
bool orthonormal_f32(int64_t n, float *z, void *work);
bool orthonormal_f64(int64_t n, double *z, void *work);

struct text;
void spectral_describe(struct text *out); /* one line: which library is used */

#endif
