/*
 * shampoo.c -- Shampoo (Gupta et al.) as the AlgoPerf submission has it: matrices in blocks of at most
 * `block` rows and columns; the momentum between roots of the statistics of both sides, as long as an
 * Adam step ("grafted").
 *
 *     L = b L + (1-b) G G^T      R = b R + (1-b) G^T G      v = b v + (1-b) G^2
 *     m = b1 m + (1-b1) G        h = (b1 m + (1-b1) G) / (1-b1^t)
 *     a = h / (sqrt(v / (1-b^t)) + eps)                       u = a before the step `start`, then
 *     D = PL h PR                u = D |a| / (|D| + 1e-16)    W -= lr (u + decay W)
 *
 * PL, PR = (L, R / (1-b^t) + eps)^(-1/4) by eigenvectors, at the step `start` (0: the first `every`) and
 * then every `every` steps; the old one stays where there is none.  Vectors take a: NadamW's step.
 *
 * state: m, v: 8 bytes a parameter; l, r, pl, pr: 8 (rows^2 + columns^2) bytes a block.  All are fp32
 * whatever --state-bits says, but for vectors.
 */
#include "optim/precondition.h"

enum { beta1, beta, eps, block, every, start };

static enum snug_status emit(const struct optim_target *t)
{
    double options[MAX_OPTIONS];
    TRY(precondition_options(t, options));
    if (options[start] == 0)
        options[start] = options[every];
    if (t->prog->tensors[t->weight].shape.n_dims < 2)
        return precondition_emit_nadamw(t, options[beta1], options[beta], options[eps]);
    return precondition_emit(t, OP_shampoo, options);
}

const struct optimizer optimizer_shampoo = {
    .name = "shampoo",
    .about = "momentum between roots of both sides' statistics",
    .options = "beta1, beta, eps, block, every, start",
    .defaults = {[beta1] = 0.9, [beta] = 0.999, [eps] = 1e-8, [block] = 1024, [every] = 100},
    .default_lr = 3e-4,
    .default_decay = 0.1,
    .emit = emit};
