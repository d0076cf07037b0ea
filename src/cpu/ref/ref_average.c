/*
 * ref_average.c -- reference: weight averages, which evaluation uses instead of the weights.
 */
#include "cpu/ref/ref_common.h"
#include "optim/average.h"

/* Number of weight copies that the average keeps. */
static int64_t n_copies(const struct kernel_call *call)
{
    return elems(&call->in[AVERAGE_KEPT]) / elems(&call->in[AVERAGE_WEIGHT]);
}

enum snug_status ref_average_clock(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct average_attrs *attrs = attrs_of(call->op, average);
    average_clock(attrs->average, attrs->options.value, call->in[AVERAGE_SCALARS].data);
    return SNUG_OK;
}

enum snug_status ref_average_keep(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *w = &call->in[AVERAGE_WEIGHT], *kept = &call->in[AVERAGE_KEPT];
    const double *scalars = call->in[AVERAGE_SCALARS].data;
    const struct average_attrs *attrs = attrs_of(call->op, average);
    struct average_change change =
        average_change(attrs->average, attrs->options.value, n_copies(call), scalars);
    if (scalars[SCALAR_keeps] == 0.0)
        return SNUG_OK;
    for (int64_t i = 0, n = elems(w), at = change.copy * n; i < n; i++, at++) {
        double old = change.of_kept > 0 ? change.of_kept * load(kept, at) : 0;
        store(kept, at, old + change.of_weight * load(w, i));
    }
    return SNUG_OK;
}

enum snug_status ref_average(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *w = &call->in[AVERAGE_WEIGHT], *kept = &call->in[AVERAGE_KEPT];
    const struct average_attrs *attrs = attrs_of(call->op, average);
    struct average_mix mix = average_mix(attrs->average, attrs->options.value, n_copies(call),
                                         call->in[AVERAGE_SCALARS].data);
    for (int64_t i = 0, n = elems(w); i < n; i++) {
        double sum = 0;
        for (int64_t copy = 0; copy < mix.n_copies; copy++)
            sum += load(kept, copy * n + i);
        store(&call->out[0], i, mix.of_weight * load(w, i) + mix.of_kept * sum);
    }
    return SNUG_OK;
}
