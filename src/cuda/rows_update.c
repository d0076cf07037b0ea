/*
 * rows_update.c -- the op update over update.cu.
 */
#include <string.h>

#include "base/rng.h"
#include "cuda/rows.h"
#include "cuda/update.h"

#define RULE_REAL float
#include "optim/rules.h"

static const int rule_states[RULE_COUNT] = {
#define RULE(name) name##_n_states,
#include "ir/rules.def"
#undef RULE
};

static bool supports(const struct program *prog, const struct op *op)
{
    return cuda_floats_fit(prog, op, 1u << UPDATE_SCALARS, 0);
}

/* Whose random numbers round it, and from which on. */
static struct update_numbers numbers_of(const struct operand *x)
{
    return (struct update_numbers){
        .data = x->data, .stream = rng_hash_string(operand_name(x)), .from = x->whole_from};
}

static bool is_aligned(const struct kernel_call *call)
{
    for (int k = 0; k < call->op->n_in; k++)
        if (((uintptr_t)call->in[k].data & 15) != 0)
            return false;
    return true;
}

static struct update_tensor tensor_of(const struct kernel_call *call)
{
    const struct operand *g = &call->in[UPDATE_GRADIENT], *w = &call->in[UPDATE_WEIGHT];
    const struct operand *master = &call->in[UPDATE_MASTER];
    const struct operand *stepped = master->data != NULL ? master : w;
    struct update_tensor t = {.n = cuda_elems(w),
                              .g = g->data,
                              .g_type = (uint8_t)g->tensor->dtype,
                              .stepped = numbers_of(stepped),
                              .stepped_type = (uint8_t)stepped->tensor->dtype,
                              .copy = stepped == master ? w->data : NULL,
                              .copy_type = (uint8_t)w->tensor->dtype,
                              .lr_factor = call->op->attrs.lr_factor,
                              .decay = call->op->attrs.decay,
                              .aligned = is_aligned(call)};
    for (int j = 0; j < update_n_states(call->op); j++) {
        const struct operand *state = &call->in[UPDATE_STATES + 2 * j];
        t.state[j] = numbers_of(state);
        t.state_type[j] = (uint8_t)state->tensor->dtype;
        t.scales[j] = state[1].data;
    }
    return t;
}

static enum snug_status run(const struct kernel_call *call, struct snug_error *err)
{
    const struct attrs *attrs = &call->op->attrs;
    struct update_job job = {.rule = attrs->rule,
                             .direction = attrs->direction,
                             .state_bits = (int)attrs->state_bits,
                             .positive = (unsigned)attrs->positive,
                             .stochastic = attrs->stochastic != 0,
                             .scalars = call->in[UPDATE_SCALARS].data};
    memcpy(job.options, attrs->options.value, sizeof job.options);
    TRY(update_check_states(call, rule_states[attrs->rule], err));
    struct update_tensor tensor = tensor_of(call);
    struct code_map maps[2];
    bool in_codes = attrs->state_bits != 0;
    for (int i = 0; in_codes && i < 2; i++)
        code_map_make(&maps[i], (int)attrs->state_bits, i == 0);
    return cuda_done(call, cuda_update(&job, 1, &tensor, in_codes ? maps : NULL, call->stream),
                     err);
}

CUDA_ROWS(update) = {
    {.kind = OP_update, .name = "cuda", .supports = supports, .run = run},
};
CUDA_ROWS_END(update)
