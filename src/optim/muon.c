/*
 * muon.c -- Muon (Jordan et al.): the orthogonalized momentum of hidden matrices.
 *
 *     m = mu m + (1-mu) g      u = (1-mu) g + mu m      X = bf16(u / max(|u|, 1e-7))
 *     `steps` times:  A = bf16(X X^T)   B = bf16(-4.7750 A + 2.0315 A A)   X = bf16(3.4445 X + B X)
 *     W *= 1 - lr decay        W -= lr sqrt(max(1, outputs / inputs)) X
 *
 * with X^T in place of X if X has more rows than columns.  Embeddings, the head and vectors are
 * updated by AdamW with a separate learning rate, adamw-lr (0: the same), which follows the same
 * schedule.
 *
 * state: m: 4 bytes per parameter of a hidden matrix, always fp32; AdamW's 8 bytes for the others.
 */
#include "ir/matrix_operands.h"
#include "optim/optim.h"

#include <math.h>

enum { mu, steps, adamw_lr, beta1, beta2, eps };

static enum snug_status emit_adamw(const struct optim_target *t)
{
    double options[MAX_OPTIONS] = {t->options[beta1], t->options[beta2], t->options[eps]};
    struct optim_target other = *t;
    other.optimizer = &optimizer_adamw;
    other.options = options;
    if (t->options[adamw_lr] > 0 && t->lr > 0)
        other.lr_factor *= t->options[adamw_lr] / t->lr;
    return optim_emit_rule(&other);
}

static enum snug_status emit(const struct optim_target *t)
{
    if (t->kind != OPTIM_matrix)
        return emit_adamw(t);
    struct matrix w = matrix_of(&t->prog->tensors[t->weight].shape, 1);
    double ratio = (double)w.rows / (double)w.cols; /* outputs / inputs */
    double factor = sqrt(fmax(1, t->layout == LAYOUT_in_out ? 1 / ratio : ratio));
    tensor_id m;
    TRY(optim_add_state(t, "m", DTYPE_f32, NULL, &m));
    struct optim_target apply = *t;
    apply.optimizer = &optimizer_sgd;
    apply.options = NULL;
    apply.lr_factor *= factor;
    apply.decay /= factor; /* lr_factor multiplies it too: cancel that */
    double options[MAX_OPTIONS] = {[ORTHOGONALIZE_mu] = t->options[mu],
                                   [ORTHOGONALIZE_steps] = floor(fmin(t->options[steps], 1000))};
    return optim_emit_direction(t, OP_orthogonalize, options, 1, &m, &apply);
}

const struct optimizer optimizer_muon = {
    .name = "muon",
    .about = "orthogonalized momentum for hidden matrices, else AdamW",
    .options = "mu, steps, adamw-lr, beta1, beta2, eps",
    .defaults = {[mu] = 0.95, [steps] = 5, [beta1] = 0.9, [beta2] = 0.95, [eps] = 1e-8},
    .default_lr = 0.02,
    .default_decay = 0.1,
    .emit = emit};
