/*
 * sums.h -- launchers of sums.cu.
 */
#ifndef SNUG_CUDA_KERNELS_SUMS_H
#define SNUG_CUDA_KERNELS_SUMS_H

#include "cuda/kernels/launch.h"

enum { CUDA_SUM_PARTS = 512, CUDA_SUM_ROWS = 64 };

/* The number of parts into which a long column is split; evenly split, each has at least
 * CUDA_SUM_ROWS rows. Batchnorm deals rows out in turn, and its last parts may have fewer. */
static inline int64_t cuda_sum_parts_of(int64_t n_rows)
{
    int64_t n = n_rows / CUDA_SUM_ROWS;
    return n < 2 ? 1 : n < CUDA_SUM_PARTS ? n : (int64_t)CUDA_SUM_PARTS;
}

/* Floats of workspace for cuda_sum_columns. */
static inline int64_t cuda_sum_columns_work(int64_t n_rows, int64_t width)
{
    int64_t n_parts = cuda_sum_parts_of(n_rows);
    return n_parts == 1 ? 0 : n_parts * width;
}

enum { CUDA_SQUARE_ELEMS = 8192, CUDA_SQUARE_PARTS = 1024 };
static inline int64_t cuda_square_parts(int64_t n)
{
    int64_t n_parts = (n + CUDA_SQUARE_ELEMS - 1) / CUDA_SQUARE_ELEMS;
    return n_parts < CUDA_SQUARE_PARTS ? n_parts : (int64_t)CUDA_SQUARE_PARTS;
}

/* Limits of one launch: the number of tensors, and of parts of all of them. */
enum { CUDA_SQUARE_TENSORS = 32, CUDA_SQUARE_LIST_PARTS = 8 * CUDA_SQUARE_PARTS };
struct cuda_square {
    int64_t n;
    struct cuda_array x;
    double *sum;
};

enum { CUDA_SUM_GROUPS = 3 };
struct cuda_sum_groups {
    int n;
    struct cuda_array to[CUDA_SUM_GROUPS]; /* each optional */
};

CUDA_LAUNCHERS_BEGIN
/* to[c] (+)= sum over rows of from[row * pitch + c], c < width.  For few rows, or for hundreds of
 * rows if there are few columns. */
CUDA_LAUNCHER int cuda_sum_rows(struct cuda_array from, int64_t n_rows, int64_t pitch,
                                int64_t width, struct cuda_array to, bool add, void *stream);
/* The same for adjacent groups of `width` columns, each into its own array, in one launch. */
CUDA_LAUNCHER int cuda_sum_groups(struct cuda_array from, int64_t n_rows, int64_t width,
                                  const struct cuda_sum_groups *groups, bool add, void *stream);
/* cuda_sum_rows for any number of packed rows. */
CUDA_LAUNCHER int cuda_sum_columns(struct cuda_array from, int64_t n_rows, int64_t width,
                                   float *work, struct cuda_array to, bool add, void *stream);
/* parts[i] = partial sum of (x - minus)^2, in fp64.  The cuda_square_parts(n) parts add up to the
 * whole. */
CUDA_LAUNCHER int cuda_sum_square_gaps(int64_t n, struct cuda_array x, const float *minus,
                                       double *parts, void *stream);
/* *sum = sum of x^2, for each tensor; parts: workspace for the parts of all tensors */
CUDA_LAUNCHER int cuda_sum_squares(int n_tensors, const struct cuda_square *tensors, double *parts,
                                   void *stream);
/* to (+)= factor * sum of parts; to is one f32 or f64 element */
CUDA_LAUNCHER int cuda_total(const double *parts, int64_t n, double factor, struct cuda_array to,
                             bool add, void *stream);
/* Zeroes n_bytes. */
CUDA_LAUNCHER int cuda_clear(void *data, size_t n_bytes, void *stream);
CUDA_LAUNCHERS_END

#endif
