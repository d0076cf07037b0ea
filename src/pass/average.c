/*
 * average.c -- evaluate a training run at averaged weights, for optimizers that average them.
 *
 * Before each op that reads an averaged weight we insert an op `average`, which computes the
 * average from the weight and the run's optimizer states.  It lives until that op has read it, so
 * evaluation needs memory for the averaged weights of one op at a time.  The run's tensors are not
 * modified, so nothing has to be restored afterwards.
 *
 * With averages_only, used to save the model, the program has no other ops and every average is an
 * output named average.WEIGHT.
 *
 * needs: final dtypes of the weights    keeps: ids    breaks: the loss, with averages_only
 * cost:  O(ops + tensors)
 */
#include "optim/optim.h"
#include "pass/pass.h"
#include "pass/rewriter.h"

#include <string.h>

struct averaging {
    struct program *prog;
    struct pass_env *env;
    tensor_id scalars;
    struct rewriter rw;
};

static enum snug_status no_memory(const struct averaging *a)
{
    return snug_fail(a->env->err, SNUG_NO_MEMORY, "average: out of memory");
}

/* Adds a state of the run to this program, once; TENSOR_NONE if the run has no such state. */
static enum snug_status borrow(struct averaging *a, enum tensor_link link, tensor_id weight,
                               tensor_id *id)
{
    const struct program *run = a->env->config.run;
    tensor_id there = program_linked(run, program_find(run, a->prog->tensors[weight].name), link);
    *id = program_linked(a->prog, weight, link);
    if (*id != TENSOR_NONE || there == TENSOR_NONE)
        return SNUG_OK;
    struct tensor borrowed = run->tensors[there];
    borrowed.offloaded = false; /* pass_offload sets it */
    TRY(program_add_tensor(a->prog, &borrowed, id, a->env->err));
    program_link(a->prog, *id, link, weight);
    return SNUG_OK;
}

/* Adds the op and sets *id to its result.  A tensor without an average is left as it is. */
static enum snug_status average(struct averaging *a, tensor_id *id)
{
    const struct optimizer *optimizer = a->env->config.optimizer;
    tensor_id weight = *id, master, kept;
    if (a->prog->tensors[weight].role != ROLE_parameter)
        return SNUG_OK;
    TRY(borrow(a, LINK_average_state, weight, &kept));
    if (kept == TENSOR_NONE)
        return SNUG_OK; /* not trained */
    TRY(borrow(a, LINK_master, weight, &master));
    struct tensor t = a->prog->tensors[weight];
    t.name = arena_format(&a->prog->arena, "average.%s", t.name);
    t.role = ROLE_activation;
    t.persistent = false;
    t.is_output = a->env->config.averages_only;
    if (t.name == NULL)
        return no_memory(a);
    TRY(program_add_tensor(a->prog, &t, id, a->env->err));
    program_link(a->prog, *id, LINK_average, weight);
    bool from_master = master != TENSOR_NONE && optimizer->average != AVERAGE_queue;
    struct op op = op_make(OP_average, ATTRS(average, .average = optimizer->average), 3,
                           (tensor_id[]){a->scalars, from_master ? master : weight, kept}, 1, id);
    memcpy(op.attrs.average.options.value, a->env->config.options, sizeof op.attrs.average.options);
    return rewriter_add(&a->rw, &op);
}

static enum snug_status rewrite(struct averaging *a)
{
    int n_tensors = a->prog->n_tensors;
    for (int id = 0; a->env->config.averages_only && id < n_tensors; id++)
        TRY(average(a, &(tensor_id){id}));
    for (int i = 0; !a->env->config.averages_only && i < a->prog->n_ops; i++) {
        struct op op = a->prog->ops[i];
        for (int k = 0; k < op.n_in; k++)
            if (op.in[k] != TENSOR_NONE)
                TRY(average(a, &op.in[k]));
        TRY(rewriter_replace(&a->rw, i, &op));
    }
    return SNUG_OK;
}

enum snug_status pass_average(struct program *prog, struct pass_env *env)
{
    struct averaging a = {
        .prog = prog, .env = env, .rw = rewriter_begin(prog, "average", env->err)};
    TRY(program_scalars(prog, &a.scalars, env->err));
    TRY(rewriter_finish(&a.rw, rewrite(&a)));
    if (env->config.averages_only)
        prog->loss = TENSOR_NONE;
    return SNUG_OK;
}
