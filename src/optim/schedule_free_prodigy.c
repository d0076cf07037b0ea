/*
 * schedule_free_prodigy.c -- Prodigy (Mishchenko, Defazio) with schedule_free_adamw.c.  d, an
 * estimate of the distance from the start x0 to the solution, replaces a tuned learning rate.
 *
 *     N = sqrt(b2) N + d^2 lr <g, x0 - z>    s = sqrt(b2) s + d^2 lr g    d' = max(d, N / |s|_1)
 *     v = b2 v + (1-b2) d^2 g^2              x = (y - (1-b1) z) / b1
 *     z -= d lr (d' g / (sqrt(v) + d' eps) + decay x)
 *     x = (1-c) x + c z                      y = b1 x + (1-b1) z
 *
 * N and d' are sums over all parameters (the ops prodigy_sums and prodigy_size).  W holds y;
 * evaluation and saved models use x.  c is t^0.75 divided by the sum of these over all steps.
 * While all gradients are 0, nothing changes.
 *
 * state: z, v, s, x0: 16 bytes per parameter.
 */
#include "optim/rule.h"

#ifndef RULE_REAL
#include <string.h>
#endif

STATES(schedule_free_prodigy, z, v)
OPTIONS(schedule_free_prodigy, beta1, beta2, eps)
CONSTANTS(schedule_free_prodigy, beta1, rest1, x_of_y, x_of_z, beta2, rest2, eps, step, decay,
          share, rest_share)

PREPARE(schedule_free_prodigy)
{
    k->beta1 = o->beta1;
    k->rest1 = 1 - o->beta1;
    k->x_of_y = 1 / o->beta1;
    k->x_of_z = (1 - o->beta1) / o->beta1;
    k->beta2 = o->beta2;
    k->rest2 = (1 - o->beta2) * now->d_before * now->d_before;
    k->eps = now->d * o->eps;
    k->step = now->d * now->d_before * now->lr;
    k->decay = now->decay * now->d_before * now->lr;
    k->share = now->average_share;
    k->rest_share = 1 - now->average_share;
}

STEP(schedule_free_prodigy)
{
    real x = k->x_of_y * *w - k->x_of_z * s->z;
    s->v = k->beta2 * s->v + k->rest2 * g * g;
    s->z -= k->step * (g / (root(s->v) + k->eps)) + k->decay * x;
    x = k->rest_share * x + k->share * s->z;
    *w = k->beta1 * x + k->rest1 * s->z;
}

#ifndef RULE_REAL
/* Emits the sums of one tensor.  All sums come before the first update. */
static enum snug_status emit_sums(const struct optim_target *t, tensor_id parts, int index,
                                  const struct attrs *attrs)
{
    char *name = arena_format(&t->prog->arena, "prodigy.part.%d", index);
    tensor_id in[] = {t->grad, t->scalars, TENSOR_NONE, TENSOR_NONE, TENSOR_NONE}, out[2];
    if (name == NULL)
        return snug_fail(t->err, SNUG_NO_MEMORY, "optimizer: out of memory");
    struct tensor part = {.name = name,
                          .dtype = DTYPE_f64,
                          .role = ROLE_temporary,
                          .shape = {1, {2}},
                          .base = parts,
                          .offset_elems = (int64_t)2 * index};
    TRY(optim_add_copy(t, "z", &in[2]));
    TRY(optim_add_copy(t, "x0", &in[3]));
    TRY(optim_add_state(t, "s", DTYPE_f32, NULL, &in[4]));
    TRY(program_add_tensor(t->prog, &part, &out[0], t->err));
    out[1] = in[4];
    return program_add_op(t->prog, OP_prodigy_sums, attrs, 5, in, 2, out, t->err);
}

static enum snug_status emit_all(const struct optim_target *targets, int n)
{
    if (n == 0)
        return SNUG_OK;
    struct tensor table = {TENSOR_INIT, .name = "prodigy.parts", .dtype = DTYPE_f64,
                           .role = ROLE_temporary, .shape = {2, {n, 2}}};
    struct attrs attrs = ATTRS(direction);
    tensor_id parts;
    memcpy(attrs.direction.options.value, targets->options, sizeof attrs.direction.options);
    TRY(optim_check_schedule_free(targets));
    TRY(program_add_tensor(targets->prog, &table, &parts, targets->err));
    for (int i = 0; i < n; i++)
        TRY(emit_sums(&targets[i], parts, i, &attrs));
    tensor_id in[] = {parts, targets->scalars};
    TRY(program_add_op(targets->prog, OP_prodigy_size, &attrs, 2, in, 1, &in[1], targets->err));
    for (int i = 0; i < n; i++)
        TRY(optim_emit_rule(&targets[i]));
    return SNUG_OK;
}
#endif

OPTIMIZER(schedule_free_prodigy, .name = "schedule-free-prodigy",
          .about = "schedule-free AdamW that estimates its learning rate", .emit_all = emit_all,
          .default_lr = 1, .options = "beta1, beta2, eps, d0",
          .defaults = {0.9, 0.9955, 1e-8, 1e-6}, .positive = "v", .copies = "z",
          .average = AVERAGE_schedule_free, .average_state = "z")
