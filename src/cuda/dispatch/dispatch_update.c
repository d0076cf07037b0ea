/*
 * dispatch_update.c -- the op update with update.cu.
 */
#include <string.h>

#include "base/rng.h"
#include "cuda/dispatch/dispatch.h"
#include "cuda/optim/update.h"

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

/* With the random stream for stochastic rounding, and the index of the first element in it. */
static struct update_array update_array_of(const struct operand *x)
{
    return (struct update_array){
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
                              .stepped = update_array_of(stepped),
                              .stepped_type = (uint8_t)stepped->tensor->dtype,
                              .copy = stepped == master ? w->data : NULL,
                              .copy_type = (uint8_t)w->tensor->dtype,
                              .lr_factor = attrs_of(call->op, update)->lr_factor,
                              .decay = attrs_of(call->op, update)->decay,
                              .positive = (uint8_t)attrs_of(call->op, update)->positive,
                              .stochastic = attrs_of(call->op, update)->stochastic != 0,
                              .aligned = is_aligned(call)};
    for (int j = 0; j < update_n_states(call->op); j++) {
        const struct operand *state = &call->in[UPDATE_STATES + 2 * j];
        t.state[j] = update_array_of(state);
        t.state_type[j] = (uint8_t)state->tensor->dtype;
        t.scales[j] = state[1].data;
    }
    return t;
}

static bool same_options(const struct update_attrs *a, const struct update_attrs *b)
{
    for (int i = 0; i < MAX_OPTIONS; i++)
        if (a->options.value[i] != b->options.value[i])
            return false;
    return true;
}

/* May b run in one launch with a?  Their writes do not overlap: each weight has one update. */
static bool goes_with(const struct kernel_call *a, const struct kernel_call *b)
{
    const struct update_attrs *of_a = attrs_of(a->op, update), *of_b = attrs_of(b->op, update);
    return of_a->rule == of_b->rule && of_a->direction == of_b->direction &&
           of_a->direction != DIRECTION_scaled && /* its scale is set for one tensor only */
           same_options(of_a, of_b) &&
           (of_a->state_bits == of_b->state_bits || of_a->state_bits == 0 ||
            of_b->state_bits == 0) &&
           a->in[UPDATE_SCALARS].data == b->in[UPDATE_SCALARS].data &&
           a->in[UPDATE_WEIGHT].data != b->in[UPDATE_WEIGHT].data;
}

static bool joins(const struct kernel_call *calls, int n)
{
    for (int i = 0; i < n; i++)
        if (!goes_with(&calls[i], &calls[n]))
            return false;
    return true;
}

static enum snug_status run_several(const struct kernel_call *calls, int n, int *n_run,
                                    struct snug_error *err)
{
    const struct update_attrs *attrs = attrs_of(calls->op, update);
    struct update_job job = {.rule = attrs->rule,
                             .direction = attrs->direction,
                             .scalars = calls->in[UPDATE_SCALARS].data};
    struct update_tensor tensors[UPDATE_TENSORS_MOST];
    struct quant_map maps[2];
    memcpy(job.options, attrs->options.value, sizeof job.options);
    *n_run = 0;
    while (*n_run < n && *n_run < UPDATE_TENSORS_MOST && joins(calls, *n_run)) {
        const struct kernel_call *call = &calls[*n_run];
        TRY(update_check_states(call, rule_states[attrs->rule], err));
        if (attrs_of(call->op, update)->state_bits != 0)
            job.state_bits = (int)attrs_of(call->op, update)->state_bits;
        tensors[(*n_run)++] = tensor_of(call);
    }
    for (int i = 0; job.state_bits != 0 && i < 2; i++)
        quant_map_make(&maps[i], job.state_bits, i == 0);
    return cuda_done(
        calls, cuda_update(&job, *n_run, tensors, job.state_bits != 0 ? maps : NULL, calls->stream),
        err);
}

static enum snug_status run(const struct kernel_call *call, struct snug_error *err)
{
    int n_run;
    return run_several(call, 1, &n_run, err);
}

CUDA_KERNELS(update) = {
    {.kind = OP_update,
     .name = "cuda",
     .supports = supports,
     .run = run,
     .run_several = run_several},
};
CUDA_KERNELS_END(update)
