/*
 * lawa_queue.c -- latest weight averaging (LAWA, Kaddour) on NadamW.  After the fraction `start`
 * of the run, and then after every fraction `every` of it, the weights are copied into the oldest
 * of k slots.  Training is not affected.  Evaluation and saved models use the mean of the copies
 * once there are k.
 *
 * state: m, v: 8 bytes per parameter, and k copies in the dtype of the weights: 4 k bytes in fp32.
 */
#include "optim/rule.h"

#include <string.h>

enum { OPTION_k = 3, MAX_COPIES = 1000 }; /* after nadamw's options */

/* Adds the copies as one tensor [k, n], and a named view of each. */
static enum snug_status add_copies(const struct optim_target *t, int64_t k, tensor_id *copies)
{
    const struct tensor weight = t->prog->tensors[t->weight];
    int64_t n = shape_elems(&weight.shape);
    TRY(optim_add_state(t, "copies", weight.dtype, &(struct shape){2, {k, n}}, copies));
    for (int64_t i = 0; i < k; i++) {
        char *name = arena_format(&t->prog->arena, "copy%lld.%s", (long long)i, weight.name);
        struct tensor copy = {.name = name,
                              .dtype = weight.dtype,
                              .role = ROLE_optimizer,
                              .shape = weight.shape,
                              .base = *copies,
                              .offset_elems = i * n,
                              .is_output = true};
        tensor_id id;
        if (name == NULL)
            return snug_fail(t->err, SNUG_NO_MEMORY, "optimizer: out of memory");
        TRY(program_add_tensor(t->prog, &copy, &id, t->err));
    }
    return SNUG_OK;
}

static enum snug_status emit_all(const struct optim_target *targets, int n)
{
    double k = n > 0 ? targets->options[OPTION_k] : 1;
    struct attrs attrs = ATTRS(average, .average = AVERAGE_queue);
    if (!(k >= 1 && k <= MAX_COPIES && k == floor(k)))
        return snug_fail(targets->err, SNUG_BAD_ARGUMENT,
                         "--opt: k=%g: must be a whole number from 1 to %d", k, MAX_COPIES);
    if (n > 0)
        TRY(optim_add_average_clock(targets));
    for (int i = 0; i < n; i++) {
        const struct optim_target *t = &targets[i];
        tensor_id in[] = {t->scalars, t->weight, TENSOR_NONE};
        memcpy(attrs.average.options.value, t->options, sizeof attrs.average.options);
        TRY(optim_emit_rule(t));
        TRY(add_copies(t, (int64_t)k, &in[2]));
        TRY(program_add_op(t->prog, OP_average_keep, &attrs, 3, in, 1, &in[2], t->err));
    }
    return SNUG_OK;
}

OPTIMIZER_LIKE(lawa_queue, nadamw, .name = "lawa-queue",
               .about = "NadamW, evaluated at the mean of its recent weights", .emit_all = emit_all,
               .default_lr = 3e-4, .default_decay = 0.1,
               .options = "beta1, beta2, eps, k, start, every",
               .defaults = {0.9, 0.999, 1e-8, 10, 0.02, 0.002}, .average = AVERAGE_queue,
               .average_state = "copies")
