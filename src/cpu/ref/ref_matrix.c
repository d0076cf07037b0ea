/*
 * ref_matrix.c -- reference: the matrix optimizers, in fp64 with plain loops.
 */
#include "cpu/ref/ref_common.h"

#define MATRIX_REAL double
#define REAL_DTYPE  DTYPE_f64

static void read_reals(const struct operand *x, int64_t at, int64_t n, double *to)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = load(x, at + i);
}

static void write_reals(const struct operand *x, int64_t at, int64_t n, const double *from)
{
    for (int64_t i = 0; i < n; i++)
        store(x, at + i, from[i]);
}

static double round_bf16(double x)
{
    return (double)bf16_to_f32(bf16_from_f32((float)x));
}

#define root_of     sqrt
#define orthonormal orthonormal_f64

#include "optim/eigen.h"

static bool eigen(int64_t n, double *a, double *values, bool quick, bool vectors, void *work)
{
    (void)quick, (void)vectors;
    return eigen_f64(n, a, values, work);
}

#include "cpu/matrix/cpu_matrix_tools.h"

static enum snug_status multiply(const struct tools *t, const struct factors *f, const double *a,
                                 const double *b, double *c)
{
    (void)t;
    int64_t a_row = f->transposed == A_TRANSPOSED ? 1 : f->k,
            a_col = f->transposed == A_TRANSPOSED ? f->m : 1;
    int64_t b_row = f->transposed == B_TRANSPOSED ? 1 : f->n,
            b_col = f->transposed == B_TRANSPOSED ? f->k : 1;
    for (int64_t i = 0; i < f->m; i++)
        for (int64_t j = 0; j < f->n; j++) {
            double sum = 0;
            for (int64_t k = 0; k < f->k; k++)
                sum += a[i * a_row + k * a_col] * b[k * b_row + j * b_col];
            c[i * f->n + j] = sum;
        }
    return SNUG_OK;
}

static enum snug_status multiply_bf16(const struct tools *t, const struct factors *f,
                                      const double *a, const double *b, double *c)
{
    return multiply(t, f, a, b, c);
}

#include "cpu/matrix/matrix_ops.h"

size_t ref_orthogonalize_work_bytes(const struct program *prog, const struct op *op)
{
    return planned_muon(prog, op).total;
}

size_t ref_blocks_work_bytes(const struct program *prog, const struct op *op)
{
    return planned_blocks(prog, op).total;
}

size_t ref_soap_work_bytes(const struct program *prog, const struct op *op)
{
    return planned_soap(prog, op).total;
}

enum snug_status ref_orthogonalize(const struct kernel_call *call, struct snug_error *err)
{
    struct tools t = {.call = call, .threads = 1, .err = err};
    return step_orthogonalize(&t);
}

enum snug_status ref_shampoo(const struct kernel_call *call, struct snug_error *err)
{
    struct tools t = {.call = call, .threads = 1, .err = err};
    return step_blocks(&t);
}

enum snug_status ref_caspr(const struct kernel_call *call, struct snug_error *err)
{
    return ref_shampoo(call, err);
}

enum snug_status ref_soap(const struct kernel_call *call, struct snug_error *err)
{
    struct tools t = {.call = call, .threads = 1, .err = err};
    return step_soap(&t);
}
