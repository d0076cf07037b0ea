/*
 * random_program.c -- draws programs op by op; see random_program.h.
 */
#include "support/random_program.h"

#include "base/rng.h"

#include <stdio.h>

enum { MOST_POOL = 512 };

struct drawer {
    struct program *prog;
    struct dice dice;
    bool with_views;
    tensor_id pool[MOST_POOL]; /* tensors that may be read now */
    int n_pool;
    bool in_body;
    struct snug_error *err;
};

int dice_roll(struct dice *dice, int n)
{
    return (int)(rng_u64(dice->seed, 1, dice->index++) % (uint64_t)n);
}

static bool chance(struct drawer *d, int one_in)
{
    return dice_roll(&d->dice, one_in) == 0;
}

static const struct shape *shape_of(const struct drawer *d, tensor_id id)
{
    return &d->prog->tensors[id].shape;
}

static void remember(struct drawer *d, tensor_id id)
{
    if (id != TENSOR_NONE && d->n_pool < MOST_POOL)
        d->pool[d->n_pool++] = id;
}

/* Recent tensors are drawn most often, so that lifetimes are short and long. */
static tensor_id draw(struct drawer *d)
{
    int span = chance(d, 3) ? d->n_pool : d->n_pool < 4 ? d->n_pool : 4;
    return d->pool[d->n_pool - 1 - dice_roll(&d->dice, span)];
}

static tensor_id draw_like(struct drawer *d, tensor_id model)
{
    for (int tries = 0; tries < 8; tries++) {
        tensor_id id = draw(d);
        if (shape_equal(shape_of(d, id), shape_of(d, model)))
            return id;
    }
    return model;
}

static enum snug_status add_tensor(struct drawer *d, const char *name, enum role role,
                                   const struct shape *shape, bool persistent, tensor_id *id)
{
    struct tensor t = {TENSOR_INIT,  .name = name,    .dtype = DTYPE_f32,
                       .role = role, .shape = *shape, .persistent = persistent};
    if (role == ROLE_activation) {
        t.dtype = chance(d, 4) ? DTYPE_bf16 : DTYPE_f32;
        t.is_output = chance(d, 12);
    }
    char numbered[32];
    snprintf(numbered, sizeof numbered, "%s%d", name, d->prog->n_tensors);
    t.name = numbered;
    return program_add_tensor(d->prog, &t, id, d->err);
}

static enum snug_status add_vector(struct drawer *d, int64_t n, tensor_id *id)
{
    return add_tensor(d, "w", ROLE_parameter, &(struct shape){1, {n}}, true, id);
}

/* Adds the op, with output shapes from its rule, and sometimes a workspace. */
static enum snug_status add_op(struct drawer *d, enum op_kind kind, const struct attrs *attrs,
                               int n_in, const tensor_id *in, int n_out, tensor_id *out)
{
    struct shape shapes[MAX_OUTPUTS];
    struct op probe = {.kind = kind,
                       .n_in = n_in,
                       .n_out = n_out,
                       .attrs = attrs == NULL ? attrs_default(op_infos[kind].family) : *attrs};
    for (int k = 0; k < MAX_INPUTS; k++)
        probe.in[k] = k < n_in ? in[k] : TENSOR_NONE;
    TRY(op_shapes(d->prog, &probe, shapes, d->err));
    for (int k = 0; k < n_out; k++) {
        if (out[k] != TENSOR_NONE)
            continue; /* given */
        if (shapes[k].n_dims < 0)
            continue; /* an update writes existing tensors */
        if (k > 0 && chance(d, 6))
            continue; /* left out */
        TRY(add_tensor(d, "t", ROLE_activation, &shapes[k], false, &out[k]));
        if (op_infos[kind].keeps_f32 >> k & 1)
            d->prog->tensors[out[k]].dtype = DTYPE_f32;
    }
    TRY(program_add_op(d->prog, kind, attrs, n_in, in, n_out, out, d->err));
    if (chance(d, 4)) {
        struct tensor work = {TENSOR_INIT, .name = "work", .dtype = DTYPE_u8,
                              .role = ROLE_temporary, .shape = {1, {1 + dice_roll(&d->dice, 700)}}};
        tensor_id id;
        TRY(program_add_tensor(d->prog, &work, &id, d->err));
        d->prog->ops[d->prog->n_ops - 1].work = id;
    }
    for (int k = 0; k < n_out; k++)
        remember(d, out[k]);
    return SNUG_OK;
}

static enum snug_status draw_norm(struct drawer *d, tensor_id x)
{
    tensor_id gamma, beta, out[3] = {TENSOR_NONE, TENSOR_NONE, TENSOR_NONE};
    int64_t width = shape_last(shape_of(d, x)), rows = shape_rows(shape_of(d, x));
    TRY(add_vector(d, width, &gamma));
    TRY(add_vector(d, width, &beta));
    if (chance(d, 2))
        return add_op(d, OP_layernorm, NULL, 3, (tensor_id[]){x, gamma, beta}, 3, out);
    tensor_id mean, rstd;
    TRY(add_vector(d, rows, &mean));
    TRY(add_vector(d, rows, &rstd));
    bool with_rest = chance(d, 2);
    struct attrs attrs =
        ATTRS(common, .accumulate = d->in_body && chance(d, 2) ? ACC_after_first : ACC_no);
    return add_op(d, OP_layernorm_grad, &attrs, with_rest ? 6 : 5,
                  (tensor_id[]){draw_like(d, x), x, gamma, mean, rstd, draw_like(d, x)}, 3, out);
}

static enum snug_status draw_linear(struct drawer *d, tensor_id x)
{
    static const int64_t widths[] = {1, 3, 16, 32, 65};
    tensor_id w, out[2] = {TENSOR_NONE, TENSOR_NONE};
    struct shape matrix = {2, {widths[dice_roll(&d->dice, 5)], shape_last(shape_of(d, x))}};
    TRY(add_tensor(d, "w", ROLE_parameter, &matrix, true, &w));
    struct attrs attrs = ATTRS(common, .act = chance(d, 2) ? ACT_gelu : ACT_none);
    return add_op(d, OP_linear, &attrs, 2, (tensor_id[]){x, w}, attrs.act == ACT_none ? 1 : 2, out);
}

/* y (+)= x, where y is new, was written before, or is persistent. */
static enum snug_status draw_accumulate(struct drawer *d, tensor_id x)
{
    tensor_id y = TENSOR_NONE;
    struct attrs attrs = ATTRS();
    int way = dice_roll(&d->dice, 4);
    if (way == 0 && d->in_body)
        attrs.accumulate = ACC_after_first;
    if (way == 1) {
        tensor_id old = draw_like(d, x);
        if (old != x && d->prog->tensors[old].role == ROLE_activation &&
            d->prog->tensors[old].base == TENSOR_NONE) {
            attrs.accumulate = ACC_yes;
            y = old;
        }
    }
    if (way == 2) {
        TRY(add_tensor(d, "state", ROLE_optimizer, shape_of(d, x), true, &y));
        attrs.accumulate = ACC_yes;
    }
    return add_op(d, OP_accumulate, &attrs, 1, &x, 1, &y);
}

static enum snug_status draw_views(struct drawer *d, tensor_id x)
{
    int64_t n = shape_elems(shape_of(d, x)), gap = dice_roll(&d->dice, 3);
    tensor_id base, part;
    TRY(add_tensor(d, "base", ROLE_activation, &(struct shape){1, {2 * n + gap}}, false, &base));
    struct tensor view = {.name = "part",
                          .dtype = d->prog->tensors[base].dtype,
                          .role = ROLE_activation,
                          .base = base,
                          .shape = *shape_of(d, x)};
    if (chance(d, 2)) { /* the views, then the base */
        for (int k = 0; k < 2; k++) {
            view.offset_elems = k * (n + gap);
            view.is_output = chance(d, 8);
            TRY(program_add_tensor(d->prog, &view, &part, d->err));
            TRY(add_op(d, OP_act, NULL, 1, &x, 1, &part));
        }
        if (gap == 0)
            remember(d, base);
        else
            d->prog->tensors[base].is_output =
                false; /* the bytes between the views are never written */
        return SNUG_OK;
    }
    tensor_id vector; /* the base, then a view */
    TRY(add_vector(d, 2 * n + gap, &vector));
    TRY(add_op(d, OP_act, NULL, 1, &vector, 1, &base));
    view.offset_elems = n + gap;
    view.is_output = chance(d, 8);
    TRY(program_add_tensor(d->prog, &view, &part, d->err));
    remember(d, part);
    return SNUG_OK;
}

static enum snug_status draw_update(struct drawer *d, tensor_id grad)
{
    tensor_id w, m, v, s;
    TRY(add_tensor(d, "w", ROLE_parameter, shape_of(d, grad), true, &w));
    TRY(add_tensor(d, "m", ROLE_optimizer, shape_of(d, grad), true, &m));
    TRY(add_tensor(d, "v", ROLE_optimizer, shape_of(d, grad), true, &v));
    TRY(program_scalars(d->prog, &s, d->err));
    tensor_id out[5] = {w, TENSOR_NONE, m, TENSOR_NONE, v};
    struct attrs adamw = ATTRS(update, .rule = RULE_adamw), sgd = ATTRS(update, .rule = RULE_sgd);
    return chance(d, 2) ? add_op(d, OP_update, &sgd, 3, (tensor_id[]){grad, s, w}, 1, out)
                        : add_op(d, OP_update, &adamw, 7,
                                 (tensor_id[]){grad, s, w, TENSOR_NONE, m, TENSOR_NONE, v}, 5, out);
}

static enum snug_status draw_op(struct drawer *d)
{
    tensor_id x = draw(d), one = TENSOR_NONE;
    switch (dice_roll(&d->dice, 12)) {
    case 0:
    case 1:
    case 2:
        return add_op(d, OP_act, NULL, 1, &x, 1, &one);
    case 3:
    case 4:
    case 5:
        return add_op(d, OP_add, NULL, 2, (tensor_id[]){x, draw_like(d, x)}, 1, &one);
    case 6:
        return draw_linear(d, x);
    case 7:
        return draw_norm(d, x);
    case 8:
    case 9:
        return draw_accumulate(d, x);
    case 10:
        return d->with_views ? draw_views(d, x) : draw_linear(d, x);
    default:
        return draw_update(d, x);
    }
}

/* An op of the body that runs in the last round only: ops of other rounds must not read its output. */
static enum snug_status draw_op_of_body(struct drawer *d)
{
    int n_ops = d->prog->n_ops, n_pool = d->n_pool;
    TRY(draw_op(d));
    struct op *op = &d->prog->ops[n_ops];
    bool makes_new = d->prog->n_ops == n_ops + 1 && op->attrs.accumulate == ACC_no;
    if (makes_new && chance(d, 5)) {
        op->in_last = true;
        d->n_pool = n_pool;
    }
    return SNUG_OK;
}

enum snug_status random_program(struct program *prog, uint64_t seed, int n_ops, bool with_views,
                                struct snug_error *err)
{
    static const int64_t rows[] = {1, 2, 5, 8}, widths[] = {1, 3, 16, 31, 32};
    struct drawer d = {.prog = prog, .dice = {.seed = seed}, .with_views = with_views, .err = err};
    tensor_id id;
    TRY(program_init(prog, "random", err));
    for (int i = 0; i < 2; i++) {
        TRY(add_vector(&d, widths[dice_roll(&d.dice, 5)], &id));
        remember(&d, id);
    }
    int n_after = chance(&d, 2) ? dice_roll(&d.dice, n_ops / 3 + 1) : 0;
    prog->n_repeat = 1 + dice_roll(&d.dice, 3);
    for (int i = 0; i < 2; i++) {
        struct shape shape = {2, {rows[dice_roll(&d.dice, 4)], widths[dice_roll(&d.dice, 5)]}};
        TRY(add_tensor(&d, "x", ROLE_input, &shape, false, &id));
        remember(&d, id);
    }
    d.in_body = true;
    do
        TRY(draw_op_of_body(&d));
    while (prog->n_ops < n_ops - n_after);
    d.in_body = false;
    prog->body_end = prog->n_ops;
    while (n_after > 0 && prog->n_ops < n_ops)
        TRY(draw_op(&d));
    return SNUG_OK;
}
