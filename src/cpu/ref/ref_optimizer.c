/*
 * ref_optimizer.c -- reference: the gradient norm, clipping and loss scale, and the updates.
 *
 * The arithmetic of the norm and the update rules comes from src/optim, in fp64.  This file handles
 * storage: dtypes, quantized states, stochastic rounding and master weights.  If there is a master
 * weight, the update changes it, and the weight is the master rounded.
 */
#include <math.h>
#include <string.h>

#include "base/quant_map.h"
#include "base/counter_random.h"
#include "base/rng.h"
#include "cpu/ref/ref_common.h"
#include "optim/grad_norm.h"

#define RULE_REAL double
#include "optim/rules.h"

enum snug_status ref_sum_squares(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *g = &call->in[0];
    store(&call->out[0], 0, dot(g, 0, 1, g, 0, 1, elems(g)));
    return SNUG_OK;
}

static double sum_parts(const struct operand *parts)
{
    double total = 0.0;
    for (int64_t i = 0, n = elems(parts); i < n; i++)
        total += load(parts, i);
    return total;
}

enum snug_status ref_grad_norm(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct grad_norm_attrs *attrs = attrs_of(call->op, grad_norm);
    norm_clip(sum_parts(&call->in[0]), attrs->max_norm, attrs->dynamic_scale != 0,
              call->out[0].data);
    return SNUG_OK;
}

enum snug_status ref_open_updates(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    norm_open_updates(call->out[0].data);
    return SNUG_OK;
}

enum snug_status ref_check_gradient(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    store(&call->out[0], SCALAR_skip, isfinite(load(&call->in[0], 0)) ? 0.0 : 1.0);
    return SNUG_OK;
}

enum snug_status ref_close_updates(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    (void)norm_set(sum_parts(&call->in[0]), call->out[0].data);
    return SNUG_OK;
}

enum snug_status ref_next_loss_scale(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *scalars = &call->out[0];
    norm_next_loss_scale(scalars->data, load(scalars, SCALAR_skip) != 0.0);
    return SNUG_OK;
}

/* ---- update ---------------------------------------------------------------------------------- */

enum { BLOCK_ELEMS = QUANT_BLOCK_8 }; /* a multiple of both quant block sizes */

struct cells { /* a block of weights and states */
    int64_t at, count;
    double w[BLOCK_ELEMS], state[MAX_STATES][BLOCK_ELEMS];
};

typedef void steps_fn(const struct rule_now *now, const double *options, const double *g,
                      struct cells *cells);

#define RULE(name)                                                                               \
    static void steps_##name(const struct rule_now *now, const double *options, const double *g, \
                             struct cells *cells)                                                \
    {                                                                                            \
        struct name##_options o;                                                                 \
        struct name##_exact_constants exact;                                                     \
        struct name##_constants k;                                                               \
        memcpy(&o, options, sizeof o);                                                           \
        prepare_##name(&o, now, &exact);                                                         \
        memcpy(&k, &exact, sizeof k);                                                            \
        for (int64_t i = 0; i < cells->count; i++) {                                             \
            struct name##_states s = {0};                                                        \
            for (int j = 0; j < name##_n_states; j++)                                            \
                ((double *)&s)[j] = cells->state[j][i];                                          \
            step_##name(&k, g[i], &cells->w[i], &s);                                             \
            for (int j = 0; j < name##_n_states; j++)                                            \
                cells->state[j][i] = ((double *)&s)[j];                                          \
        }                                                                                        \
    }
#include "ir/rules.def"
#undef RULE

static const struct {
    steps_fn *steps;
    int n_states;
} rules[RULE_COUNT] = {
#define RULE(name) {steps_##name, name##_n_states},
#include "ir/rules.def"
#undef RULE
};

static bool is_16_bits(const struct operand *x)
{
    return x->tensor->dtype == DTYPE_bf16 || x->tensor->dtype == DTYPE_f16;
}

/* Stores n elements, with stochastic rounding if the op requests it and the dtype has 16 bits. */
static void store_elems(const struct kernel_call *call, const struct operand *x, int64_t at,
                        int64_t n, const double *from)
{
    if (!attrs_of(call->op, update)->stochastic || !is_16_bits(x)) {
        for (int64_t i = 0; i < n; i++)
            store(x, at + i, from[i]);
        return;
    }
    const struct operand *scalars = &call->in[UPDATE_SCALARS];
    uint64_t key = rng_u64((uint64_t)load(scalars, SCALAR_seed), rng_hash_string(operand_name(x)),
                           (uint64_t)load(scalars, SCALAR_update_count));
    uint16_t *to = x->data;
    for (int64_t i = at; i < at + n; i++) {
        uint32_t random = counter_random(key, (uint64_t)(x->whole_from + i));
        float value = (float)from[i - at];
        to[i] = x->tensor->dtype == DTYPE_bf16 ? rng_round_bf16(value, random)
                                               : f16_from_f32(rng_round_f16(value, random));
    }
}

static void load_state(const struct operand *state, const struct operand *scales,
                       const struct quant_map *map, int64_t at, int64_t n, double *to)
{
    float values[BLOCK_ELEMS];
    if (present(scales))
        dequantize_elems(map, state->data, scales->data, at, n, values);
    for (int64_t i = 0; i < n; i++)
        to[i] = present(scales) ? (double)values[i] : load(state, at + i);
}

static void store_state(const struct kernel_call *call, int j, const struct quant_map *map,
                        const struct cells *cells)
{
    const struct operand *state = &call->in[UPDATE_STATES + 2 * j], *scales = state + 1;
    float values[BLOCK_ELEMS];
    if (!present(scales)) {
        store_elems(call, state, cells->at, cells->count, cells->state[j]);
        return;
    }
    for (int64_t i = 0; i < cells->count; i++)
        values[i] = (float)cells->state[j][i];
    quantize_elems(map, state->data, scales->data, cells->at, cells->count, values);
}

/* Stores the master weight if there is one, and the weight as its rounding. */
static void store_weight(const struct kernel_call *call, const struct cells *cells)
{
    const struct operand *w = &call->in[UPDATE_WEIGHT], *master = &call->in[UPDATE_MASTER];
    store_elems(call, present(master) ? master : w, cells->at, cells->count, cells->w);
    for (int64_t i = cells->at; present(master) && i < cells->at + cells->count; i++)
        store(w, i, load(master, i)); /* from the stored master, so that w can be recomputed */
}

enum snug_status ref_update(const struct kernel_call *call, struct snug_error *err)
{
    const struct update_attrs *attrs = attrs_of(call->op, update);
    const struct operand *g = &call->in[UPDATE_GRADIENT], *scalars = &call->in[UPDATE_SCALARS];
    const struct operand *w = &call->in[UPDATE_WEIGHT], *master = &call->in[UPDATE_MASTER];
    int n_states = update_n_states(call->op);
    struct quant_map maps[MAX_STATES];
    struct cells cells;
    TRY(update_check_states(call, rules[attrs->rule].n_states, err));
    if (load(scalars, SCALAR_skip) != 0.0)
        return SNUG_OK;
    struct rule_now now = rule_now(attrs->direction, attrs->lr_factor, attrs->decay, scalars->data);
    for (int j = 0; j < n_states && attrs->state_bits != 0; j++)
        quant_map_make(&maps[j], (int)attrs->state_bits, (attrs->positive >> j & 1) == 0);
    for (int64_t n = elems(w), at = 0; at < n; at += BLOCK_ELEMS) {
        double gradient[BLOCK_ELEMS];
        cells.at = at;
        cells.count = n - at < BLOCK_ELEMS ? n - at : BLOCK_ELEMS;
        for (int64_t i = 0; i < cells.count; i++) {
            gradient[i] = load(g, at + i) * rule_factor(attrs->direction, scalars->data);
            cells.w[i] = load(present(master) ? master : w, at + i);
        }
        for (int j = 0; j < n_states; j++)
            load_state(&call->in[UPDATE_STATES + 2 * j], &call->in[UPDATE_STATES + 2 * j + 1],
                       &maps[j], at, cells.count, cells.state[j]);
        rules[attrs->rule].steps(&now, attrs->options.value, gradient, &cells);
        for (int j = 0; j < n_states; j++)
            store_state(call, j, &maps[j], &cells);
        store_weight(call, &cells);
    }
    return SNUG_OK;
}
