/*
 * caspr.c -- CASPR (Duvvuri et al.) as the AlgoPerf submission has it: Shampoo's blocks, with a right
 * side that sees what the left one leaves.  n is the number of rows of a block; at the start L = L' =
 * eps I, R = PL = PR = I.
 *
 *     L = b L + (1-b) G G^T      R = b k R + (1-b) (G^T PL) (G^T PL)^T / n
 *     PL, PR = (L, R + eps largest I)^(-1/2), `largest` their largest eigenvalue, every `every` steps;
 *     the step after that L' = L, and k is trace(PL (L' + eps largest I) PL) / n of the L' before, else 1
 *     m, v, h, a as NadamW's     u = a until the step `start`, then
 *     u = PL h PR of all blocks, times |a| / |u| of the whole tensor      W -= lr (u + decay W)
 *
 * The published program finds roots by a coupled Newton iteration, here they come from eigenvectors
 * in fp64, since with eps 1e-6 fp32 seemed too coarse.  Vectors, and matrices with a side over
 * 40000, are NadamW's.
 *
 * state: m, v: 8 bytes a parameter; l, l_then, r, pl, pr: 12 rows^2 + 8 columns^2 bytes a block.  All are
 * fp32 whatever --state-bits says, but for what is NadamW's.
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
    .about = "as shampoo, the right side after the left",
    .options = "beta1, beta, eps, block, every, start",
    .defaults =
        {[beta1] = 0.9, [beta] = 0.999, [eps] = 1e-6, [block] = 1024, [every] = 20, [start] = 101},
    .default_lr = 3e-4,
    .default_decay = 0.1,
    .emit = emit};
