/*
 * regularize.c -- what makes training harder on purpose: dropout and label smoothing.
 *
 * Dropout goes where GPT-2 and its kin have it: after the embedding, on the probabilities of
 * attention, and on what ends a residual branch, before it is added.  A model without residual
 * additions has it after the activations of its linear layers.  Each of the three has a rate of its own.
 * Each place is a site with a number of its own; the number, not the place in memory, keys the mask.
 *
 * Label smoothing is an attribute of the loss.  A program for evaluation does not pass here, so that
 * it has neither.
 *
 * needs: a forward program    keeps: tensor ids, results at p = 0    breaks: nothing
 * cost:  O(ops x inputs + tensors)
 */
#include "pass/pass.h"

#include <stdlib.h>
#include <string.h>

struct regularize {
    struct program *prog;
    struct pass_env *env;
    double *rate;       /* per tensor: above 0, its readers read a copy dropped at this rate */
    tensor_id *copy_of; /* per tensor: that copy, once it is there */
    tensor_id scalars;
    int n_sites;
};

static bool written_by_linear(const struct program *prog, tensor_id id)
{
    for (int i = 0; i < prog->n_ops; i++)
        if (prog->ops[i].out[0] == id)
            return prog->ops[i].kind == OP_linear;
    return false;
}

static bool has_residuals(const struct program *prog)
{
    for (int i = 0; i < prog->n_ops; i++)
        if (prog->ops[i].kind == OP_add)
            return true;
    return false;
}

static void mark_dropped(struct regularize *r)
{
    const struct program *prog = r->prog;
    const struct dropout_rates *rates = &r->env->dropout;
    bool residuals = has_residuals(prog);
    for (int i = 0; i < prog->n_ops; i++) {
        const struct op *op = &prog->ops[i];
        if (op->kind == OP_embedding)
            r->rate[op->out[0]] = rates->embedding;
        if (op->kind == OP_act && !residuals && written_by_linear(prog, op->in[0]))
            r->rate[op->out[0]] = rates->residual;
        for (int k = 0; k < 2 && op->kind == OP_add; k++)
            if (written_by_linear(prog, op->in[k]))
                r->rate[op->in[k]] = rates->residual;
    }
}

static enum snug_status make_copy(struct regularize *r, tensor_id of)
{
    struct tensor copy = r->prog->tensors[of];
    char *name = arena_format(r->env->scratch, "%s.dropout", copy.name);
    copy.name = name == NULL ? "dropout" : name;
    copy.is_output = false;
    return program_add_tensor(r->prog, &copy, &r->copy_of[of], r->env->err);
}

static struct op dropout_op(struct regularize *r, tensor_id of)
{
    return (struct op){.kind = OP_dropout,
                       .n_in = 2,
                       .n_out = 1,
                       .in = {of, r->scalars},
                       .out = {r->copy_of[of]},
                       .work = TENSOR_NONE,
                       .attrs = ATTRS(dropout, .dropout = r->rate[of], .site = r->n_sites++)};
}

/* Copies the ops to `ops`, each dropout behind the op whose result it drops. */
static enum snug_status place_sites(struct regularize *r, struct op *ops, int *n_ops)
{
    int n = r->prog->n_ops, n_tensors = r->prog->n_tensors;
    *n_ops = 0;
    for (int i = 0; i < n; i++) {
        struct op op = r->prog->ops[i];
        for (int k = 0; k < op.n_in; k++)
            if (op.in[k] >= 0 && op.in[k] < n_tensors && r->rate[op.in[k]] > 0)
                op.in[k] = r->copy_of[op.in[k]];
        if (op.kind == OP_attention && r->env->dropout.attention > 0) {
            attrs_of(&op, attention)->dropout = r->env->dropout.attention;
            attrs_of(&op, attention)->site = r->n_sites++;
            op.in[1] = r->scalars;
            op.n_in = 2;
        }
        ops[(*n_ops)++] = op;
        if (op.out[0] == TENSOR_NONE || !(r->rate[op.out[0]] > 0))
            continue;
        TRY(make_copy(r, op.out[0]));
        ops[(*n_ops)++] = dropout_op(r, op.out[0]);
    }
    return SNUG_OK;
}

static enum snug_status add_dropout(struct program *prog, struct pass_env *env)
{
    struct regularize r = {.prog = prog, .env = env};
    TRY(program_scalars(prog, &r.scalars, env->err));
    r.rate = arena_zeros(env->scratch, (size_t)prog->n_tensors + 1, sizeof *r.rate);
    r.copy_of = arena_zeros(env->scratch, (size_t)prog->n_tensors + 1, sizeof *r.copy_of);
    struct op *ops = malloc(2 * (size_t)prog->n_ops * sizeof *ops);
    int n_ops;
    enum snug_status status = SNUG_OK;
    if (ops == NULL || r.rate == NULL || r.copy_of == NULL)
        status = snug_fail(env->err, SNUG_NO_MEMORY, "regularize: no memory for %d ops",
                           2 * prog->n_ops);
    if (status == SNUG_OK) {
        mark_dropped(&r);
        status = place_sites(&r, ops, &n_ops);
    }
    if (status == SNUG_OK && r.n_sites == 0)
        status = snug_fail(env->err, SNUG_UNSUPPORTED,
                           "--dropout: %s has no place for it; it goes after embeddings, on "
                           "attention, at the end of residual branches and after the activations "
                           "of linear layers",
                           prog->name);
    if (status == SNUG_OK)
        program_set_ops(prog, ops, n_ops);
    else
        free(ops);
    return status;
}

static enum snug_status smooth_labels(struct program *prog, struct pass_env *env)
{
    int n_losses = 0;
    for (int i = 0; i < prog->n_ops; i++)
        if (kind_reads(prog->ops[i].kind, smoothing)) {
            attrs_of(&prog->ops[i], loss)->smoothing = env->label_smoothing;
            n_losses++;
        }
    if (n_losses == 0)
        return snug_fail(env->err, SNUG_UNSUPPORTED,
                         "--label-smoothing: %s has no classes to smooth, its loss is not "
                         "cross-entropy",
                         prog->name);
    return SNUG_OK;
}

enum snug_status pass_regularize(struct program *prog, struct pass_env *env)
{
    if (prog->n_ops == 0) /* model states only */
        return SNUG_OK;
    if (dropout_is_any(&env->dropout))
        TRY(add_dropout(prog, env));
    return env->label_smoothing > 0 ? smooth_labels(prog, env) : SNUG_OK;
}
