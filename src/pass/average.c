/*
 * average.c -- an evaluation beside a training run reads averages of the weights, where the optimizer of
 * that run has them.
 *
 * Each op that reads such a weight gets an op `average` before it, which makes the average from the weight
 * and the states of the run; the numbers live until that op has read them.  Nothing of the run is changed,
 * so nothing has to be undone, and an evaluation needs memory for one averaged weight at a time.
 *
 * To save the model, averages_only: no other ops, and all averages are outputs, called average.WEIGHT.
 *
 * needs: types of the weights    keeps: ids    breaks: nothing
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

/* A state of the run as a tensor of this program; TENSOR_NONE: the run has none. */
static enum snug_status borrow(struct averaging *a, enum tensor_link link, tensor_id weight,
                               tensor_id *id)
{
    const struct program *run = a->env->config.run;
    tensor_id there = program_linked(run, program_find(run, a->prog->tensors[weight].name), link);
    *id = program_linked(a->prog, weight, link);
    if (*id != TENSOR_NONE || there == TENSOR_NONE)
        return SNUG_OK;
    struct tensor borrowed = run->tensors[there];
    borrowed.offloaded = false; /* until offload says so */
    TRY(program_add_tensor(a->prog, &borrowed, id, a->env->err));
    program_link(a->prog, *id, link, weight);
    return SNUG_OK;
}

/* Adds the op; *id becomes the average, and stays the weight where there is none. */
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
