/*
 * amos.c -- Amos (Tian, Parikh) with the memory of AlgoPerf's submission: v is one number for each row of a
 * table of embeddings and one in all for any other tensor, b one number a tensor.  k: elements for each v.
 *
 *     g clamped to sqrt(v_hat / (1-b2)), v_hat of the step before        v = b2 v + mean g^2
 *     v_hat = v (1-b2) / (1-b2^t)      s = sqrt(1+b)      x = lr^2 / s      l = 1 + l2 b^2
 *     d = x/2 (mean g^2 / v_hat p / l + l2)      e = (2 s / (1 + sqrt(1 + 2 s / (2+tau))))^2 - 1
 *     f = (1 + l2 b e) / (1 + l2 l / p)          u = (d W + eta lr g / sqrt(v_hat)) / (1 + eta s f e)
 *     b += x (1/sqrt(k) + b)                     m = b1 m + (1-b1) u      W -= m
 *
 * with q = sqrt(1 - 1/sqrt(k)), tau = q ln(sqrt(k) (1+q)^2), p = 1 + l2 ((1 + tau/2)^2 - 1)^2.  eta
 * is the size that the numbers of W are expected to have.  b drives the decay of the steps and of
 * the weights; --weight-decay is refused.  The op amos makes u on the gradient's own bytes, the
 * rule of adafactor.c takes it.
 *
 * The submission has two things that are not here.  eta of convolutions and of attention's projections is
 * sqrt(1 / inputs) there; here it is sqrt(2 / inputs) for every matrix.  v of the projections of queries, keys
 * and values has one number for each head there; here it has one in all.
 *
 * state: m: 4 bytes a parameter; v, b.
 */
#include "optim/optim.h"

#include <math.h>
#include <string.h>

enum { OPTION_tau = 3 }; /* of the op, after those of the optimizer */

/* Matrices by their inputs, tables and the gains of norms 1, biases a half. */
static double eta_of(const struct optim_target *t)
{
    const struct tensor *w = &t->prog->tensors[t->weight];
    if (t->kind == OPTIM_vector)
        return w->init == INIT_ones ? 1 : 0.5;
    if (t->kind == OPTIM_embedding)
        return 1;
    int64_t n_in =
        t->layout == LAYOUT_in_out ? w->shape.dim[0] : shape_elems(&w->shape) / w->shape.dim[0];
    return sqrt(2 / (double)n_in);
}

/* k: elements for each number of v */
static double tau_of(double k)
{
    double q = sqrt(1 - 1 / sqrt(k));
    return q * log(sqrt(k) * (1 + q) * (1 + q));
}

static enum snug_status emit(const struct optim_target *t)
{
    const struct shape shape = t->prog->tensors[t->weight].shape; /* a copy: tensors may move */
    struct shape one = {1, {1}}, rows = {1, {shape.dim[0]}};
    tensor_id in[] = {t->grad, t->scalars, t->master != TENSOR_NONE ? t->master : t->weight,
                      TENSOR_NONE, TENSOR_NONE};
    tensor_id out[] = {TENSOR_NONE, t->scalars, TENSOR_NONE, TENSOR_NONE};
    struct attrs attrs = ATTRS(direction, .eta = eta_of(t), .lr_factor = t->lr_factor);
    memcpy(attrs.direction.options.value, t->options, sizeof attrs.direction.options);
    TRY(optim_add_state(t, "v", DTYPE_f32, t->kind == OPTIM_embedding ? &rows : &one, &in[3]));
    attrs.direction.options.value[OPTION_tau] =
        tau_of((double)shape_elems(&shape) / (double)tensor_elems(t->prog, in[3]));
    TRY(optim_add_state(t, "b", DTYPE_f32, &one, &in[4]));
    TRY(optim_add_direction(t, &out[0]));
    memcpy(out + 2, in + 3, 2 * sizeof *out);
    TRY(program_add_op(t->prog, OP_amos, &attrs, 5, in, 4, out, t->err));
    struct optim_target step = *t;
    step.optimizer = &optimizer_adafactor;
    step.grad = out[0];
    step.direction = DIRECTION_scaled;
    step.decay = 0;
    return optim_emit_rule(&step);
}

/* sqrt(2 (tau + sqrt(2) - 1) / (0.65 (n_steps - 2/3 warmup))), tau of the tensor with the largest k. */
static double usual_lr(const struct program *prog, double n_steps, double warmup)
{
    double largest = 1;
    for (int i = 0; i < prog->n_ops; i++)
        if (prog->ops[i].kind == OP_amos)
            largest = fmax(largest, (double)tensor_elems(prog, prog->ops[i].in[0]) /
                                        (double)tensor_elems(prog, prog->ops[i].in[3]));
    double steps = fmax(1, n_steps - warmup * 2 / 3);
    return sqrt(2 * (tau_of(largest) + sqrt(2) - 1) / (0.65 * steps));
}

const struct optimizer optimizer_amos = {.name = "amos",
                                         .about = "decays of steps and weights by its own count",
                                         .options = "beta1, beta2, l2",
                                         .defaults = {0.9, 0.98, 0},
                                         .usual_lr = usual_lr,
                                         .own_decay = true,
                                         .emit = emit};
