/*
 * caspr.c -- CASPR (Duvvuri et al.) as in the AlgoPerf submission: Shampoo's blocks, with right
 * statistics of the gradient after the left preconditioner.  n is the number of rows of a block.
 * Initially L = L' = eps I and R = PL = PR = I.
 *
 *     L = b L + (1-b) G G^T      R = b k R + (1-b) (G^T PL) (G^T PL)^T / n
 *     every `every` steps:    PL = (L + eps largest I)^(-1/2), and PR likewise from R
 *     in the step after that: k = trace(PL (L' + eps largest I) PL) / n, then L' = L; else k = 1
 *     m, v, h, a as in NadamW    u = a up to step `start`, then
 *     u = PL h PR of all blocks, times |a| / |u| of the whole tensor      W -= lr (u + decay W)
 *
 * where `largest` is the largest eigenvalue of the matrix that it is added to.
 *
 * The submission computes the roots by a coupled Newton iteration.  We use eigenvectors in fp64,
 * since with eps 1e-6 fp32 seemed too coarse.  Vectors, and matrices with a side over 40000, use
 * NadamW.
 *
 * state: m, v: 8 bytes per parameter; l, l_then, r, pl, pr: 12 rows^2 + 8 columns^2 bytes per
 * block.  They are always fp32, except where NadamW is used.
 */
#include "optim/precondition.h"

enum { beta1, beta, eps, block, every, start };
enum { SIDE_MOST = 40000 };

static enum snug_status emit(const struct optim_target *t)
{
    const struct shape *shape = &t->prog->tensors[t->weight].shape;
    struct matrix w = matrix_of(shape, 1);
    double options[MAX_OPTIONS];
    TRY(precondition_options(t, options));
    if (shape->n_dims < 2 || w.rows > SIDE_MOST || w.cols > SIDE_MOST)
        return precondition_emit_nadamw(t, options[beta1], options[beta], 1e-8);
    return precondition_emit(t, OP_caspr, options);
}

const struct optimizer optimizer_caspr = {
    .name = "caspr",
    .about = "Shampoo with combined axis preconditioners",
    .options = "beta1, beta, eps, block, every, start",
    .defaults =
        {[beta1] = 0.9, [beta] = 0.999, [eps] = 1e-6, [block] = 1024, [every] = 20, [start] = 101},
    .default_lr = 3e-4,
    .default_decay = 0.1,
    .emit = emit};
