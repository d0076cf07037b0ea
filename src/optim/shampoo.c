/*
 * shampoo.c -- Shampoo (Gupta et al.) as in the AlgoPerf submission.  Matrices are split into
 * blocks of at most `block` rows and columns.  The momentum of a block is multiplied by inverse
 * roots of the left and right statistics and scaled to the length of an Adam step ("grafting").
 *
 *     L = b L + (1-b) G G^T      R = b R + (1-b) G^T G      v = b v + (1-b) G^2
 *     m = b1 m + (1-b1) G        h = (b1 m + (1-b1) G) / (1-b1^t)
 *     a = h / (sqrt(v / (1-b^t)) + eps)                       u = a before step `start`, then
 *     D = PL h PR                u = D |a| / (|D| + 1e-16)    W -= lr (u + decay W)
 *
 * PL = (L / (1-b^t) + eps)^(-1/4), and PR likewise from R, by eigenvectors.  They are computed at
 * step `start` (0: the same as `every`) and then every `every` steps; if the solver fails, the old
 * root stays.  Vectors take the step a, which is NadamW's.
 *
 * state: m, v: 8 bytes per parameter; l, r, pl, pr: 8 (rows^2 + columns^2) bytes per block.  They
 * are always fp32, except for vectors.
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
    .about = "left and right preconditioners, grafted to Adam steps",
    .options = "beta1, beta, eps, block, every, start",
    .defaults = {[beta1] = 0.9, [beta] = 0.999, [eps] = 1e-8, [block] = 1024, [every] = 100},
    .default_lr = 3e-4,
    .default_decay = 0.1,
    .emit = emit};
