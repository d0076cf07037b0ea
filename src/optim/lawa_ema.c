/*
 * lawa_ema.c -- lawa_queue.c with a running mean in place of the queue.  The mean starts as the
 * first copy; each later one changes it to beta mean + (1-beta) W.
 *
 * state: m, v, ema: 12 bytes per parameter.
 */
#include "optim/rule.h"

#include <string.h>

static enum snug_status emit_all(const struct optim_target *targets, int n)
{
    struct attrs attrs = ATTRS(average, .average = AVERAGE_ema);
    if (n > 0)
        TRY(optim_add_average_clock(targets));
    for (int i = 0; i < n; i++) {
        const struct optim_target *t = &targets[i];
        tensor_id in[] = {t->scalars, t->master != TENSOR_NONE ? t->master : t->weight,
                          TENSOR_NONE};
        memcpy(attrs.average.options.value, t->options, sizeof attrs.average.options);
        TRY(optim_emit_rule(t));
        TRY(optim_add_state(t, "ema", DTYPE_f32, NULL, &in[2]));
        TRY(program_add_op(t->prog, OP_average_keep, &attrs, 3, in, 1, &in[2], t->err));
    }
    return SNUG_OK;
}

OPTIMIZER_LIKE(lawa_ema, nadamw, .name = "lawa-ema",
               .about = "NadamW, evaluated at a running mean of its weights", .emit_all = emit_all,
               .default_lr = 3e-4, .default_decay = 0.1,
               .options = "beta1, beta2, eps, beta, start, every",
               .defaults = {0.9, 0.999, 1e-8, 0.2, 0.02, 0.005}, .average = AVERAGE_ema,
               .average_state = "ema")
