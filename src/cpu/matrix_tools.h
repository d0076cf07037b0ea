/*
 * matrix_tools.h -- what the matrix_*.h are written with: the ops that work on whole matrices, each
 * written once.
 *
 * ref_matrix.c includes them with MATRIX_REAL double and plain loops, fast_matrix.c with float and
 * prepared products.  Either says first what `real` is as a dtype (REAL_DTYPE), how to read and write
 * reals of an operand (read_reals, write_reals), how to round one to bf16 (round_bf16), and after this
 * file how to multiply.  So the reference and the fast rows differ in their arithmetic only; that they
 * do the right thing is for tests/optim to say, whose rules were written down apart.
 *
 * Loops over elements go by chunks of a fixed size, and sums are made of the chunks' sums in order: the
 * bits do not depend on the number of threads.
 */
#ifndef SNUG_CPU_MATRIX_TOOLS_H
#define SNUG_CPU_MATRIX_TOOLS_H

#include <math.h>
#include <string.h>

#include "cpu/cpu.h"
#include "ir/matrix.h"

typedef MATRIX_REAL real;

enum { CHUNK_ELEMS = 4096 };

struct tools {
    const struct kernel_call *call;
    int threads;
    size_t after; /* the workspace from here on is for products */
    struct snug_error *err;
};

/* C [m,n] = op(A) op(B), all without gaps between rows; one of them may be stored transposed. */
struct factors {
    int64_t m, n, k;
    enum { AS_STORED, A_TURNED, B_TURNED } turned;
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

static inline double scalar_of(const struct tools *t, enum scalar which)
{
    const struct operand *scalars = &t->call->in[MATRIX_SCALARS];
    return dtype_load(scalars->tensor->dtype, scalars->data, which);
}

static inline const struct operand *state_of(const struct tools *t, enum matrix_state which)
{
    return &t->call->in[MATRIX_STATES + (int)which];
}

static inline real *reals_at(const struct tools *t, size_t offset)
{
    return (real *)(void *)((char *)t->call->work + offset);
}

/* Room for n reals. */
static inline size_t take_reals(size_t *total, int64_t n)
{
    return work_take(total, (size_t)n * sizeof(real));
}

/* Room for a tensor as reals: none if it has that type. */
static inline size_t take_copy(size_t *total, const struct tensor *tensor)
{
    return take_reals(total, tensor->dtype == REAL_DTYPE ? 0 : shape_elems(&tensor->shape));
}

/* An operand as reals: itself, or its copy in the workspace, which may be read into. */
static inline real *place_of(const struct tools *t, const struct operand *x, size_t copy)
{
    return x->tensor->dtype == REAL_DTYPE ? x->data : reals_at(t, copy);
}

static inline real *open_state(const struct tools *t, enum matrix_state which, size_t copy)
{
    const struct operand *x = state_of(t, which);
    real *place = place_of(t, x, copy);
    if (place != x->data)
        read_reals(x, 0, shape_elems(&x->tensor->shape), place);
    return place;
}

static inline void close_operand(const struct operand *x, const real *from)
{
    if (from != x->data)
        write_reals(x, 0, shape_elems(&x->tensor->shape), from);
}

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

static inline void set_identity(int64_t n, double factor, real *a)
{
    memset(a, 0, (size_t)(n * n) * sizeof *a);
    for (int64_t i = 0; i < n; i++)
        a[i * n + i] = (real)factor;
}

static inline double *doubles_at(const struct tools *t, size_t offset)
{
    return (double *)(void *)((char *)t->call->work + offset);
}

static inline double option_of(const struct tools *t, int which)
{
    return t->call->op->attrs.options.value[which];
}

/* The sum of squares; sums: room for a double a chunk. */
static inline double sum_squares(const struct tools *t, int64_t n, const real *x, double *sums)
{
    const int threads = threads_for(t, n);
    double total = 0;
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

#endif
