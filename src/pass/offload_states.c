/*
 * offload_states.c -- optimizer states and masters in the offload pool, staged for updates.
 *
 * Nearby ops that share states (a direction op and the update that applies it) form a visit.  The
 * states of a visit are prefetched into staging tensors before its first op, the ops work on the
 * staging tensors, and the changed ones are evicted after its last op.  The prefetches of a visit
 * are issued before the ops of the previous visit, so that the copies overlap with its compute:
 *
 *     prefetch 1 | (norm of the gradients)
 *     wait_copy 1, prefetch 2 | update 1, evict 1
 *     wait_copy 2, prefetch 3 | update 2, evict 2 ...
 *
 * Copies run in order, so when prefetch 3 is done, so is evict 1.  The wait_copy for prefetch 3,
 * before prefetch 4, therefore waits for evict 1 at no extra cost, and at most three visits hold
 * staging bytes.
 *
 * Updates are elementwise.  The update of a large tensor is split into pieces, each its own visit,
 * to keep the staging small.  Other ops stage their states whole.
 *
 * An evaluation that reads averaged weights (average.c) reads the run's states, which may be
 * offloaded.  It uses the same visits, with nothing to evict.
 */
#include "base/quant_map.h"
#include "ir/update_range.h"
#include "pass/offload.h"

#include <stdlib.h>

enum {
    NEAR_OPS = 4,          /* the largest distance between ops of one visit */
    VISIT_TENSORS = 16,    /* the most tensors of one visit */
    PIECE_ELEMS = 1 << 20, /* elements in the smallest piece of an update: 4 MiB of fp32 */
    PIECES = 16,           /* pieces per tensor at most, to keep programs short, ... */
    PIECE_UNITS_MOST =
        16,           /* ... unless that makes a piece larger than this many PIECE_ELEMS, ... */
    PIECES_MOST = 256 /* ... but never more pieces than this */
};
_Static_assert(PIECE_ELEMS % QUANT_BLOCK_8 == 0 && PIECE_ELEMS % QUANT_BLOCK_4 == 0,
               "a piece is whole quant blocks");

struct visit {
    int first, last; /* ops */
    int n_tensors;
    tensor_id offloaded[VISIT_TENSORS]; /* the states it touches, or views of them */
    tensor_id staging[VISIT_TENSORS];
    bool changed[VISIT_TENSORS];
    bool in_last;  /* runs in the last micro-batch only */
    bool is_piece; /* runs `op` in place of op `first` */
    struct op op;
};

struct visits {
    struct rewriter rw;
    struct arena *scratch;
    struct visit *visits;
    int n_visits, capacity;
};

static int find_tensor(const struct visit *v, tensor_id offloaded)
{
    for (int t = 0; t < v->n_tensors; t++)
        if (v->offloaded[t] == offloaded)
            return t;
    return -1;
}

/* Does the op compute on offloaded tensors?  The copies of offload_activations.c do not count. */
static bool touches_pool(const struct program *prog, const struct op *op)
{
    if (op_has(op, TRAIT_copy))
        return false;
    for (int k = 0; k < op->n_in; k++)
        if (op->in[k] != TENSOR_NONE && prog->tensors[op->in[k]].offloaded &&
            (op_infos[op->kind].unread >> k & 1) == 0)
            return true;
    return false;
}

/* Does op i belong to visit v? */
static bool continues(const struct program *prog, const struct visit *v, int i)
{
    const struct op *op = &prog->ops[i];
    bool shares = false;
    int n_new = 0;
    for (int k = 0; k < op->n_in; k++)
        if (op->in[k] != TENSOR_NONE && prog->tensors[op->in[k]].offloaded) {
            bool known = find_tensor(v, op->in[k]) >= 0;
            shares |= known;
            n_new += !known;
        }
    return shares && !v->is_piece && i - v->last <= NEAR_OPS &&
           v->n_tensors + n_new <= VISIT_TENSORS &&
           program_section_last(prog, i) == program_section_last(prog, v->first);
}

static enum snug_status add_visit(struct visits *s, int i, struct visit **visit)
{
    void *grown = s->visits;
    if (!array_grow(&grown, &s->capacity, s->n_visits + 1, sizeof *s->visits))
        return offload_no_memory(&s->rw);
    s->visits = grown;
    *visit = &s->visits[s->n_visits++];
    **visit = (struct visit){.first = i, .last = i, .in_last = s->rw.prog->ops[i].in_last};
    return SNUG_OK;
}

/* Adds the offloaded operands of an op to the visit, and replaces them by staging tensors. */
static enum snug_status stage_operands(struct visits *s, struct visit *v, struct op *op)
{
    const struct program *prog = s->rw.prog;
    for (int k = 0; k < op->n_in; k++) {
        tensor_id id = op->in[k];
        if (id == TENSOR_NONE || !prog->tensors[id].offloaded)
            continue;
        int t = find_tensor(v, id);
        if (t < 0) {
            t = v->n_tensors++;
            v->offloaded[t] = id;
            TRY(offload_add_like(&s->rw, s->scratch, "staged", id, ROLE_temporary, false,
                                 &v->staging[t]));
        }
        op->in[k] = v->staging[t];
        for (int j = 0; j < op->n_out; j++)
            if (op->out[j] == id) {
                op->out[j] = v->staging[t];
                v->changed[t] = true;
            }
    }
    return SNUG_OK;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Elements of the weight per piece; 0: the op is not split. */
static int64_t piece_elems(const struct program *prog, const struct op *op)
{
    if (!op_reads_attrs(op, update) || tensor_elems(prog, op->in[UPDATE_WEIGHT]) <= PIECE_ELEMS)
        return 0;
    for (int k = 0; k < op->n_in; k++) /* views of views do not exist */
        if (op->in[k] != TENSOR_NONE && prog->tensors[op->in[k]].base != TENSOR_NONE)
            return 0;
    int64_t n = tensor_elems(prog, op->in[UPDATE_WEIGHT]);
    int64_t n_units = (n + PIECE_ELEMS - 1) / PIECE_ELEMS;
    int64_t n_each = (n_units + PIECES - 1) / PIECES;
    int64_t least = (n_units + PIECES_MOST - 1) / PIECES_MOST;
    n_each = n_each < PIECE_UNITS_MOST ? n_each : PIECE_UNITS_MOST;
    return (n_each > least ? n_each : least) * PIECE_ELEMS;
}

/* Replaces *id, operand k, by a view of the range that matches elements [from, from + count) of the
 * weight. */
static enum snug_status add_part(struct visits *s, const struct op *op, int k, int64_t from,
                                 int64_t count, tensor_id *id)
{
    struct rewriter *rw = &s->rw;
    const struct tensor *whole = &rw->prog->tensors[*id];
    struct cut_range range = update_range(op, k, (struct cut_range){from, count});
    struct tensor part = {.dtype = whole->dtype,
                          .role = ROLE_temporary,
                          .base = *id,
                          .offloaded = whole->offloaded,
                          .offset_elems = range.from,
                          .shape = {1, {range.count}}};
    part.name = arena_format(s->scratch, "%s.from.%lld", whole->name, (long long)from);
    if (part.name == NULL)
        return offload_no_memory(rw);
    return program_add_tensor(rw->prog, &part, id, rw->err);
}

/* Adds a visit that runs update op i on elements [from, from + count). */
static enum snug_status add_piece(struct visits *s, int i, int64_t from, int64_t count)
{
    struct visit *v;
    TRY(add_visit(s, i, &v));
    struct op whole = s->rw.prog->ops[i], *op = &v->op;
    v->is_piece = true;
    *op = whole;
    for (int k = 0; k < op->n_in; k++)
        if (k != UPDATE_SCALARS && op->in[k] != TENSOR_NONE)
            TRY(add_part(s, &whole, k, from, count, &op->in[k]));
    for (int k = 0; k < op->n_out; k++)
        op->out[k] = op->in[k + UPDATE_WEIGHT];
    return stage_operands(s, v, op);
}

/* ---- the new list ---------------------------------------------------------------------------- */

static enum snug_status add_pieces(struct visits *s, int i, int64_t piece)
{
    const struct program *prog = s->rw.prog;
    int64_t n = tensor_elems(prog, prog->ops[i].in[UPDATE_WEIGHT]);
    for (int64_t from = 0; from < n; from += piece)
        TRY(add_piece(s, i, from, n - from < piece ? n - from : piece));
    return SNUG_OK;
}

static enum snug_status find_visits(struct visits *s)
{
    struct program *prog = s->rw.prog;
    for (int i = 0; i < prog->n_ops; i++) {
        if (!touches_pool(prog, &prog->ops[i]))
            continue;
        struct visit *v = s->n_visits > 0 ? &s->visits[s->n_visits - 1] : NULL;
        bool belongs = v != NULL && continues(prog, v, i);
        int64_t piece = belongs ? 0 : piece_elems(prog, &prog->ops[i]);
        if (piece > 0) {
            TRY(add_pieces(s, i, piece));
            continue;
        }
        if (!belongs)
            TRY(add_visit(s, i, &v));
        v->last = i;
        TRY(stage_operands(s, v, &prog->ops[i]));
    }
    return SNUG_OK;
}

static enum snug_status append_fetches(struct visits *s, const struct visit *v)
{
    for (int t = 0; t < v->n_tensors; t++)
        TRY(offload_add_copy(&s->rw, OP_prefetch, v->offloaded[t], v->staging[t], v->in_last));
    return SNUG_OK;
}

static enum snug_status append_evictions(struct visits *s, const struct visit *v)
{
    for (int t = 0; t < v->n_tensors; t++)
        if (v->changed[t])
            TRY(offload_add_copy(&s->rw, OP_evict, v->staging[t], v->offloaded[t], v->in_last));
    return SNUG_OK;
}

static bool overlap(const struct program *prog, tensor_id a, tensor_id b)
{
    int64_t a_from = prog->tensors[a].offset_elems, b_from = prog->tensors[b].offset_elems;
    return tensor_root(prog, a) == tensor_root(prog, b) &&
           a_from < b_from + tensor_elems(prog, b) && b_from < a_from + tensor_elems(prog, a);
}

/* Is it safe to prefetch for `next` before `v` has evicted? */
static bool may_prefetch_early(const struct program *prog, const struct visit *v,
                               const struct visit *next)
{
    for (int t = 0; t < next->n_tensors; t++)
        for (int u = 0; u < v->n_tensors; u++)
            if (v->changed[u] && overlap(prog, v->offloaded[u], next->offloaded[t]))
                return false;
    return true;
}

/* Appends a visit, its evictions, and the prefetches of the next visit if it is in the same
 * section. */
static enum snug_status append_visit(struct visits *s, const struct visit *v)
{
    struct program *prog = s->rw.prog;
    const struct visit *next = v + 1 < s->visits + s->n_visits ? v + 1 : NULL;
    if (next != NULL &&
        program_section_last(prog, next->first) != program_section_last(prog, v->first))
        next = NULL;
    bool ahead = next != NULL && may_prefetch_early(prog, v, next);
    if (ahead) {
        TRY(offload_add_copy(&s->rw, OP_wait_copy, v->staging[v->n_tensors - 1], TENSOR_NONE,
                             v->in_last));
        TRY(append_fetches(s, next));
    }
    if (v->is_piece)
        TRY(rewriter_add(&s->rw, &v->op));
    for (int i = v->first; i <= v->last && !v->is_piece; i++)
        TRY(rewriter_copy(&s->rw, i));
    TRY(append_evictions(s, v));
    return next != NULL && !ahead ? append_fetches(s, next) : SNUG_OK;
}

static enum snug_status append_all(struct visits *s)
{
    struct program *prog = s->rw.prog;
    int at = 0; /* the next visit */
    for (int i = 0; i < prog->n_ops; i++) {
        rewriter_reach(&s->rw, i);
        bool begins = i == 0 || program_section_last(prog, i) != program_section_last(prog, i - 1);
        if (begins && at < s->n_visits &&
            program_section_last(prog, s->visits[at].first) == program_section_last(prog, i))
            TRY(append_fetches(s, &s->visits[at]));
        if (at == s->n_visits || s->visits[at].first != i) {
            TRY(rewriter_copy(&s->rw, i));
            continue;
        }
        for (int first = i; at < s->n_visits && s->visits[at].first == first; at++) {
            TRY(append_visit(s, &s->visits[at]));
            i = s->visits[at].last;
        }
    }
    return SNUG_OK;
}

/* Training offloads all optimizer states.  An evaluation finds the run's states where they are. */
static bool is_offloaded(const struct pass_env *env, const struct tensor *t)
{
    tensor_id there = env->config.train || env->config.run == NULL
                          ? TENSOR_NONE
                          : program_find(env->config.run, t->name);
    return t->role == ROLE_optimizer && t->persistent &&
           (env->config.train ||
            (there != TENSOR_NONE && env->config.run->tensors[there].offloaded));
}

enum snug_status offload_states(struct program *prog, struct pass_env *env)
{
    struct visits s = {.rw = rewriter_begin(prog, "offload", env->err), .scratch = env->scratch};
    for (int i = 0; i < prog->n_tensors; i++)
        prog->tensors[i].offloaded |= is_offloaded(env, &prog->tensors[i]);
    for (int i = 0; i < prog->n_tensors; i++) /* their views */
        prog->tensors[i].offloaded |= prog->tensors[tensor_root(prog, i)].offloaded;
    enum snug_status status = find_visits(&s);
    if (status == SNUG_OK)
        status = append_all(&s);
    free(s.visits);
    return rewriter_finish(&s.rw, status);
}
