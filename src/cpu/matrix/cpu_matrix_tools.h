/*
 * cpu_matrix_tools.h -- the CPU's part of optim/matrix_tools.h, and what newton_schulz.h is written with.
 *
 * ref_matrix.c includes it with MATRIX_REAL double and plain loops, simd_matrix.c with float and
 * prepared matmuls.  Either says first what `real` is as a dtype (REAL_DTYPE), how to read and write
 * reals of an operand (read_reals, write_reals), how to round one to bf16 (round_bf16), and after this
 * file how to multiply.  So the reference and the fast rows differ in their arithmetic only; that they
 * do the right thing is for tests/optim to say, whose rules were written down apart.
 *
 * Loops over elements go by chunks of a fixed size, and sums are made of the chunks' sums in order: the
 * bits do not depend on the number of threads.
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
    size_t after; /* the workspace from here on is for matmuls */
    struct snug_error *err;
};

static inline int64_t n_chunks(int64_t n)
{
    return (n + CHUNK_ELEMS - 1) / CHUNK_ELEMS;
}

/* The statement after it, for i from 0 to n, by some of `threads`. */
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

/* ---- rooms and places ------------------------------------------------------------------------ */

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

static inline real *reals_at(const struct tools *t, size_t room)
{
    return (real *)(void *)((char *)t->call->work + room);
}

static inline double *doubles_at(const struct tools *t, size_t room)
{
    return (double *)(void *)((char *)t->call->work + room);
}

static inline real *values_at(const struct tools *t, size_t room)
{
    return reals_at(t, room);
}

static inline int64_t *order_at(const struct tools *t, size_t room)
{
    return (int64_t *)(void *)doubles_at(t, room);
}

/* An operand as reals: itself, or its copy in the workspace, which may be read into. */
static inline real *place_of(const struct tools *t, const struct operand *x, size_t room)
{
    return x->data == NULL || x->tensor->dtype == REAL_DTYPE ? x->data : reals_at(t, room);
}

static inline void close_operand(const struct operand *x, const real *from)
{
    if (from != x->data)
        write_reals(x, 0, shape_elems(&x->tensor->shape), from);
}

static inline real *open_state(const struct tools *t, enum matrix_state which, size_t room)
{
    const struct operand *x = &t->call->in[MATRIX_STATES + (int)which];
    real *place = place_of(t, x, room);
    if (place != x->data)
        read_reals(x, 0, shape_elems(&x->tensor->shape), place);
    return place;
}

static inline void close_state(const struct tools *t, enum matrix_state which, const real *from)
{
    close_operand(&t->call->in[MATRIX_STATES + (int)which], from);
}

static inline real *open_direction(const struct tools *t, size_t room)
{
    return place_of(t, &t->call->out[0], room);
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
    (void)threads; /* without OpenMP */
    EACH_CHUNK(n)
    EACH_IN_CHUNK(n)
    y[i] = of_y * y[i] + of_x * x[i];
}

static inline void copy_scaled(const struct tools *t, int64_t n, double factor, const real *from,
                               real *to)
{
    const int threads = threads_for(t, n);
    const real by = (real)factor;
    (void)threads; /* without OpenMP */
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

static inline double sum_squares(const struct tools *t, int64_t n, const real *x, size_t room)
{
    const int threads = threads_for(t, n);
    double *sums = doubles_at(t, room), total = 0;
    (void)threads; /* without OpenMP */
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
                               size_t room)
{
    (void)t, (void)room;
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static inline double trace_of(const struct tools *t, int64_t n, const real *a, size_t room)
{
    (void)t, (void)room;
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)a[i * n + i];
    return sum;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static inline void scale_rows(const struct tools *t, int64_t n, const real *values, size_t room,
                              real *q)
{
    (void)t, (void)room;
    for (int64_t row = 0; row < n; row++)
        for (int64_t i = 0; i < n; i++)
            q[row * n + i] *= values[row];
}

static inline void row_gemms(const struct tools *t, int64_t n, const real *a, const real *b,
                             size_t room, real *values)
{
    (void)room;
    for (int64_t row = 0; row < n; row++)
        values[row] = (real)sum_gemms(t, n, a + row * n, b + row * n, room);
}

static inline void take_rows(const struct tools *t, int64_t n_rows, int64_t width,
                             const int64_t *order, size_t room, const real *from, real *to)
{
    (void)room;
    for (int64_t i = 0; i < n_rows; i++)
        copy_reals(t, width, from + order[i] * width, to + i * width);
}

static inline void take_columns(const struct tools *t, int64_t n_rows, int64_t width,
                                const int64_t *order, size_t room, const real *from, real *to)
{
    (void)t, (void)room;
    for (int64_t row = 0; row < n_rows; row++)
        for (int64_t i = 0; i < width; i++)
            to[row * width + i] = from[row * width + order[i]];
}

/* ---- eigenvectors ---------------------------------------------------------------------------- */

static inline bool find_eigen(const struct tools *t, int64_t n, real *a, real *values, bool quick,
                              bool vectors, size_t room)
{
    if (!eigen(n, a, values, quick, vectors, doubles_at(t, room)))
        return false;
    if (vectors)
        set_signs(n, a);
    return true;
}

static inline bool make_orthonormal(const struct tools *t, int64_t n, real *z, size_t room)
{
    if (!orthonormal(n, z, doubles_at(t, room)))
        return false;
    set_signs(n, z);
    return true;
}

static inline double check_root(const struct tools *t, int64_t n, const real *a, double add,
                                const real *root, size_t room)
{
    return residual_of(n, a, add, root, doubles_at(t, room));
}

#endif
