/*
 * ref_average.c -- reference: averages of the weights, which evaluation uses in their place.
 */
#include <math.h>

#include "cpu/average.h"
#include "cpu/ref_local.h"

static void count_schedule_free(const double *options, double *scalars)
{
    double t = scalars[SCALAR_update_count], warmup = options[3];
    double lr = scalars[SCALAR_lr] * (t < warmup ? t / warmup : 1);
    scalars[SCALAR_lr_most] = fmax(scalars[SCALAR_lr_most], lr);
    average_count(pow(t, 0.75) * scalars[SCALAR_lr_most] * scalars[SCALAR_lr_most], scalars);
}

/* Options start and every are shares of the run. */
static void count_copies(const double *options, double *scalars)
{
    double n_steps = scalars[SCALAR_n_steps], done = scalars[SCALAR_update_count] - 1;
    double start = ceil(options[4] * n_steps), every = fmax(1, ceil(options[5] * n_steps));
    bool keeps = done >= start && fmod(done - start, every) == 0;
    scalars[SCALAR_keeps] = keeps ? 1 : 0;
    scalars[SCALAR_n_kept] += keeps ? 1 : 0;
}

enum snug_status ref_average_clock(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const double *options = call->op->attrs.options.value;
    double *scalars = call->in[AVERAGE_SCALARS].data;
    scalars[SCALAR_keeps] = 0;
    if (scalars[SCALAR_skip] != 0.0)
        return SNUG_OK;
    if (call->op->attrs.average == AVERAGE_schedule_free)
        count_schedule_free(options, scalars);
    else
        count_copies(options, scalars);
    return SNUG_OK;
}

enum snug_status ref_average_keep(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *w = &call->in[AVERAGE_WEIGHT], *kept = &call->in[AVERAGE_KEPT];
    struct average_change change = average_change(call);
    if (((const double *)call->in[AVERAGE_SCALARS].data)[SCALAR_keeps] == 0.0)
        return SNUG_OK;
    for (int64_t i = 0, n = elems(w); i < n; i++) {
        double old = change.of_kept > 0 ? change.of_kept * load(kept, change.at + i) : 0;
        store(kept, change.at + i, old + change.of_weight * load(w, i));
    }
    return SNUG_OK;
}

enum snug_status ref_average(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *w = &call->in[AVERAGE_WEIGHT], *kept = &call->in[AVERAGE_KEPT];
    struct average_mix mix = average_mix(call);
    for (int64_t i = 0, n = elems(w); i < n; i++) {
        double sum = 0;
        for (int64_t copy = 0; copy < mix.n_copies; copy++)
            sum += load(kept, copy * n + i);
        store(&call->out[0], i, mix.of_weight * load(w, i) + mix.of_kept * sum);
    }
    return SNUG_OK;
}
