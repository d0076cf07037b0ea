/*
 * schedule_free_adamw.c -- AdamW without a schedule (Defazio et al.).  Gradients are computed at y,
 * between the iterate z and the average x of all z.  Evaluation and saved models use x.
 *
 *     a = lr min(1, t / warmup)       v = b2 v + (1-b2) g^2      x = (y - (1-b1) z) / b1
 *     z -= a sqrt(1 - b2^t) (g / (sqrt(v) + eps) + decay x)
 *     x = (1-c) x + c z               y = b1 x + (1-b1) z
 *
 * W holds y.  c is the weight of this step in the average: t^0.75 times the square of the largest
 * a so far, divided by the sum of these over all steps (the op average_clock).
 *
 * state: z, v: 8 bytes per parameter.
 */
#include "optim/rule.h"

STATES(schedule_free_adamw, z, v)
OPTIONS(schedule_free_adamw, beta1, beta2, eps, warmup)
CONSTANTS(schedule_free_adamw, beta1, rest1, x_of_y, x_of_z, beta2, rest2, eps, step, decay, share,
          rest_share)

PREPARE(schedule_free_adamw)
{
    double step = now->lr * sqrt(1 - pow(o->beta2, now->t));
    k->beta1 = o->beta1;
    k->rest1 = 1 - o->beta1;
    k->x_of_y = 1 / o->beta1;
    k->x_of_z = (1 - o->beta1) / o->beta1;
    k->beta2 = o->beta2;
    k->rest2 = 1 - o->beta2;
    k->eps = o->eps;
    k->step = now->t < o->warmup ? step * now->t / o->warmup : step;
    k->decay = k->step * now->decay;
    k->share = now->average_share;
    k->rest_share = 1 - now->average_share;
}

STEP(schedule_free_adamw)
{
    real x = k->x_of_y * *w - k->x_of_z * s->z;
    s->v = k->beta2 * s->v + k->rest2 * g * g;
    s->z -= k->step * (g / (root(s->v) + k->eps)) + k->decay * x;
    x = k->rest_share * x + k->share * s->z;
    *w = k->beta1 * x + k->rest1 * s->z;
}

#ifndef RULE_REAL
static enum snug_status emit_all(const struct optim_target *targets, int n)
{
    if (n > 0) {
        TRY(optim_check_schedule_free(targets));
        TRY(optim_add_average_clock(targets));
    }
    for (int i = 0; i < n; i++)
        TRY(optim_emit_rule(&targets[i]));
    return SNUG_OK;
}
#endif

OPTIMIZER(schedule_free_adamw, .name = "schedule-free-adamw",
          .about = "AdamW with averaged iterates in place of a schedule", .emit_all = emit_all,
          .default_lr = 2.5e-3, .defaults = {0.9, 0.9955, 1e-8, 0}, .positive = "v", .copies = "z",
          .average = AVERAGE_schedule_free, .average_state = "z")
