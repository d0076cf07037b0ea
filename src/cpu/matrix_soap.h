/*
 * matrix_soap.h -- soap (src/optim/soap.c): Adam in the space of the eigenvectors of both sides.
 *
 * ql and qr keep eigenvectors as rows, so that ql G qr^T is the turned gradient and ql^T X qr goes back.
 * A side without statistics is not turned; a vector has none.
 */
#ifndef SNUG_CPU_MATRIX_SOAP_H
#define SNUG_CPU_MATRIX_SOAP_H

#include "cpu/matrix_tools.h"
#include "cpu/spectral.h"

enum { SOAP_STATES = STATE_pr + 1 };

struct soap_layout {
    int64_t rows, cols, n;
    int64_t side; /* the longest that is turned; 0: none */
    bool turns_left, turns_right;
    size_t u, states[SOAP_STATES];
    size_t g, x, spare, squares[2], values, order, spectral, total;
};

/* states[k] NULL: left out */
static struct soap_layout soap_layout(const struct tensor *u, const struct tensor *const *states)
{
    struct matrix w = matrix_of(&u->shape, 1);
    struct soap_layout l = {.rows = w.rows,
                            .cols = w.cols,
                            .n = w.rows * w.cols,
                            .turns_left = states[STATE_l] != NULL,
                            .turns_right = states[STATE_r] != NULL};
    l.side = l.turns_left ? l.rows : 0;
    if (l.turns_right && l.cols > l.side)
        l.side = l.cols;
    l.u = take_copy(&l.total, u);
    for (int k = 0; k < SOAP_STATES; k++)
        if (states[k] != NULL)
            l.states[k] = take_copy(&l.total, states[k]);
    l.g = take_reals(&l.total, l.n);
    l.x = take_reals(&l.total, l.n);
    l.spare = take_reals(&l.total, l.n);
    for (int i = 0; i < 2; i++)
        l.squares[i] = take_reals(&l.total, l.side * l.side);
    l.values = take_reals(&l.total, l.side);
    l.order = work_take(&l.total, (size_t)l.side * sizeof(int64_t));
    l.spectral = work_take(&l.total, spectral_work_bytes(l.side));
    return l;
}

struct soap_work {
    const struct tools *t;
    const struct soap_layout *l;
    real *u, *state[SOAP_STATES];
    real *g, *x, *spare; /* as large as u */
};

/* to = ql from qr^T, or with back ql^T from qr; `spare` may be changed. */
static enum snug_status turn(const struct soap_work *s, bool back, const real *from, real *spare,
                             real *to)
{
    const struct soap_layout *l = s->l;
    struct factors left = {l->rows, l->cols, l->rows, back ? A_TURNED : AS_STORED};
    struct factors right = {l->rows, l->cols, l->cols, back ? AS_STORED : B_TURNED};
    if (l->turns_left) {
        real *half = l->turns_right ? spare : to;
        TRY(multiply(s->t, &left, s->state[STATE_pl], from, half));
        from = half;
    }
    if (l->turns_right)
        TRY(multiply(s->t, &right, from, s->state[STATE_pr], to));
    else if (!l->turns_left)
        memcpy(to, from, (size_t)l->n * sizeof *to);
    return SNUG_OK;
}

/* The gradient, clipped. */
static void soap_read(const struct soap_work *s)
{
    const int threads = threads_for(s->t, s->l->n);
    const real clip = (real)scalar_of(s->t, SCALAR_clip);
    const int64_t n = s->l->n;
    real *g = s->g;
    (void)threads; /* without OpenMP */
    EACH_CHUNK(n)
    {
        int64_t at = chunk * CHUNK_ELEMS;
        read_reals(&s->t->call->in[MATRIX_GRADIENT], at, least(CHUNK_ELEMS, n - at), g + at);
        EACH_IN_CHUNK(n)
        g[i] *= clip;
    }
}

/* M and V from the turned gradient x, which becomes M / (sqrt(V) + eps). */
static void soap_adam(const struct soap_work *s)
{
    const int threads = threads_for(s->t, s->l->n);
    const double beta1 = option_of(s->t, SOAP_beta1), beta2 = option_of(s->t, SOAP_beta2);
    const real keep1 = (real)beta1, rest1 = (real)(1 - beta1);
    const real keep2 = (real)beta2, rest2 = (real)(1 - beta2);
    const real eps = (real)option_of(s->t, SOAP_eps);
    const int64_t n = s->l->n;
    real *x = s->x, *m = s->state[STATE_m], *v = s->state[STATE_v];
    (void)threads; /* without OpenMP */
    EACH_CHUNK(n)
    EACH_IN_CHUNK(n)
    {
        m[i] = keep1 * m[i] + rest1 * x[i];
        v[i] = keep2 * v[i] + rest2 * x[i] * x[i];
        x[i] = m[i] / (root_of(v[i]) + eps);
    }
}

static enum snug_status soap_statistics(const struct soap_work *s)
{
    const struct soap_layout *l = s->l;
    double beta = option_of(s->t, SOAP_shampoo_beta);
    real *product = reals_at(s->t, l->squares[0]);
    struct factors left = {l->rows, l->rows, l->cols, B_TURNED};
    struct factors right = {l->cols, l->cols, l->rows, A_TURNED};
    if (l->turns_left) {
        TRY(multiply(s->t, &left, s->g, s->g, product));
        mix(s->t, l->rows * l->rows, beta, s->state[STATE_l], 1 - beta, product);
    }
    if (l->turns_right) {
        TRY(multiply(s->t, &right, s->g, s->g, product));
        mix(s->t, l->cols * l->cols, beta, s->state[STATE_r], 1 - beta, product);
    }
    return SNUG_OK;
}

/* order: places of the values, largest first, equal ones as they are.  They are nearly sorted. */
static void sort_down(int64_t n, const real *values, int64_t *order)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t at = i;
        for (; at > 0 && values[order[at - 1]] < values[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
}

static void take_rows(int64_t n_rows, int64_t width, const int64_t *order, const real *from,
                      real *to)
{
    for (int64_t i = 0; i < n_rows; i++)
        memcpy(to + i * width, from + order[i] * width, (size_t)width * sizeof *to);
}

/* An eigenvector has no sign of its own: its largest number is made positive, so that solvers agree. */
static void set_signs(int64_t n, real *q)
{
    for (int64_t row = 0; row < n; row++) {
        real *v = q + row * n, largest = v[0];
        for (int64_t i = 1; i < n; i++)
            largest = v[i] * v[i] > largest * largest ? v[i] : largest;
        for (int64_t i = 0; largest < 0 && i < n; i++)
            v[i] = -v[i];
    }
}

/* The first eigenvectors of a side; where there are none, its axes. */
static void soap_begin(const struct soap_work *s, int64_t n, const real *statistics, real *q)
{
    real *found = reals_at(s->t, s->l->squares[0]), *values = reals_at(s->t, s->l->values);
    int64_t *order = (int64_t *)(void *)doubles_at(s->t, s->l->order);
    memcpy(found, statistics, (size_t)(n * n) * sizeof *found);
    if (!eigen(n, found, values, true, true, doubles_at(s->t, s->l->spectral))) {
        set_identity(n, 1, q);
        return;
    }
    for (int64_t i = 0; i < n; i++) /* sort_down wants them nearly sorted, LAPACK gives them so */
        order[i] = i;
    sort_down(n, values, order);
    take_rows(n, n, order, found, q);
    set_signs(n, q);
}

/* One step of the power iteration: rows of q by what they see of the statistics, times the statistics,
 * orthonormal.  order: how they were sorted.  The old q stays where that fails. */
static enum snug_status soap_renew(const struct soap_work *s, int64_t n, const real *statistics,
                                   real *q, int64_t *order)
{
    real *product = reals_at(s->t, s->l->squares[0]), *sorted = reals_at(s->t, s->l->squares[1]);
    real *seen = reals_at(s->t, s->l->values);
    TRY(multiply(s->t, &(struct factors){n, n, n, AS_STORED}, q, statistics, product));
    for (int64_t j = 0; j < n; j++) {
        double sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += (double)q[j * n + i] * (double)product[j * n + i];
        seen[j] = (real)sum;
    }
    sort_down(n, seen, order);
    take_rows(n, n, order, product, sorted);
    if (orthonormal(n, sorted, doubles_at(s->t, s->l->spectral))) {
        memcpy(q, sorted, (size_t)(n * n) * sizeof *q);
        set_signs(n, q);
        return SNUG_OK;
    }
    for (int64_t i = 0; i < n; i++)
        order[i] = i;
    return SNUG_OK;
}

/* New eigenvectors: V is sorted with them, M turned from the old space to the new. */
static enum snug_status soap_renew_both(const struct soap_work *s)
{
    const struct soap_layout *l = s->l;
    real *m = s->state[STATE_m], *v = s->state[STATE_v];
    int64_t *order = (int64_t *)(void *)doubles_at(s->t, l->order);
    TRY(turn(s, true, m, s->spare, s->x));
    if (l->turns_left) {
        TRY(soap_renew(s, l->rows, s->state[STATE_l], s->state[STATE_pl], order));
        memcpy(s->spare, v, (size_t)l->n * sizeof *v);
        take_rows(l->rows, l->cols, order, s->spare, v);
    }
    if (l->turns_right) {
        TRY(soap_renew(s, l->cols, s->state[STATE_r], s->state[STATE_pr], order));
        memcpy(s->spare, v, (size_t)l->n * sizeof *v);
        for (int64_t row = 0; row < l->rows; row++)
            for (int64_t i = 0; i < l->cols; i++)
                v[row * l->cols + i] = s->spare[row * l->cols + order[i]];
    }
    return turn(s, false, s->x, s->spare, m);
}

static enum snug_status soap_step(const struct soap_work *s)
{
    const struct soap_layout *l = s->l;
    double step = scalar_of(s->t, SCALAR_update_count);
    soap_read(s);
    if (step == 1) {
        memset(s->u, 0, (size_t)l->n * sizeof *s->u);
        TRY(soap_statistics(s));
        if (l->turns_left)
            soap_begin(s, l->rows, s->state[STATE_l], s->state[STATE_pl]);
        if (l->turns_right)
            soap_begin(s, l->cols, s->state[STATE_r], s->state[STATE_pr]);
        return SNUG_OK;
    }
    TRY(turn(s, false, s->g, s->spare, s->x));
    soap_adam(s);
    TRY(turn(s, true, s->x, s->spare, s->u));
    TRY(soap_statistics(s));
    if (l->side > 0 && fmod(step - 1, option_of(s->t, SOAP_every)) == 0)
        TRY(soap_renew_both(s));
    return SNUG_OK;
}

static enum snug_status soap_run(const struct tools *t, const struct soap_layout *l)
{
    struct soap_work s = {.t = t,
                          .l = l,
                          .u = place_of(t, &t->call->out[0], l->u),
                          .g = reals_at(t, l->g),
                          .x = reals_at(t, l->x),
                          .spare = reals_at(t, l->spare)};
    for (int k = 0; k < SOAP_STATES; k++)
        if (state_of(t, (enum matrix_state)k)->data != NULL)
            s.state[k] = open_state(t, (enum matrix_state)k, l->states[k]);
    TRY(soap_step(&s));
    close_operand(&t->call->out[0], s.u);
    for (int k = 0; k < SOAP_STATES; k++)
        if (s.state[k] != NULL)
            close_operand(state_of(t, (enum matrix_state)k), s.state[k]);
    return SNUG_OK;
}

#endif
