/*
 * regularize.c -- insert dropout and label smoothing.
 *
 * Dropout goes where GPT-2 has it: after the embedding, on the attention probabilities, and at the
 * end of a residual branch, before the add.  A model without residual adds has it after the
 * activation functions of its linear layers.  Embedding, attention and residual dropout have
 * separate rates.  Each dropout op has its own site number, which is part of the random key of its
 * mask.
 *
 * Label smoothing is an attribute of the loss.  The pass runs only for training, so evaluation has
 * neither.
 *
 * needs: a forward program    keeps: tensor ids, results at p = 0    breaks: nothing
 * cost:  O(ops x inputs + tensors)
 */
#include "ir/attention_operands.h"
#include "pass/pass.h"
#include "pass/rewriter.h"

struct regularize {
    struct program *prog;
    struct pass_env *env;
    double *rate;       /* per tensor: its dropout rate; if above 0, its readers read a copy */
    tensor_id *copy_of; /* per tensor: that copy, once added */
    tensor_id scalars;
    int n_sites;
    struct rewriter rw;
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
    const struct dropout_rates *rates = &r->env->config.dropout;
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

static enum snug_status add_dropout_of(struct regularize *r, tensor_id of)
{
    struct attrs attrs = ATTRS(dropout, .dropout = r->rate[of], .site = r->n_sites++);
    TRY(make_copy(r, of));
    struct op op = op_make(OP_dropout, attrs, 2, (tensor_id[]){of, r->scalars}, 1, &r->copy_of[of]);
    return rewriter_add(&r->rw, &op);
}

/* Adds each dropout right after the op that writes its input. */
static enum snug_status place_sites(struct regularize *r)
{
    int n = r->prog->n_ops, n_tensors = r->prog->n_tensors;
    for (int i = 0; i < n; i++) {
        struct op op = r->prog->ops[i];
        for (int k = 0; k < op.n_in; k++)
            if (op.in[k] >= 0 && op.in[k] < n_tensors && r->rate[op.in[k]] > 0)
                op.in[k] = r->copy_of[op.in[k]];
        if (op.kind == OP_attention && r->env->config.dropout.attention > 0) {
            attrs_of(&op, attention)->dropout = r->env->config.dropout.attention;
            attrs_of(&op, attention)->site = r->n_sites++;
            while (op.n_in < ATTENTION_SCALARS)
                op.in[op.n_in++] = TENSOR_NONE;
            op.in[ATTENTION_SCALARS] = r->scalars;
            op.n_in = ATTENTION_INPUTS;
        }
        TRY(rewriter_replace(&r->rw, i, &op));
        if (op.out[0] != TENSOR_NONE && r->rate[op.out[0]] > 0)
            TRY(add_dropout_of(r, op.out[0]));
    }
    if (r->n_sites == 0)
        return snug_fail(
            r->env->err, SNUG_UNSUPPORTED,
            "--dropout: %s has no layer to apply it to: dropout goes after embeddings, "
            "on attention, at the end of residual branches, or after activations of "
            "linear layers",
            r->prog->name);
    return SNUG_OK;
}

static enum snug_status add_dropout(struct program *prog, struct pass_env *env)
{
    struct regularize r = {
        .prog = prog, .env = env, .rw = rewriter_begin(prog, "regularize", env->err)};
    TRY(program_scalars(prog, &r.scalars, env->err));
    r.rate = arena_zeros(env->scratch, (size_t)prog->n_tensors + 1, sizeof *r.rate);
    r.copy_of = arena_zeros(env->scratch, (size_t)prog->n_tensors + 1, sizeof *r.copy_of);
    if (r.rate == NULL || r.copy_of == NULL)
        return snug_fail(env->err, SNUG_NO_MEMORY, "regularize: no memory for %d tensors",
                         prog->n_tensors);
    mark_dropped(&r);
    return rewriter_finish(&r.rw, place_sites(&r));
}

static enum snug_status smooth_labels(struct program *prog, struct pass_env *env)
{
    int n_losses = 0;
    for (int i = 0; i < prog->n_ops; i++)
        if (kind_reads(prog->ops[i].kind, smoothing)) {
            attrs_of(&prog->ops[i], loss)->smoothing = env->config.label_smoothing;
            n_losses++;
        }
    if (n_losses == 0)
        return snug_fail(env->err, SNUG_UNSUPPORTED,
                         "--label-smoothing needs a cross-entropy loss, which %s does not have",
                         prog->name);
    return SNUG_OK;
}

enum snug_status pass_regularize(struct program *prog, struct pass_env *env)
{
    if (prog->n_ops == 0) /* model states only */
        return SNUG_OK;
    if (dropout_is_any(&env->config.dropout))
        TRY(add_dropout(prog, env));
    return env->config.label_smoothing > 0 ? smooth_labels(prog, env) : SNUG_OK;
}
