/*
 * recompute.c -- rewrite the backward half so that it recomputes what is not saved.
 *
 * The forward half does not change: a tensor that no backward op reads any more is simply not
 * saved.  A backward op that read it now reads a recomputed copy, and the forward ops that compute
 * the copy, from whatever is available, are inserted before it.  The same ops run on the same
 * values, so the copy has the same bits; fuse.c finds the same neighbours and fuses both alike.
 *
 * Ops with effects (batchnorm's running averages) are never repeated: the backward half does not
 * read what they write.
 */
#include "pass/recompute.h"

#include "pass/rewriter.h"

/* ---- blocks and halves ----------------------------------------------------------------------- */

int halves_backward_begin(const struct halves *h, int block)
{
    return h->env->results.backward_begin[h->blocks.list[block].end - 1];
}

int halves_backward_end(const struct halves *h, int block)
{
    return block > 0 ? halves_backward_begin(h, block - 1) : h->prog->n_ops;
}

tensor_id halves_result(const struct halves *h, int block)
{
    return block + 1 < h->blocks.n ? h->blocks.list[block + 1].input : TENSOR_NONE;
}

bool halves_keeps(const struct halves *h, int block, const bool *keeps, tensor_id id)
{
    int at = h->writer[id] - h->blocks.list[block].begin;
    return keeps != NULL && h->saved[id] && keeps[at];
}

static bool may_recompute(const struct program *prog, const struct op *op)
{
    for (int k = 0; k < op->n_out; k++)
        if (op->out[k] != TENSOR_NONE && !blocks_may_drop(prog, op->out[k]))
            return false;
    return !op_has(op, TRAIT_effect);
}

enum snug_status halves_find(struct program *prog, struct pass_env *env, struct halves *h)
{
    size_t n = (size_t)prog->n_tensors + 1;
    *h = (struct halves){.prog = prog, .env = env, .n_forward = env->results.n_forward};
    TRY(blocks_find(prog, env->results.n_forward, env->scratch, &h->blocks, env->err));
    h->n_tensors = prog->n_tensors;
    h->writer = arena_alloc(env->scratch, n * sizeof *h->writer);
    h->saved = arena_zeros(env->scratch, n, sizeof *h->saved);
    h->last_reader = arena_zeros(env->scratch, n, sizeof *h->last_reader);
    if (h->writer == NULL || h->saved == NULL || h->last_reader == NULL)
        return snug_fail(env->err, SNUG_NO_MEMORY, "checkpoint: no scratch for %d tensors",
                         prog->n_tensors);
    for (int i = 0; i < prog->n_tensors; i++)
        h->writer[i] = -1;
    for (int i = 0; i < prog->n_ops; i++) {
        const struct op *op = &prog->ops[i];
        for (int k = 0; k < op->n_out && i < h->n_forward && may_recompute(prog, op); k++)
            if (op->out[k] != TENSOR_NONE)
                h->writer[op->out[k]] = i;
        for (int k = 0; k < op->n_in; k++)
            if (op->in[k] != TENSOR_NONE) {
                h->saved[op->in[k]] |= i >= h->n_forward;
                h->last_reader[op->in[k]] = i;
            }
    }
    return SNUG_OK;
}

/* ---- recomputing what is missing ------------------------------------------------------------- */

enum snug_status recomputer_init(struct recomputer *recomputer, const struct halves *h)
{
    recomputer->halves = h;
    recomputer->valid = arena_zeros(h->env->scratch, (size_t)h->n_tensors + 1, sizeof(bool));
    recomputer->wanted = arena_zeros(h->env->scratch, (size_t)h->n_forward + 1, sizeof(bool));
    if (recomputer->valid == NULL || recomputer->wanted == NULL)
        return snug_fail(h->env->err, SNUG_NO_MEMORY, "checkpoint: no scratch for %d tensors",
                         h->n_tensors);
    return SNUG_OK;
}

/* Marks the ops that compute the invalid tensors among ids; returns how many are newly marked. */
static int mark_wanted(struct recomputer *m, int n, const tensor_id *ids, int *last)
{
    int n_new = 0;
    for (int k = 0; k < n; k++) {
        if (ids[k] == TENSOR_NONE || ids[k] >= m->halves->n_tensors || m->valid[ids[k]])
            continue;
        int writer = m->halves->writer[ids[k]];
        if (writer < 0 || m->wanted[writer])
            continue;
        m->wanted[writer] = true;
        *last = writer > *last ? writer : *last;
        n_new++;
    }
    return n_new;
}

enum snug_status recomputer_provide(struct recomputer *m, int n, const tensor_id *ids)
{
    const struct program *prog = m->halves->prog;
    int last = -1, first, n_left = mark_wanted(m, n, ids, &last);
    for (first = last; n_left > 0; first--)
        if (m->wanted[first])
            n_left += mark_wanted(m, prog->ops[first].n_in, prog->ops[first].in, &last) - 1;
    for (int i = first + 1; i <= last; i++) {
        if (!m->wanted[i])
            continue;
        m->wanted[i] = false;
        TRY(m->run(m, i));
        for (int k = 0; k < prog->ops[i].n_out; k++)
            if (prog->ops[i].out[k] != TENSOR_NONE)
                m->valid[prog->ops[i].out[k]] = true;
    }
    return SNUG_OK;
}

/* Will fuse.c merge the two ops?  Then nothing may come between them. */
static bool fuses_with(const struct op *op, const struct op *before)
{
    return op->kind == OP_act_grad && op->in[0] == before->out[0];
}

enum snug_status recomputer_backward(struct recomputer *m, int block)
{
    int end = halves_backward_end(m->halves, block);
    for (int i = halves_backward_begin(m->halves, block); i < end; i++) {
        const struct op *op = &m->halves->prog->ops[i];
        TRY(recomputer_provide(m, op->n_in, op->in));
        if (i + 1 < end && fuses_with(op + 1, op))
            TRY(recomputer_provide(m, op[1].n_in, op[1].in));
        TRY(m->backward(m, i));
    }
    return SNUG_OK;
}

/* ---- the rewrite ----------------------------------------------------------------------------- */

struct rewrite {
    struct program *prog;
    struct pass_env *env;
    tensor_id *copy; /* per tensor: its latest copy, which ops read */
    struct rewriter rw;
    bool *has_run, *keeps_now; /* per block */
};

static void read_copies(const struct rewrite *r, struct op *op, int n_tensors)
{
    for (int k = 0; k < op->n_in; k++)
        if (op->in[k] != TENSOR_NONE && op->in[k] < n_tensors)
            op->in[k] = r->copy[op->in[k]];
}

static enum snug_status recompute_op(struct recomputer *m, int at)
{
    struct rewrite *r = m->user;
    struct op op = r->prog->ops[at];
    read_copies(r, &op, m->halves->n_tensors);
    for (int k = 0; k < op.n_out; k++) {
        if (op.out[k] == TENSOR_NONE)
            continue;
        tensor_id original = op.out[k];
        struct tensor copy = r->prog->tensors[original];
        char *name = arena_format(r->env->scratch, "%s.again", copy.name);
        copy.name = name == NULL ? "again" : name;
        copy.recomputed = true;
        TRY(program_add_tensor(r->prog, &copy, &op.out[k], r->env->err));
        if (!m->valid[original])
            r->copy[original] = op.out[k];
    }
    return rewriter_add(&r->rw, &op);
}

static enum snug_status run_backward(struct recomputer *m, int at)
{
    struct rewrite *r = m->user;
    struct op op = r->prog->ops[at];
    read_copies(r, &op, m->halves->n_tensors);
    return rewriter_add(&r->rw, &op);
}

/* Marks the tensors of a block that are not saved as invalid; `all`: its result too. */
static void forget(struct recomputer *m, int block, const bool *keeps, bool all)
{
    const struct halves *h = m->halves;
    tensor_id result = halves_result(h, block);
    for (int i = h->blocks.list[block].begin; i < h->blocks.list[block].end; i++)
        for (int k = 0; k < h->prog->ops[i].n_out; k++) {
            tensor_id id = h->prog->ops[i].out[k];
            if (id != TENSOR_NONE && h->writer[id] == i && (all || id != result) &&
                !halves_keeps(h, block, keeps, id))
                m->valid[id] = false;
        }
}

static void forget_input(struct recomputer *m, const struct rewrite *r, int block)
{
    tensor_id input = m->halves->blocks.list[block].input;
    if (input != TENSOR_NONE && !r->keeps_now[block - 1])
        m->valid[input] = false;
}

/* Recomputes what the step saves, and the block's result if the next step runs another block. */
static enum snug_status run_block(struct recomputer *m, const struct step *step, bool needs_result)
{
    const struct halves *h = m->halves;
    tensor_id result = halves_result(h, step->block);
    for (int i = h->blocks.list[step->block].begin; i < h->blocks.list[step->block].end; i++)
        for (int k = 0; k < h->prog->ops[i].n_out; k++) {
            tensor_id id = h->prog->ops[i].out[k];
            if (id != TENSOR_NONE && h->writer[id] == i && id != result &&
                halves_keeps(h, step->block, step->keeps, id))
                TRY(recomputer_provide(m, 1, &id));
        }
    return needs_result ? recomputer_provide(m, 1, &result) : SNUG_OK;
}

static enum snug_status take_step(struct recomputer *m, struct rewrite *r, const struct step *step,
                                  bool needs_result)
{
    const struct halves *h = m->halves;
    int block = step->block;
    if (step->backward) {
        TRY(recomputer_backward(m, block));
        r->keeps_now[block] = false;
        forget(m, block, NULL, true);
        forget_input(m, r, block);
        return SNUG_OK;
    }
    if (r->has_run[block])
        TRY(run_block(m, step, needs_result));
    for (int i = h->blocks.list[block].begin; !r->has_run[block] && i < h->blocks.list[block].end;
         i++)
        for (int k = 0; k < h->prog->ops[i].n_out; k++)
            if (h->prog->ops[i].out[k] != TENSOR_NONE)
                m->valid[h->prog->ops[i].out[k]] = true;
    r->has_run[block] = true;
    r->keeps_now[block] = step->keeps != NULL;
    forget(m, block, step->keeps, false);
    if (!step->keeps_input)
        forget_input(m, r, block);
    return SNUG_OK;
}

enum snug_status recompute(const struct halves *h, const struct step *steps, int n_steps)
{
    struct rewrite r = {
        .prog = h->prog, .env = h->env, .rw = rewriter_begin(h->prog, "checkpoint", h->env->err)};
    struct recomputer recomputer = {.run = recompute_op, .backward = run_backward, .user = &r};
    TRY(recomputer_init(&recomputer, h));
    size_t n_blocks = (size_t)h->blocks.n;
    r.copy = arena_alloc(h->env->scratch, ((size_t)h->n_tensors + 1) * sizeof *r.copy);
    r.has_run = arena_zeros(h->env->scratch, n_blocks, sizeof *r.has_run);
    r.keeps_now = arena_zeros(h->env->scratch, n_blocks, sizeof *r.keeps_now);
    if (r.copy == NULL || r.has_run == NULL || r.keeps_now == NULL)
        return snug_fail(h->env->err, SNUG_NO_MEMORY, "checkpoint: out of memory");
    for (int i = 0; i < h->n_tensors; i++)
        r.copy[i] = i;
    enum snug_status status = SNUG_OK;
    for (int i = 0; i < h->n_forward && status == SNUG_OK; i++)
        status = rewriter_copy(&r.rw, i);
    for (int i = 0; i < n_steps && status == SNUG_OK; i++)
        status = take_step(&recomputer, &r, &steps[i], i + 1 < n_steps && !steps[i + 1].backward);
    h->env->results.backward_begin = NULL; /* it refers to the old list */
    return rewriter_finish(&r.rw, status);
}
