/*
 * soap.c -- SOAP (Vyas et al.): Adam in the eigenbasis of Shampoo's preconditioner.
 *
 *     L = s L + (1-s) G G^T      R = s R + (1-s) G^T G      QL, QR: their eigenvectors
 *     G' = QL^T G QR      M = b1 M + (1-b1) G'      V = b2 V + (1-b2) G'^2
 *     N = QL (M / (sqrt(V) + eps)) QR^T             W -= lr sqrt(1-b2^(t-1)) / (1-b1^(t-1)) N
 *     W -= lr decay W
 *
 * The first step only computes L, R, QL and QR.  Every `every` steps the columns of each Q, and V
 * with them, are sorted by their estimated eigenvalues, largest first; then Q = qr(L Q), or qr(R
 * Q), and M is rotated from the old basis to the new.  A side longer than max-dim is not rotated,
 * and neither are vectors; the rest is the same for them.  s is shampoo-beta (0: b2).
 *
 * state: m, v: 8 bytes per parameter; l, ql: 8 rows^2 bytes, r, qr: 8 columns^2 bytes, for rotated
 * sides.  They are always fp32.
 */
#include "optim/rule.h"

/* The rule only applies the direction N, which takes the place of g. */
NO_STATES(soap)
OPTIONS(soap, beta1, beta2, shampoo_beta, eps, every, max_dim)
CONSTANTS(soap, keep, step)

PREPARE(soap)
{
    double tau = now->t - 1;
    k->keep = tau == 0 ? 1 : 1 - now->lr * now->decay;
    k->step =
        tau == 0 ? 0 : k->keep * now->lr * sqrt(1 - pow(o->beta2, tau)) / (1 - pow(o->beta1, tau));
}

STEP(soap)
{
    *w = k->keep * *w - k->step * g;
}

#ifndef RULE_REAL
#include "optim/precondition.h"

#include <string.h>

static enum snug_status add_side(const struct optim_target *t, const char *statistics,
                                 const char *vectors, int64_t n, tensor_id *sum, tensor_id *q)
{
    struct shape square = {2, {n, n}};
    TRY(optim_add_state(t, statistics, DTYPE_f32, &square, sum));
    return optim_add_state(t, vectors, DTYPE_f32, &square, q);
}

static enum snug_status emit_soap(const struct optim_target *t)
{
    const struct shape shape = t->prog->tensors[t->weight].shape; /* a copy: tensors may move */
    struct matrix w = matrix_of(&shape, 1);
    double options[MAX_OPTIONS];
    memcpy(options, t->options, sizeof options);
    TRY(optim_whole_option(t, "every", 1e15, &options[SOAP_every]));
    options[SOAP_max_dim] = fmin(options[SOAP_max_dim], MATRIX_SIDE_MOST);
    if (options[SOAP_shampoo_beta] == 0)
        options[SOAP_shampoo_beta] = options[SOAP_beta2];
    tensor_id states[STATE_pr + 1];
    for (int k = 0; k <= STATE_pr; k++)
        states[k] = TENSOR_NONE;
    TRY(optim_add_state(t, "m", DTYPE_f32, NULL, &states[STATE_m]));
    TRY(optim_add_state(t, "v", DTYPE_f32, NULL, &states[STATE_v]));
    /* a position table [1, T, C] would be a matrix of one long row */
    bool rotates = shape.n_dims >= 2 && !(t->kind == OPTIM_embedding && w.rows == 1);
    if (rotates && (double)w.rows <= options[SOAP_max_dim])
        TRY(add_side(t, "l", "ql", w.rows, &states[STATE_l], &states[STATE_pl]));
    if (rotates && (double)w.cols <= options[SOAP_max_dim])
        TRY(add_side(t, "r", "qr", w.cols, &states[STATE_r], &states[STATE_pr]));
    int n_states = STATE_pr + 1;
    while (states[n_states - 1] == TENSOR_NONE)
        n_states--;
    return optim_emit_direction(t, OP_soap, options, n_states, states, t);
}
#endif

OPTIMIZER(soap, .about = "Adam in the eigenbasis of Shampoo's preconditioner",
          .options = "beta1, beta2, shampoo-beta, eps, every, max-dim", .default_lr = 3e-3,
          .default_decay = 0.01, .defaults = {0.95, 0.95, 0, 1e-8, 10, 10000}, .emit = emit_soap)
