/*
 * matrix_tools.h -- the primitives of shampoo, caspr and soap, whose steps (matrix_blocks.h,
 * matrix_soap.h) are written once for all devices.
 *
 * A file that includes them first sets MATRIX_REAL to its compute type and defines each function
 * below: the CPU reference in fp64, the fast CPU kernels in fp32 (cpu/matrix), the GPU kernels in
 * cuda/dispatch/dispatch_matrix.c.  The algorithm and its order of operations are common to all.
 *
 * A `real *` is device memory, and so is the workspace.  Only eigenvalues and sort orders, one
 * element per row of a square matrix, are in host memory.  `offset` is a byte offset in the
 * workspace.
 */
#ifndef SNUG_OPTIM_MATRIX_TOOLS_H
#define SNUG_OPTIM_MATRIX_TOOLS_H

#include <math.h>

#include "ir/matrix_operands.h"

typedef MATRIX_REAL real;

struct tools; /* defined by the device: the kernel call and what was prepared for it */

/* C [m,n] = op(A) op(B), with contiguous rows; one of A and B may be stored transposed. */
struct factors {
    int64_t m, n, k;
    enum { AS_STORED, A_TRANSPOSED, B_TRANSPOSED } transposed;
};

/* ---- gemms that are prepared before the first step ----------------------------------------- */

enum { MOST_GEMMS = 40 };

struct factors_list {
    int n;
    struct factors at[MOST_GEMMS];
};

static inline int factors_find(const struct factors_list *list, const struct factors *f)
{
    for (int i = 0; i < list->n; i++) {
        const struct factors *g = &list->at[i];
        if (g->m == f->m && g->n == f->n && g->k == f->k && g->transposed == f->transposed)
            return i;
    }
    return -1;
}

static inline void factors_add(struct factors_list *list, const struct factors *f)
{
    if (factors_find(list, f) < 0 && list->n < MOST_GEMMS)
        list->at[list->n++] = *f;
}

/* Adds the gemms that shampoo, caspr and soap need for a rows x cols matrix: those with the left
 * statistics [rows, rows] if `left`, those with the right statistics [cols, cols] if `right`. */
static inline void factors_add_sides(struct factors_list *list, int64_t rows, int64_t cols,
                                     bool left, bool right)
{
    const struct factors all[] = {
        {rows, rows, cols, B_TRANSPOSED}, {rows, cols, rows, AS_STORED},
        {rows, cols, rows, A_TRANSPOSED}, {rows, rows, rows, AS_STORED},
        {rows, rows, rows, A_TRANSPOSED}, {cols, cols, rows, A_TRANSPOSED},
        {rows, cols, cols, AS_STORED},    {rows, cols, cols, B_TRANSPOSED},
        {cols, cols, cols, AS_STORED},    {cols, cols, cols, A_TRANSPOSED}};
    enum { N_ALL = sizeof all / sizeof *all };
    for (int i = 0; i < N_ALL; i++)
        if (i < N_ALL / 2 ? left : right)
            factors_add(list, &all[i]);
}

/* ---- workspace layout: reserve bytes and return their offset ------------------------------- */

static size_t take_reals(size_t *total, int64_t n);
/* For a copy of the tensor as reals; reserves nothing if that is its dtype. */
static size_t take_copy(size_t *total, const struct tensor *tensor);
/* For partial sums over n elements, or over n_rows rows. */
static size_t take_sums(size_t *total, int64_t n, int64_t n_rows);
static size_t take_order(size_t *total, int64_t n);
static size_t take_spectral(size_t *total, int64_t n);

/* ---- operands and workspace of a kernel call ----------------------------------------------- */

static double scalar_of(const struct tools *t, enum scalar which);
static double option_of(const struct tools *t, int which);
static const struct op *op_of(const struct tools *t);
static real *reals_at(const struct tools *t, size_t offset);
static real *values_at(const struct tools *t, size_t offset);   /* host memory */
static int64_t *order_at(const struct tools *t, size_t offset); /* host memory */
/* A state or the direction as reals: the tensor itself, or a copy in the workspace, which close_*
 * writes back.  NULL: the op does not have it. */
static real *open_state(const struct tools *t, enum matrix_state which, size_t offset);
static void close_state(const struct tools *t, enum matrix_state which, const real *from);
static real *open_direction(const struct tools *t, size_t offset);
static void close_direction(const struct tools *t, const real *from);

/* ---- arithmetic ---------------------------------------------------------------------------- */

static enum snug_status multiply(const struct tools *t, const struct factors *f, const real *a,
                                 const real *b, real *c);
/* y = keep y + rest x */
static void mix(const struct tools *t, int64_t n, double keep, real *y, double rest, const real *x);
/* to = factor from; they may be the same */
static void copy_scaled(const struct tools *t, int64_t n, double factor, const real *from,
                        real *to);
static void copy_reals(const struct tools *t, int64_t n, const real *from, real *to);
static void clear_reals(const struct tools *t, int64_t n, real *x);
static void set_identity(const struct tools *t, int64_t n, double factor, real *a);
static double sum_squares(const struct tools *t, int64_t n, const real *x, size_t offset);
/* For symmetric a: the sum of the elementwise product a b, and the trace of a. */
static double sum_gemms(const struct tools *t, int64_t n, const real *a, const real *b,
                        size_t offset);
static double trace_of(const struct tools *t, int64_t n, const real *a, size_t offset);

/* scale_rows: row i of q *= values[i].  row_gemms: values[i] = dot(row i of a, row i of b). */
static void scale_rows(const struct tools *t, int64_t n, const real *values, size_t offset,
                       real *q);
static void row_gemms(const struct tools *t, int64_t n, const real *a, const real *b, size_t offset,
                      real *values);
/* Row (column) i of `to` is row (column) order[i] of `from`. */
static void take_rows(const struct tools *t, int64_t n_rows, int64_t width, const int64_t *order,
                      size_t offset, const real *from, real *to);
static void take_columns(const struct tools *t, int64_t n_rows, int64_t width, const int64_t *order,
                         size_t offset, const real *from, real *to);

/* As in optim/eigen.h: find_eigen replaces a by its eigenvectors, one per row, and make_orthonormal
 * makes the rows of z orthonormal; both fix signs with set_signs.  quick: fp32 is accurate enough.
 * Without `vectors` only the values are computed.  They return false on failure. */
static bool find_eigen(const struct tools *t, int64_t n, real *a, real *values, bool quick,
                       bool vectors, size_t offset);
static bool make_orthonormal(const struct tools *t, int64_t n, real *z, size_t offset);
/* residual_of for a and its root. */
static double check_root(const struct tools *t, int64_t n, const real *a, double add,
                         const real *root, size_t offset);

/* ---- helpers of the functions above; host memory ------------------------------------------- */

/* The sign of an eigenvector is arbitrary.  We make its largest element positive, so that solvers
 * agree. */
static inline void set_signs(int64_t n, real *q)
{
    for (int64_t row = 0; row < n; row++) {
        real *v = q + row * n, largest = v[0];
        for (int64_t i = 1; i < n; i++)
            largest = v[i] * v[i] > largest * largest ? v[i] : largest;
        for (int64_t i = 0; largest < 0 && i < n; i++)
            v[i] = -v[i];
    }
}

enum { CHECKED_COLUMNS = 8 };

/* The largest |P P (A + add I) - I|, P the root, over a few columns; all columns would cost two
 * matmuls in fp64.  work: 2 n doubles. */
static inline double residual_of(int64_t n, const real *a, double add, const real *root,
                                 double *work)
{
    double worst = 0, *x = work, *y = work + n;
    int64_t n_checked = n < CHECKED_COLUMNS ? n : CHECKED_COLUMNS;
    for (int64_t k = 0; k < n_checked; k++) {
        int64_t column = k * n / n_checked;
        for (int64_t i = 0; i < n; i++)
            x[i] = (double)a[column * n + i] + (i == column ? add : 0);
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t i = 0; i < n; i++)
                y[i] = 0;
            for (int64_t j = 0; j < n; j++)
                for (int64_t i = 0; i < n; i++)
                    y[i] += x[j] * (double)root[j * n + i];
            for (int64_t i = 0; i < n; i++)
                x[i] = y[i];
        }
        for (int64_t i = 0; i < n; i++) {
            double off = fabs(x[i] - (i == column ? 1 : 0));
            worst = off <= worst ? worst : off; /* NaN counts as worst */
        }
    }
    return worst;
}

/* The largest value for sign 1, the smallest for sign -1. */
static inline double extreme(int64_t n, const real *values, int sign)
{
    double found = (double)values[0];
    for (int64_t i = 1; i < n; i++)
        found = sign * ((double)values[i] - found) > 0 ? (double)values[i] : found;
    return found;
}

/* order: indices of the values, largest first, stable.  Insertion sort: the values are nearly
 * sorted. */
static inline void sort_down(int64_t n, const real *values, int64_t *order)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t at = i;
        for (; at > 0 && values[order[at - 1]] < values[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
}

#endif
