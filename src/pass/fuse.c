/*
 * fuse.c -- make ops as coarse as the best kernels.
 *
 * Each rewrite looks at one op and at an earlier or later op that it can swallow:
 *
 *     s = add a, b; y = layernorm s            ->  s, y = add_layernorm a, b
 *     p = linear x, w; y = act p               ->  y, p = linear x, w {act}
 *     d = layernorm_grad ...; s = add r, d     ->  s = layernorm_grad ..., r
 *     linear_cross_entropy; its _grad          ->  linear_cross_entropy_train (logits made once)
 *
 * The swallowed op's place is left empty and compacted at the end.  An op moves only over ops that do
 * not touch what it reads or writes; since tensors have one writer, it is enough that everything it
 * reads is written before its new place.
 *
 * needs: autodiff and optimizer done    keeps: ids, fp32 results to the bit    breaks: nothing
 * cost:  O(ops + tensors)
 */
#include "pass/pass.h"

struct uses { /* per tensor: how many ops read it, which op writes it first */
    int *n_readers, *writer;
};

struct fuse {
    struct program *prog;
    struct uses uses;
    bool *gone; /* per op: swallowed */
};

static void count_uses(struct fuse *f)
{
    for (int i = 0; i < f->prog->n_tensors; i++) {
        f->uses.n_readers[i] = 0;
        f->uses.writer[i] = -1;
    }
    for (int i = 0; i < f->prog->n_ops; i++) {
        const struct op *op = &f->prog->ops[i];
        for (int k = 0; k < op->n_in; k++)
            if (op->in[k] != TENSOR_NONE)
                f->uses.n_readers[op->in[k]]++;
        for (int k = 0; k < op->n_out; k++)
            if (op->out[k] != TENSOR_NONE && f->uses.writer[op->out[k]] < 0)
                f->uses.writer[op->out[k]] = i;
    }
}

static bool written_before(const struct fuse *f, tensor_id id, int place)
{
    return f->uses.writer[id] < place; /* -1: a parameter or an input, there from the start */
}

static struct op *live_writer(struct fuse *f, tensor_id id, enum op_kind kind)
{
    int at = f->uses.writer[id];
    return at >= 0 && !f->gone[at] && f->prog->ops[at].kind == kind ? &f->prog->ops[at] : NULL;
}

/* s = add a, b; y, mean, rstd = layernorm s, gamma, beta: at the place of the add. */
static void fuse_add_layernorm(struct fuse *f, int at)
{
    struct op *norm = &f->prog->ops[at];
    struct op *add = live_writer(f, norm->in[0], OP_add);
    if (add == NULL || !written_before(f, norm->in[1], f->uses.writer[norm->in[0]]) ||
        !written_before(f, norm->in[2], f->uses.writer[norm->in[0]]))
        return;
    int place = f->uses.writer[norm->in[0]];
    struct op fused = *norm;
    fused.kind = OP_add_layernorm;
    fused.n_in = fused.n_out = 4;
    fused.in[0] = add->in[0], fused.in[1] = add->in[1];
    fused.in[2] = norm->in[1], fused.in[3] = norm->in[2];
    fused.out[0] = add->out[0];
    for (int k = 0; k < 3; k++) {
        fused.out[k + 1] = norm->out[k];
        f->uses.writer[norm->out[k]] = place;
    }
    *add = fused;
    f->gone[at] = true;
}

/* p = linear x, w, b; y = act p: at the place of the linear; p stays as its second output. */
static void fuse_linear_act(struct fuse *f, int at)
{
    struct op *act = &f->prog->ops[at];
    struct op *linear = live_writer(f, act->in[0], OP_linear);
    if (linear == NULL || linear->attrs.act != ACT_none)
        return;
    bool before_is_read =
        f->uses.n_readers[act->in[0]] > 1 || f->prog->tensors[act->in[0]].is_output;
    f->uses.writer[act->out[0]] = f->uses.writer[act->in[0]];
    linear->attrs.act = act->attrs.act;
    linear->n_out = before_is_read ? 2 : 1;
    linear->out[1] = before_is_read ? linear->out[0] : TENSOR_NONE;
    linear->out[0] = act->out[0];
    f->gone[at] = true;
}

/* d, dg, db = layernorm_grad ...; s = add r, d: the add's result straight from the norm. */
static void fuse_norm_grad_add(struct fuse *f, int at)
{
    struct op *add = &f->prog->ops[at];
    for (int k = 0; k < 2; k++) {
        tensor_id part = add->in[k], rest = add->in[1 - k];
        struct op *norm = live_writer(f, part, OP_layernorm_grad);
        if (norm == NULL || norm->n_in != 5 || norm->out[0] != part ||
            f->uses.n_readers[part] != 1 || !written_before(f, rest, f->uses.writer[part]))
            continue;
        norm->in[5] = rest;
        norm->n_in = 6;
        norm->out[0] = add->out[0];
        f->uses.writer[add->out[0]] = f->uses.writer[part];
        f->gone[at] = true;
        return;
    }
}

/* The head's forward and backward walk the same chunks of logits: one walk for both. */
static void fuse_head(struct fuse *f, int at)
{
    struct op *grad = &f->prog->ops[at];
    struct op *head = live_writer(f, grad->in[3], OP_linear_cross_entropy);
    if (head == NULL || head->in[0] != grad->in[0] || head->in[1] != grad->in[1] ||
        head->in[2] != grad->in[2] || grad->out[0] == TENSOR_NONE ||
        head->attrs.accumulate != grad->attrs.accumulate)
        return;
    struct op fused = *grad; /* at the place of the gradient; nobody between reads loss or lse */
    int from = f->uses.writer[grad->in[3]];
    if (f->uses.n_readers[head->out[1]] != 1 || f->uses.n_readers[head->out[0]] != 0)
        return;
    fused.kind = OP_linear_cross_entropy_train;
    fused.n_in = fused.n_out = 4;
    fused.in[3] = grad->in[4], fused.in[4] = TENSOR_NONE;
    fused.out[0] = head->out[0], fused.out[1] = head->out[1];
    fused.out[2] = grad->out[0], fused.out[3] = grad->out[1];
    *grad = fused;
    f->gone[from] = true;
    f->uses.writer[head->out[0]] = f->uses.writer[head->out[1]] = at;
}

enum snug_status pass_fuse(struct program *prog, struct pass_env *env)
{
    size_t n_tensors = (size_t)prog->n_tensors + 1;
    struct fuse f = {.prog = prog};
    f.uses.n_readers = arena_zeros(env->scratch, n_tensors, sizeof(int));
    f.uses.writer = arena_zeros(env->scratch, n_tensors, sizeof(int));
    f.gone = arena_zeros(env->scratch, (size_t)prog->n_ops + 1, sizeof *f.gone);
    if (f.uses.n_readers == NULL || f.uses.writer == NULL || f.gone == NULL)
        return snug_fail(env->err, SNUG_NO_MEMORY, "fuse: no scratch for %d tensors",
                         prog->n_tensors);
    count_uses(&f);
    for (int i = 0; i < prog->n_ops; i++)
        switch (prog->ops[i].kind) {
        case OP_layernorm:
            fuse_add_layernorm(&f, i);
            break;
        case OP_act:
            fuse_linear_act(&f, i);
            break;
        case OP_add:
            fuse_norm_grad_add(&f, i);
            break;
        case OP_linear_cross_entropy_grad:
            fuse_head(&f, i);
            break;
        default:
            break;
        }
    program_remove_ops(prog, f.gone);
    return SNUG_OK;
}
