/*
 * cpu_matrix_tools.h -- the CPU implementation of optim/matrix_tools.h, also used by
 * newton_schulz.h.
 *
 * ref_matrix.c includes this file with MATRIX_REAL double and plain loops, simd_matrix.c with float
 * and prepared matmuls.  Before the include, each defines the dtype of `real` (REAL_DTYPE), how to
 * read and write the elements of an operand (read_reals, write_reals) and how to round one to bf16
 * (round_bf16); after it, how to multiply.  The reference and the fast kernels thus differ only in
 * their arithmetic.  tests/optim checks them against independently written rules.
 *
 * Loops over elements work on chunks of a fixed size, and the sums of the chunks are added in
 * order, so the results do not depend on the number of threads.
 */
#ifndef SNUG_CPU_MATRIX_CPU_MATRIX_TOOLS_H
#define SNUG_CPU_MATRIX_CPU_MATRIX_TOOLS_H

#include <math.h>
#include <string.h>

#include "cpu/cpu.h"
#include "optim/eigen.h"
#include "optim/matrix_tools.h"

enum { CHUNK_ELEMS = 4096 };

struct tools {
    const struct kernel_call *call;
    int threads;
    size_t after; /* the workspace after this offset is for matmuls */
    struct snug_error *err;
};

static inline int64_t n_chunks(int64_t n)
{
    return (n + CHUNK_ELEMS - 1) / CHUNK_ELEMS;
}

/* EACH_CHUNK(n) EACH_IN_CHUNK(n) statement: runs the statement for i from 0 to n on `threads`. */
#define EACH_CHUNK(n)                                                                           \
    _Pragma("omp parallel for schedule(static) num_threads(threads)") for (int64_t chunk = 0;   \
                                                                           chunk < n_chunks(n); \
                                                                           chunk++)
#define EACH_IN_CHUNK(n)                                                                          \
    _Pragma("omp simd") for (int64_t i = chunk * CHUNK_ELEMS;                                     \
                             i <                                                                  \
                             ((n) < (chunk + 1) * CHUNK_ELEMS ? (n) : (chunk + 1) * CHUNK_ELEMS); \
                             i++)

static inline int threads_for(const struct tools *t, int64_t n)
{
    return (int)least(t->threads, n_chunks(n));
}

/* ---- workspace and operands ------------------------------------------------------------------ */

static inline size_t take_reals(size_t *total, int64_t n)
{
    return work_take(total, (size_t)n * sizeof(real));
}

static inline size_t take_copy(size_t *total, const struct tensor *tensor)
{
    return take_reals(total, tensor->dtype == REAL_DTYPE ? 0 : shape_elems(&tensor->shape));
}

static inline size_t take_sums(size_t *total, int64_t n, int64_t n_rows)
{
    return work_take(total, (size_t)(n_chunks(n) + n_rows) * sizeof(double));
}

static inline size_t take_order(size_t *total, int64_t n)
{
    return work_take(total, (size_t)n * sizeof(int64_t));
}

static inline size_t take_spectral(size_t *total, int64_t n)
{
    return work_take(total, spectral_work_bytes(n));
}

static inline double scalar_of(const struct tools *t, enum scalar which)
{
    const struct operand *scalars = &t->call->in[MATRIX_SCALARS];
    return dtype_load(scalars->tensor->dtype, scalars->data, which);
}

static inline double option_of(const struct tools *t, int which)
{
    return attrs_of(t->call->op, options)->options.value[which];
}

static inline const struct op *op_of(const struct tools *t)
{
    return t->call->op;
}

static inline real *reals_at(const struct tools *t, size_t offset)
{
    return (real *)(void *)((char *)t->call->work + offset);
}

static inline double *doubles_at(const struct tools *t, size_t offset)
{
    return (double *)(void *)((char *)t->call->work + offset);
}

static inline real *values_at(const struct tools *t, size_t offset)
{
    return reals_at(t, offset);
}

static inline int64_t *order_at(const struct tools *t, size_t offset)
{
    return (int64_t *)(void *)doubles_at(t, offset);
}

/* The operand itself if its dtype is `real`, else its copy in the workspace (not yet filled). */
static inline real *place_of(const struct tools *t, const struct operand *x, size_t offset)
{
    return x->data == NULL || x->tensor->dtype == REAL_DTYPE ? x->data : reals_at(t, offset);
}

static inline void close_operand(const struct operand *x, const real *from)
{
    if (from != x->data)
        write_reals(x, 0, shape_elems(&x->tensor->shape), from);
}

static inline real *open_state(const struct tools *t, enum matrix_state which, size_t offset)
{
    const struct operand *x = &t->call->in[MATRIX_STATES + (int)which];
    real *place = place_of(t, x, offset);
    if (place != x->data)
        read_reals(x, 0, shape_elems(&x->tensor->shape), place);
    return place;
}

static inline void close_state(const struct tools *t, enum matrix_state which, const real *from)
{
    close_operand(&t->call->in[MATRIX_STATES + (int)which], from);
}

static inline real *open_direction(const struct tools *t, size_t offset)
{
    return place_of(t, &t->call->out[0], offset);
}

static inline void close_direction(const struct tools *t, const real *from)
{
    close_operand(&t->call->out[0], from);
}

/* ---- elements -------------------------------------------------------------------------------- */

/* y = keep y + rest x */
static inline void mix(const struct tools *t, int64_t n, double keep, real *y, double rest,
                       const real *x)
{
    const int threads = threads_for(t, n);
    const real of_y = (real)keep, of_x = (real)rest;
    (void)threads; /* unused without OpenMP */
    EACH_CHUNK(n)
    EACH_IN_CHUNK(n)
    y[i] = of_y * y[i] + of_x * x[i];
}

static inline void copy_scaled(const struct tools *t, int64_t n, double factor, const real *from,
                               real *to)
{
    const int threads = threads_for(t, n);
    const real by = (real)factor;
    (void)threads; /* unused without OpenMP */
    EACH_CHUNK(n)
    EACH_IN_CHUNK(n)
    to[i] = by * from[i];
}

static inline void copy_reals(const struct tools *t, int64_t n, const real *from, real *to)
{
    (void)t;
    memcpy(to, from, (size_t)n * sizeof *to);
}

static inline void clear_reals(const struct tools *t, int64_t n, real *x)
{
    (void)t;
    memset(x, 0, (size_t)n * sizeof *x);
}

static inline void set_identity(const struct tools *t, int64_t n, double factor, real *a)
{
    clear_reals(t, n * n, a);
    for (int64_t i = 0; i < n; i++)
        a[i * n + i] = (real)factor;
}

static inline double sum_squares(const struct tools *t, int64_t n, const real *x, size_t offset)
{
    const int threads = threads_for(t, n);
    double *sums = doubles_at(t, offset), total = 0;
    (void)threads; /* unused without OpenMP */
    EACH_CHUNK(n)
    {
        double sum = 0;
        int64_t end = least(n, (chunk + 1) * CHUNK_ELEMS);
#pragma omp simd reduction(+ : sum)
        for (int64_t i = chunk * CHUNK_ELEMS; i < end; i++)
            sum += (double)x[i] * (double)x[i];
        sums[chunk] = sum;
    }
    for (int64_t chunk = 0; chunk < n_chunks(n); chunk++)
        total += sums[chunk];
    return total;
}

static inline double sum_gemms(const struct tools *t, int64_t n, const real *a, const real *b,
                               size_t offset)
{
    (void)t, (void)offset;
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static inline double trace_of(const struct tools *t, int64_t n, const real *a, size_t offset)
{
    (void)t, (void)offset;
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)a[i * n + i];
    return sum;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static inline void scale_rows(const struct tools *t, int64_t n, const real *values, size_t offset,
                              real *q)
{
    (void)t, (void)offset;
    for (int64_t row = 0; row < n; row++)
        for (int64_t i = 0; i < n; i++)
            q[row * n + i] *= values[row];
}

static inline void row_gemms(const struct tools *t, int64_t n, const real *a, const real *b,
                             size_t offset, real *values)
{
    (void)offset;
    for (int64_t row = 0; row < n; row++)
        values[row] = (real)sum_gemms(t, n, a + row * n, b + row * n, offset);
}

static inline void take_rows(const struct tools *t, int64_t n_rows, int64_t width,
                             const int64_t *order, size_t offset, const real *from, real *to)
{
    (void)offset;
    for (int64_t i = 0; i < n_rows; i++)
        copy_reals(t, width, from + order[i] * width, to + i * width);
}

static inline void take_columns(const struct tools *t, int64_t n_rows, int64_t width,
                                const int64_t *order, size_t offset, const real *from, real *to)
{
    (void)t, (void)offset;
    for (int64_t row = 0; row < n_rows; row++)
        for (int64_t i = 0; i < width; i++)
            to[row * width + i] = from[row * width + order[i]];
}

/* ---- eigenvectors ---------------------------------------------------------------------------- */

static inline bool find_eigen(const struct tools *t, int64_t n, real *a, real *values, bool quick,
                              bool vectors, size_t offset)
{
    if (!eigen(n, a, values, quick, vectors, doubles_at(t, offset)))
        return false;
    if (vectors)
        set_signs(n, a);
    return true;
}

static inline bool make_orthonormal(const struct tools *t, int64_t n, real *z, size_t offset)
{
    if (!orthonormal(n, z, doubles_at(t, offset)))
        return false;
    set_signs(n, z);
    return true;
}

static inline double check_root(const struct tools *t, int64_t n, const real *a, double add,
                                const real *root, size_t offset)
{
    return residual_of(n, a, add, root, doubles_at(t, offset));
}

#endif
