/*
 * in_backward.c -- update each weight as soon as its gradient is complete, then free the gradient.
 *
 * The updates that pass_optimizer put at the end move into the backward half, to the first point
 * after which no op of the step writes the gradient or touches the weight.  (A tied token table is
 * read and its gradient written at both ends of the model.)  The same ops run on the same values,
 * so the results are the same.
 *
 *     no norm needed             ...; g; sum_squares g; check_gradient; update; ...; close_updates
 *     clipping or loss scaling   ...; g; sum_squares g; ...; grad_norm; ...; g.again; update; ...
 *
 * Clipping, and skipping a step that overflows in fp16, need the norm of all gradients before the
 * first update.  So the backward half runs twice: once for the norm, where each gradient is freed
 * after its sum_squares, and once with the updates.  The forward half runs once, and its saved
 * tensors live until the second backward has read them.  The next loss scale is set after the
 * second backward, which still needs the current one.
 *
 * With several micro-batches the gradients are sums and stay alive through all of them.  The
 * updates then run in the last micro-batch (in_last).  If they also need the norm, they stay at the
 * end: moving them would save nothing.
 *
 * With several ranks a gradient is complete when its sum over the ranks is.  We wait for that sum
 * only when the next collective begins, so that one is always in flight during the backward half,
 * and the gradients of two buckets are alive at a time.  The collectives of the loss, of the norm
 * and of gathered weights stay at the end of the step.
 *
 * needs: the final ops, without workspaces: body, then sum_squares, grad_norm, updates per weight
 * keeps: ids, results    breaks: nothing    leaves: results.update_place, repeated_flops
 * cost:  O(ops + tensors)
 */
#include "ir/collective_options.h"
#include "optim/optim.h"
#include "pass/pass.h"
#include "pass/rewriter.h"

struct group { /* the ops [begin, end) that update one weight; its sum_squares is separate */
    tensor_id grad;
    int begin, end;
    int norm_op;       /* its sum_squares; -1 if this rank has no part of the gradient */
    int complete;      /* the body op after which the gradient is complete */
    int place;         /* the body op after which the group can run */
    int next_complete; /* the next group with the same `complete`, or -1 */
    int next_place;    /* the next group with the same `place`, or -1 */
};

struct moving {
    struct program *prog;
    struct pass_env *env;
    struct group *groups;
    int n_groups;
    int norm_at;                  /* the grad_norm op, or -1 */
    int *at_complete, *at_place;  /* per body op: the first group of its list, or -1 */
    int *last_touch, *last_write; /* per root: the last body op that reads or writes it, or -1 */
    tensor_id *again;             /* per tensor: its replacement in the second backward half */
    struct rewriter rw;
};

static enum snug_status no_memory(const struct moving *m)
{
    return snug_fail(m->env->err, SNUG_NO_MEMORY, "in_backward: out of memory");
}

/* ---- analysis ------------------------------------------------------------------------------ */

static void find_touches(struct moving *m)
{
    const struct program *prog = m->prog;
    for (int i = 0; i < prog->n_tensors; i++)
        m->last_touch[i] = m->last_write[i] = -1;
    for (int i = 0; i < program_body_end(prog); i++) {
        const struct op *op = &prog->ops[i];
        for (int k = 0; k < op->n_in; k++)
            if (op->in[k] != TENSOR_NONE)
                m->last_touch[tensor_root(prog, op->in[k])] = i;
        for (int k = 0; k < op->n_out; k++)
            if (op->out[k] != TENSOR_NONE) {
                m->last_touch[tensor_root(prog, op->out[k])] = i;
                m->last_write[tensor_root(prog, op->out[k])] = i;
            }
    }
}

static tensor_id gradient_read_by(const struct program *prog, const struct op *op)
{
    for (int k = 0; k < op->n_in; k++)
        if (op->in[k] != TENSOR_NONE && prog->tensors[op->in[k]].role == ROLE_gradient)
            return tensor_root(prog, op->in[k]); /* a rank may update only a view of it */
    return TENSOR_NONE;
}

static int later(int a, int b)
{
    return a > b ? a : b;
}

/* The op after which the result of op i is ready.  A collective is waited for when the next one
 * begins, or at the end of the body. */
static int ready_at(const struct moving *m, int i)
{
    const struct program *prog = m->prog;
    if (!op_has(&prog->ops[i], TRAIT_collective))
        return i;
    do
        i++;
    while (i < program_body_end(prog) && !op_has(&prog->ops[i], TRAIT_collective));
    return i < program_body_end(prog) ? i : program_body_end(prog) - 1;
}

/* A group can run after the last body op that touches any tensor it writes, except the scalars. */
static void find_place(struct moving *m, struct group *g)
{
    const struct program *prog = m->prog;
    g->complete = ready_at(m, m->last_write[tensor_root(prog, g->grad)]);
    g->place = later(g->complete, m->last_touch[tensor_root(prog, g->grad)]);
    for (int i = g->begin; i < g->end; i++)
        for (int k = 0; k < prog->ops[i].n_out && !op_has(&prog->ops[i], TRAIT_collective); k++) {
            tensor_id id = prog->ops[i].out[k];
            if (id != TENSOR_NONE && id != prog->scalars)
                g->place = later(g->place, m->last_touch[tensor_root(prog, id)]);
        }
}

/* After the body, an op that reads a gradient begins the group of its weight. */
static enum snug_status find_groups(struct moving *m)
{
    const struct program *prog = m->prog;
    int *norm_of = arena_zeros(m->env->scratch, (size_t)prog->n_tensors + 1, sizeof *norm_of);
    bool *seen = arena_zeros(m->env->scratch, (size_t)prog->n_tensors + 1, sizeof *seen);
    m->groups = arena_zeros(m->env->scratch, (size_t)prog->n_ops + 1, sizeof *m->groups);
    if (norm_of == NULL || seen == NULL || m->groups == NULL)
        return no_memory(m);
    m->norm_at = -1;
    for (int i = 0; i < prog->n_tensors; i++)
        norm_of[i] = -1;
    for (int i = program_body_end(prog); i < prog->n_ops; i++) {
        const struct op *op = &prog->ops[i];
        tensor_id grad = gradient_read_by(prog, op);
        if (op->kind == OP_sum_squares && grad != TENSOR_NONE) {
            norm_of[grad] = i;
        } else if (op->kind == OP_grad_norm) {
            m->norm_at = i;
        } else if (m->norm_at >= 0 && op_has(op, TRAIT_reduces)) {
            return snug_fail(m->env->err, SNUG_BAD_ARGUMENT,
                             "--update in-backward: --optimizer %s needs a sum over ranks between "
                             "its updates; use --update end",
                             m->env->config.optimizer->name);
        } else if (grad != TENSOR_NONE) {
            if (seen[grad])
                return snug_fail(m->env->err, SNUG_BAD_ARGUMENT,
                                 "--update in-backward: --optimizer %s needs sums over all "
                                 "gradients before its first update; use --update end",
                                 m->env->config.optimizer->name);
            seen[grad] = true;
            m->groups[m->n_groups++] = (struct group){.grad = grad, .begin = i, .end = i};
        }
        if (m->n_groups > 0)
            m->groups[m->n_groups - 1].end = i + 1;
    }
    for (int i = 0; i < m->n_groups; i++)
        m->groups[i].norm_op = norm_of[m->groups[i].grad];
    return SNUG_OK;
}

/* Each list has its groups in program order. */
static void link_groups(struct moving *m)
{
    for (int i = 0; i < m->prog->n_ops; i++)
        m->at_complete[i] = m->at_place[i] = -1;
    for (int i = m->n_groups - 1; i >= 0; i--) {
        struct group *g = &m->groups[i];
        find_place(m, g);
        g->next_complete = m->at_complete[g->complete];
        m->at_complete[g->complete] = i;
        g->next_place = m->at_place[g->place];
        m->at_place[g->place] = i;
    }
}

static enum snug_status analyze(struct moving *m)
{
    size_t n_tensors = (size_t)m->prog->n_tensors + 1, n_ops = (size_t)m->prog->n_ops + 1;
    m->last_touch = arena_zeros(m->env->scratch, n_tensors, sizeof(int));
    m->last_write = arena_zeros(m->env->scratch, n_tensors, sizeof(int));
    m->at_complete = arena_zeros(m->env->scratch, n_ops, sizeof(int));
    m->at_place = arena_zeros(m->env->scratch, n_ops, sizeof(int));
    m->again = arena_zeros(m->env->scratch, n_tensors, sizeof *m->again);
    if (m->last_touch == NULL || m->last_write == NULL || m->at_complete == NULL ||
        m->at_place == NULL || m->again == NULL)
        return no_memory(m);
    TRY(find_groups(m));
    find_touches(m);
    link_groups(m);
    return SNUG_OK;
}

/* ---- the new list -------------------------------------------------------------------------- */

/* Appends old op i in the current section of the new list, which may differ from its own. */
static enum snug_status append_old(struct moving *m, int i, bool in_last)
{
    struct op op = m->prog->ops[i];
    op.in_last |= in_last;
    return rewriter_add(&m->rw, &op);
}

/* Appends an op that updates the scalars; `in` is its other input, or TENSOR_NONE. */
static enum snug_status append_scalar_op(struct moving *m, enum op_kind kind, tensor_id in,
                                         bool in_last)
{
    tensor_id scalars = m->prog->scalars;
    struct op op = in == TENSOR_NONE
                       ? op_make(kind, ATTRS(), 1, &scalars, 1, &scalars)
                       : op_make(kind, ATTRS(), 2, (tensor_id[]){in, scalars}, 1, &scalars);
    op.in_last = in_last;
    return rewriter_add(&m->rw, &op);
}

/* The optimizer's ops between the norm and the first update, which run once per step. */
static enum snug_status append_before_updates(struct moving *m, bool in_last)
{
    int end = m->n_groups > 0 ? m->groups[0].begin : m->prog->n_ops;
    for (int i = m->norm_at + 1; i < end; i++)
        if (!op_has(&m->prog->ops[i], TRAIT_collective))
            TRY(append_old(m, i, in_last));
    return SNUG_OK;
}

/* The ops before the norm, except sum_squares: the all_reduces of the loss and of the norm. */
static enum snug_status append_before_norm(struct moving *m, int body_end)
{
    for (int i = body_end; i < m->norm_at; i++)
        if (m->prog->ops[i].kind != OP_sum_squares)
            TRY(append_old(m, i, false));
    return SNUG_OK;
}

/* The all_gathers of weights of which each rank updates a shard, after all updates. */
static enum snug_status append_gathers(struct moving *m)
{
    for (int i = m->norm_at; i < m->prog->n_ops; i++)
        if (m->prog->ops[i].kind == OP_all_gather)
            TRY(append_old(m, i, false));
    return SNUG_OK;
}

/* ---- updates in the one backward half ------------------------------------------------------ */

static enum snug_status append_open_updates(struct moving *m, bool in_last)
{
    TRY(append_scalar_op(m, OP_open_updates, TENSOR_NONE, in_last));
    return append_before_updates(m, in_last);
}

static enum snug_status update_once(struct moving *m)
{
    const struct program *prog = m->prog;
    bool in_last = prog->n_repeat > 1, opened = false;
    int body_end = program_body_end(prog);
    for (int i = 0; i < body_end; i++) {
        TRY(append_old(m, i, false));
        for (int at = m->at_place[i]; at >= 0; at = m->groups[at].next_place) {
            const struct group *g = &m->groups[at];
            if (!opened)
                TRY(append_open_updates(m, in_last));
            opened = true;
            if (g->norm_op >= 0) {
                TRY(append_old(m, g->norm_op, in_last));
                TRY(append_scalar_op(m, OP_check_gradient, prog->ops[g->norm_op].out[0], in_last));
            }
            for (int k = g->begin; k < g->end; k++)
                if (!op_has(&prog->ops[k], TRAIT_collective))
                    TRY(append_old(m, k, in_last));
        }
    }
    if (!opened) /* other ranks update all the weights */
        TRY(append_open_updates(m, in_last));
    rewriter_end_body(&m->rw);
    m->env->results.update_place = in_last ? UPDATES_IN_LAST : UPDATES_IN_BACKWARD;
    TRY(append_before_norm(m, body_end));
    TRY(append_scalar_op(m, OP_close_updates, prog->ops[m->norm_at].in[0], false));
    return append_gathers(m);
}

/* ---- updates in a second backward half ----------------------------------------------------- */

/* The first op that runs twice: the loss op if it also writes a gradient, else the one after it. */
static int backward_begin(const struct program *prog)
{
    int begin = 0;
    bool writes_gradient = false;
    for (int i = 0; i < program_body_end(prog); i++)
        for (int k = 0; k < prog->ops[i].n_out; k++)
            if (prog->ops[i].out[k] == prog->loss)
                begin = i;
    for (int k = 0; k < prog->ops[begin].n_out; k++) {
        tensor_id id = prog->ops[begin].out[k];
        writes_gradient |= id != TENSOR_NONE && prog->tensors[id].role == ROLE_gradient;
    }
    return writes_gradient ? begin : begin + 1;
}

static enum snug_status add_again(struct moving *m, tensor_id id)
{
    struct tensor t = m->prog->tensors[id];
    if (t.persistent || m->again[id] != id)
        return SNUG_OK;
    if (t.base != TENSOR_NONE) {
        TRY(add_again(m, t.base));
        t.base = m->again[t.base];
    }
    t.name = arena_format(m->env->scratch, "%s.again", t.name);
    t.is_output = false;
    if (t.name == NULL)
        return no_memory(m);
    return program_add_tensor(m->prog, &t, &m->again[id], m->env->err);
}

/* Appends op i on the tensors of the second half.  `adds_outputs`: its outputs get new tensors. */
static enum snug_status append_again(struct moving *m, int i, bool adds_outputs)
{
    struct op op = m->prog->ops[i];
    for (int k = 0; k < op.n_in; k++)
        if (op.in[k] != TENSOR_NONE) {
            tensor_id root = tensor_root(m->prog, op.in[k]);
            if (m->again[root] != root)
                TRY(add_again(m, op.in[k]));
            op.in[k] = m->again[op.in[k]];
        }
    for (int k = 0; k < op.n_out; k++)
        if (op.out[k] != TENSOR_NONE) {
            if (adds_outputs)
                TRY(add_again(m, op.out[k]));
            op.out[k] = m->again[op.out[k]];
        }
    return rewriter_add(&m->rw, &op);
}

static enum snug_status append_second_half(struct moving *m, int begin, int end)
{
    for (int i = begin; i < end; i++) {
        enum op_kind kind = m->prog->ops[i].kind;
        if (!kind_has(kind, TRAIT_effect) ||
            kind_has(kind, TRAIT_collective)) { /* effects run only once */
            TRY(append_again(m, i, true));
            m->env->results.repeated_flops += op_flops(m->prog, &m->prog->ops[i]);
        }
        for (int at = m->at_place[i]; at >= 0; at = m->groups[at].next_place)
            for (int k = m->groups[at].begin; k < m->groups[at].end; k++)
                if (!op_has(&m->prog->ops[k], TRAIT_collective))
                    TRY(append_again(m, k, false));
    }
    return SNUG_OK;
}

static enum snug_status update_in_second(struct moving *m)
{
    struct program *prog = m->prog;
    int begin = backward_begin(prog), end = program_body_end(prog);
    struct op norm = prog->ops[m->norm_at];
    bool dynamic_scale = attrs_of(&norm, grad_norm)->dynamic_scale != 0;
    for (int i = 0; i < prog->n_tensors; i++)
        m->again[i] = i;
    for (int i = 0; i < end; i++) {
        TRY(append_old(m, i, false));
        for (int at = m->at_complete[i]; at >= 0; at = m->groups[at].next_complete)
            if (m->groups[at].norm_op >= 0)
                TRY(append_old(m, m->groups[at].norm_op, false));
    }
    rewriter_end_body(&m->rw);
    TRY(append_before_norm(m, end));
    attrs_of(&norm, grad_norm)->dynamic_scale = 0;
    TRY(rewriter_add(&m->rw, &norm));
    TRY(append_before_updates(m, false));
    TRY(append_second_half(m, begin, end));
    if (dynamic_scale)
        TRY(append_scalar_op(m, OP_next_loss_scale, TENSOR_NONE, false));
    TRY(append_gathers(m));
    m->env->results.update_place = UPDATES_IN_SECOND;
    return SNUG_OK;
}

enum snug_status pass_in_backward(struct program *prog, struct pass_env *env)
{
    struct moving m = {
        .prog = prog, .env = env, .rw = rewriter_begin(prog, "in_backward", env->err)};
    if (prog->loss == TENSOR_NONE)
        return SNUG_OK; /* model states only: nothing runs */
    TRY(analyze(&m));
    if (m.norm_at < 0 || (m.n_groups == 0 && env->config.ranks.n_ranks < 2))
        return SNUG_OK;
    const struct grad_norm_attrs *norm = attrs_of(&prog->ops[m.norm_at], grad_norm);
    bool waits = norm->max_norm > 0 || norm->dynamic_scale != 0;
    if (waits && prog->n_repeat > 1) {
        env->results.update_place = UPDATES_WAIT;
        return SNUG_OK;
    }
    return rewriter_finish(&m.rw, waits ? update_in_second(&m) : update_once(&m));
}
