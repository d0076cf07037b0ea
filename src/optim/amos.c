/*
 * amos.c -- Amos (Tian, Parikh) with the reduced states of AlgoPerf's submission: v has one
 * element per row of an embedding table and a single element for any other tensor; b has one
 * element per tensor.  k is the number of weights per element of v.
 *
 *     g clamped to sqrt(v_hat / (1-b2)), with the previous v_hat         v = b2 v + mean g^2
 *     v_hat = v (1-b2) / (1-b2^t)      s = sqrt(1+b)      x = lr^2 / s      l = 1 + l2 b^2
 *     d = x/2 (mean g^2 / v_hat p / l + l2)      e = (2 s / (1 + sqrt(1 + 2 s / (2+tau))))^2 - 1
 *     f = (1 + l2 b e) / (1 + l2 l / p)        u = (d W + eta lr g / sqrt(v_hat)) / (1 + eta s f e)
 *     b += x (1/sqrt(k) + b)                     m = b1 m + (1-b1) u      W -= m
 *
 * with q = sqrt(1 - 1/sqrt(k)), tau = q ln(sqrt(k) (1+q)^2), p = 1 + l2 ((1 + tau/2)^2 - 1)^2.
 * eta is the expected magnitude of the elements of W.  b drives the decay of the step size and of
 * the weights, so --weight-decay is an error.  The op amos computes u, which may alias the
 * gradient, and the rule of adafactor.c applies it.
 *
 * We differ from the submission in two points.  For convolutions and attention projections it has
 * eta = sqrt(1 / inputs); we use sqrt(2 / inputs) for every matrix.  For query, key and value
 * projections its v has one element per head; ours has one in all.
 *
 * state: m: 4 bytes per parameter; v, b.
 */
#include "optim/optim.h"

#include <math.h>
#include <string.h>

enum { OPTION_tau = 3 }; /* the op's option after those of the optimizer */

/* sqrt(2 / inputs) for matrices, 1 for embeddings and norm gains, 0.5 for biases. */
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

/* k: weights per element of v */
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

/* sqrt(2 (tau + sqrt(2) - 1) / (0.65 (n_steps - 2/3 warmup))), with tau for the largest k. */
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
                                         .about =
                                             "sets its own learning-rate decay and weight decay",
                                         .options = "beta1, beta2, l2",
                                         .defaults = {0.9, 0.98, 0},
                                         .usual_lr = usual_lr,
                                         .own_decay = true,
                                         .emit = emit};
