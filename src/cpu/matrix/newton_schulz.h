/*
 * newton_schulz.h -- orthogonalize: the Newton-Schulz iteration of src/optim/muon.c.
 *
 * A tall X is not transposed.  With A = X^T X, which is symmetric up to rounding, X B is the
 * transpose of B X^T.
 */
#ifndef SNUG_CPU_MATRIX_NEWTON_SCHULZ_H
#define SNUG_CPU_MATRIX_NEWTON_SCHULZ_H

#include "cpu/matrix/cpu_matrix_tools.h"

struct muon_layout {
    int64_t n, side; /* elements of X, rows of A */
    struct factors gram, square, times;
    size_t x, m, sums, a, b, y, total;
};

static struct muon_layout muon_layout(const struct tensor *u, const struct tensor *m)
{
    struct matrix w = matrix_of(&u->shape, 1);
    bool tall = w.rows > w.cols;
    int64_t side = tall ? w.cols : w.rows, length = tall ? w.rows : w.cols;
    struct muon_layout l = {.n = w.rows * w.cols,
                            .side = side,
                            .gram = {side, side, length, tall ? A_TRANSPOSED : B_TRANSPOSED},
                            .square = {side, side, side, AS_STORED},
                            .times = {w.rows, w.cols, side, AS_STORED}};
    l.x = take_copy(&l.total, u);
    l.m = take_copy(&l.total, m);
    l.sums = work_take(&l.total, (size_t)n_chunks(l.n) * sizeof(double));
    l.a = take_reals(&l.total, side * side);
    l.b = take_reals(&l.total, side * side);
    l.y = take_reals(&l.total, l.n);
    return l;
}

/* m = mu m + (1-mu) g, then u = (1-mu) g + mu m. */
static void muon_momentum(const struct tools *t, int64_t n, real *m, real *u)
{
    const int threads = threads_for(t, n);
    const real clip = (real)scalar_of(t, SCALAR_clip);
    const double mu = option_of(t, ORTHOGONALIZE_mu);
    const real keep = (real)mu, rest = (real)(1 - mu);
    (void)threads; /* unused without OpenMP */
    EACH_CHUNK(n)
    {
        real g[CHUNK_ELEMS];
        int64_t at = chunk * CHUNK_ELEMS, count = least(CHUNK_ELEMS, n - at);
        read_reals(&t->call->in[MATRIX_GRADIENT], at, count, g);
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            real now = g[i] * clip;
            m[at + i] = keep * m[at + i] + rest * now;
            u[at + i] = rest * now + keep * m[at + i];
        }
    }
}

/* y = bf16(a y + b x) */
static void muon_combine(const struct tools *t, int64_t n, double a, real *y, double b,
                         const real *x)
{
    const int threads = threads_for(t, n);
    const real of_y = (real)a, of_x = (real)b;
    (void)threads; /* unused without OpenMP */
    EACH_CHUNK(n)
    EACH_IN_CHUNK(n)
    y[i] = round_bf16(of_y * y[i] + of_x * x[i]);
}

static void muon_scale(const struct tools *t, int64_t n, double factor, real *x)
{
    const int threads = threads_for(t, n);
    const real by = (real)factor;
    (void)threads; /* unused without OpenMP */
    EACH_CHUNK(n)
    EACH_IN_CHUNK(n)
    x[i] = round_bf16(by * x[i]);
}

static enum snug_status muon_iterate(const struct tools *t, const struct muon_layout *l, real *x)
{
    real *a = reals_at(t, l->a), *b = reals_at(t, l->b), *y = reals_at(t, l->y);
    bool tall = l->gram.transposed == A_TRANSPOSED;
    TRY(multiply_bf16(t, &l->gram, x, x, a));
    muon_scale(t, l->side * l->side, 1, a);
    TRY(multiply_bf16(t, &l->square, a, a, b));
    muon_combine(t, l->side * l->side, 2.0315, b, -4.7750, a);
    TRY(multiply_bf16(t, &l->times, tall ? x : b, tall ? b : x, y));
    muon_combine(t, l->n, 3.4445, x, 1, y);
    return SNUG_OK;
}

static enum snug_status muon_run(const struct tools *t, const struct muon_layout *l)
{
    const struct operand *u = &t->call->out[0];
    real *x = place_of(t, u, l->x), *m = open_state(t, STATE_m, l->m);
    muon_momentum(t, l->n, m, x);
    close_state(t, STATE_m, m);
    double norm = sqrt(sum_squares(t, l->n, x, l->sums));
    muon_scale(t, l->n, 1 / fmax(norm, 1e-7), x);
    for (int i = 0; i < (int)option_of(t, ORTHOGONALIZE_steps); i++)
        TRY(muon_iterate(t, l, x));
    close_operand(u, x);
    return SNUG_OK;
}

#endif
