/*
 * matrix_soap.h -- the step of soap (src/optim/soap.c): Adam in the eigenbasis of both sides.
 *
 * The rows of ql and qr are eigenvectors, so ql G qr^T is the rotated gradient and ql^T X qr
 * rotates back.  A side without statistics is not rotated; a vector has none on either side.
 */
#ifndef SNUG_OPTIM_MATRIX_SOAP_H
#define SNUG_OPTIM_MATRIX_SOAP_H

#include "optim/matrix_tools.h"

enum { SOAP_STATES = STATE_pr + 1 };

struct soap_layout {
    int64_t rows, cols, n;
    int64_t side; /* the longest rotated side; 0: none is rotated */
    bool rotates_left, rotates_right;
    size_t u, states[SOAP_STATES];
    size_t g, x, spare, squares[2], values, order, spectral, total;
};

/* states[k] may be NULL: the tensor does not have that state. */
static struct soap_layout soap_layout(const struct tensor *u, const struct tensor *const *states)
{
    struct matrix w = matrix_of(&u->shape, 1);
    struct soap_layout l = {.rows = w.rows,
                            .cols = w.cols,
                            .n = w.rows * w.cols,
                            .rotates_left = states[STATE_l] != NULL,
                            .rotates_right = states[STATE_r] != NULL};
    l.side = l.rotates_left ? l.rows : 0;
    if (l.rotates_right && l.cols > l.side)
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
    l.order = take_order(&l.total, l.side);
    l.spectral = take_spectral(&l.total, l.side);
    return l;
}

struct soap_work {
    const struct tools *t;
    const struct soap_layout *l;
    real *u, *state[SOAP_STATES];
    real *g, *x, *spare; /* as large as u */
};

/* to = ql from qr^T, or ql^T from qr if `back`; `spare` is scratch. */
static enum snug_status rotate(const struct soap_work *s, bool back, const real *from, real *spare,
                               real *to)
{
    const struct soap_layout *l = s->l;
    struct factors left = {l->rows, l->cols, l->rows, back ? A_TRANSPOSED : AS_STORED};
    struct factors right = {l->rows, l->cols, l->cols, back ? AS_STORED : B_TRANSPOSED};
    if (l->rotates_left) {
        real *half = l->rotates_right ? spare : to;
        TRY(multiply(s->t, &left, s->state[STATE_pl], from, half));
        from = half;
    }
    if (l->rotates_right)
        TRY(multiply(s->t, &right, from, s->state[STATE_pr], to));
    else if (!l->rotates_left)
        copy_reals(s->t, l->n, from, to);
    return SNUG_OK;
}

/* Defined by the device: reads the gradient, clipped, into g. */
static void soap_read(const struct soap_work *s);
/* Defined by the device: updates M and V with the rotated gradient x; x = M / (sqrt(V) + eps). */
static void soap_adam(const struct soap_work *s);

static enum snug_status soap_statistics(const struct soap_work *s)
{
    const struct soap_layout *l = s->l;
    double beta = option_of(s->t, SOAP_shampoo_beta);
    real *gemm = reals_at(s->t, l->squares[0]);
    struct factors left = {l->rows, l->rows, l->cols, B_TRANSPOSED};
    struct factors right = {l->cols, l->cols, l->rows, A_TRANSPOSED};
    if (l->rotates_left) {
        TRY(multiply(s->t, &left, s->g, s->g, gemm));
        mix(s->t, l->rows * l->rows, beta, s->state[STATE_l], 1 - beta, gemm);
    }
    if (l->rotates_right) {
        TRY(multiply(s->t, &right, s->g, s->g, gemm));
        mix(s->t, l->cols * l->cols, beta, s->state[STATE_r], 1 - beta, gemm);
    }
    return SNUG_OK;
}

/* The first eigenvectors of a side; the identity if the solver fails. */
static void soap_begin(const struct soap_work *s, int64_t n, const real *statistics, real *q)
{
    const struct soap_layout *l = s->l;
    real *found = reals_at(s->t, l->squares[0]), *values = values_at(s->t, l->values);
    int64_t *order = order_at(s->t, l->order);
    copy_reals(s->t, n * n, statistics, found);
    if (!find_eigen(s->t, n, found, values, true, true, l->spectral)) {
        set_identity(s->t, n, 1, q);
        return;
    }
    for (int64_t i = 0; i < n; i++) /* LAPACK returns ascending values */
        order[i] = i;
    sort_down(n, values, order);
    take_rows(s->t, n, n, order, l->order, found, q);
}

/* One step of power iteration: q times the statistics, its rows sorted by estimated eigenvalue and
 * made orthonormal.  `order` receives the sort order.  On failure q stays and order is 0, 1, ... */
static enum snug_status soap_renew(const struct soap_work *s, int64_t n, const real *statistics,
                                   real *q, int64_t *order)
{
    const struct soap_layout *l = s->l;
    real *gemm = reals_at(s->t, l->squares[0]), *sorted = reals_at(s->t, l->squares[1]);
    real *seen = values_at(s->t, l->values);
    TRY(multiply(s->t, &(struct factors){n, n, n, AS_STORED}, q, statistics, gemm));
    row_gemms(s->t, n, q, gemm, l->values, seen);
    sort_down(n, seen, order);
    take_rows(s->t, n, n, order, l->order, gemm, sorted);
    if (make_orthonormal(s->t, n, sorted, l->spectral)) {
        copy_reals(s->t, n * n, sorted, q);
        return SNUG_OK;
    }
    for (int64_t i = 0; i < n; i++)
        order[i] = i;
    return SNUG_OK;
}

/* Renews the eigenvectors.  V is reordered with them, M is rotated from the old basis to the
 * new. */
static enum snug_status soap_renew_both(const struct soap_work *s)
{
    const struct soap_layout *l = s->l;
    real *m = s->state[STATE_m], *v = s->state[STATE_v];
    int64_t *order = order_at(s->t, l->order);
    TRY(rotate(s, true, m, s->spare, s->x));
    if (l->rotates_left) {
        TRY(soap_renew(s, l->rows, s->state[STATE_l], s->state[STATE_pl], order));
        copy_reals(s->t, l->n, v, s->spare);
        take_rows(s->t, l->rows, l->cols, order, l->order, s->spare, v);
    }
    if (l->rotates_right) {
        TRY(soap_renew(s, l->cols, s->state[STATE_r], s->state[STATE_pr], order));
        copy_reals(s->t, l->n, v, s->spare);
        take_columns(s->t, l->rows, l->cols, order, l->order, s->spare, v);
    }
    return rotate(s, false, s->x, s->spare, m);
}

static enum snug_status soap_step(const struct soap_work *s)
{
    const struct soap_layout *l = s->l;
    double step = scalar_of(s->t, SCALAR_update_count);
    soap_read(s);
    if (step == 1) {
        clear_reals(s->t, l->n, s->u);
        TRY(soap_statistics(s));
        if (l->rotates_left)
            soap_begin(s, l->rows, s->state[STATE_l], s->state[STATE_pl]);
        if (l->rotates_right)
            soap_begin(s, l->cols, s->state[STATE_r], s->state[STATE_pr]);
        return SNUG_OK;
    }
    TRY(rotate(s, false, s->g, s->spare, s->x));
    soap_adam(s);
    TRY(rotate(s, true, s->x, s->spare, s->u));
    TRY(soap_statistics(s));
    if (l->side > 0 && fmod(step - 1, option_of(s->t, SOAP_every)) == 0)
        TRY(soap_renew_both(s));
    return SNUG_OK;
}

static enum snug_status soap_run(const struct tools *t, const struct soap_layout *l)
{
    struct soap_work s = {.t = t,
                          .l = l,
                          .u = open_direction(t, l->u),
                          .g = reals_at(t, l->g),
                          .x = reals_at(t, l->x),
                          .spare = reals_at(t, l->spare)};
    for (int k = 0; k < SOAP_STATES; k++)
        s.state[k] = open_state(t, (enum matrix_state)k, l->states[k]);
    TRY(soap_step(&s));
    close_direction(t, s.u);
    for (int k = 0; k < SOAP_STATES; k++)
        if (s.state[k] != NULL)
            close_state(t, (enum matrix_state)k, s.state[k]);
    return SNUG_OK;
}

#endif
