/*
 * selective.c -- inside a block: what could be kept of it, and what each choice costs.
 *
 * A choice is a set of ops of the block whose results are kept for its backward.  All sets are tried if
 * there are few, else the ops are given up one by one, the cheapest for its bytes first; what no other
 * choice beats in bytes kept, bytes worked in and work is an option of the chain.
 *
 * Every choice is played: the backward of the block with what has to be recomputed before each op, and
 * the bytes alive at each.  Ops are those before fusion and lie on no other's bytes, so that what it takes to
 * work is somewhat too much, for all blocks alike.
 */
#include "pass/recompute.h"

#include <stdlib.h>
#include <string.h>

enum { ALL_SETS_MAX = 7, OPTIONS_MAX = 24 };

struct play {
    const struct halves *halves;
    struct maker maker;
    const struct op **events; /* in the order in which they run */
    int *event_op;
    int n_events, capacity;
    int *first, *last; /* per tensor: events; -1: none */
    int64_t *work_bytes;
    bool *held; /* per tensor: counted elsewhere */
    double cost;
};

static enum snug_status add_event(struct maker *m, int at)
{
    struct play *p = m->user;
    if (p->n_events < p->capacity) {
        p->event_op[p->n_events] = at;
        p->events[p->n_events++] = &m->halves->prog->ops[at];
    }
    return SNUG_OK;
}

static enum snug_status run_again(struct maker *m, int at)
{
    struct play *p = m->user;
    p->cost += op_flops(m->halves->prog, &m->halves->prog->ops[at]);
    return add_event(m, at);
}

static enum snug_status play_init(struct play *p, const struct halves *h)
{
    struct arena *scratch = h->env->scratch;
    size_t n_tensors = (size_t)h->n_tensors + 1, n_ops = (size_t)h->prog->n_ops + 1;
    *p = (struct play){.halves = h, .capacity = 2 * h->prog->n_ops};
    p->maker = (struct maker){.run = run_again, .backward = add_event, .user = p};
    TRY(maker_init(&p->maker, h));
    p->events = arena_alloc(scratch, 2 * n_ops * sizeof *p->events);
    p->event_op = arena_alloc(scratch, 2 * n_ops * sizeof *p->event_op);
    p->first = arena_alloc(scratch, n_tensors * sizeof *p->first);
    p->last = arena_alloc(scratch, n_tensors * sizeof *p->last);
    p->held = arena_zeros(scratch, n_tensors, sizeof *p->held);
    p->work_bytes = arena_zeros(scratch, n_ops, sizeof *p->work_bytes);
    if (p->events == NULL || p->event_op == NULL || p->first == NULL || p->last == NULL ||
        p->held == NULL || p->work_bytes == NULL)
        return snug_fail(h->env->err, SNUG_NO_MEMORY, "checkpoint: no scratch for %d ops",
                         h->prog->n_ops);
    for (int i = 0; i < h->n_tensors; i++)
        p->first[i] = p->last[i] = -1;
    for (int i = 0; i < h->prog->n_ops && h->env->device.choose_kernel != NULL; i++)
        p->work_bytes[i] =
            (int64_t)h->env->device.choose_kernel(h->env->device.handle, h->prog, &h->prog->ops[i])
                .workspace_bytes;
    return SNUG_OK;
}

static bool is_counted(const struct play *p, tensor_id id)
{
    return id != TENSOR_NONE && p->halves->prog->tensors[id].role == ROLE_activation &&
           !p->halves->prog->tensors[id].persistent && !p->held[id];
}

static void touch(struct play *p, tensor_id id, int from, int to)
{
    if (!is_counted(p, id))
        return;
    if (p->first[id] < 0)
        p->first[id] = from;
    p->last[id] = to;
}

/* The most bytes alive over the events, and nothing of them left behind.  What is read and was not
 * written was there from the start; what is read after op `until` stays to the end. */
static int64_t peak_of_events(struct play *p, int until, int64_t *delta)
{
    const struct program *prog = p->halves->prog;
    memset(delta, 0, ((size_t)p->n_events + 2) * sizeof *delta);
    for (int i = 0; i < p->n_events; i++) {
        for (int k = 0; k < p->events[i]->n_in; k++)
            touch(p, p->events[i]->in[k], 0, i);
        for (int k = 0; k < p->events[i]->n_out; k++)
            touch(p, p->events[i]->out[k], i, i);
        delta[i] += p->work_bytes[p->event_op[i]];
        delta[i + 1] -= p->work_bytes[p->event_op[i]];
    }
    for (int i = 0; i < p->n_events; i++)
        for (int k = 0; k < p->events[i]->n_in + p->events[i]->n_out; k++) {
            int n_in = p->events[i]->n_in;
            tensor_id id = k < n_in ? p->events[i]->in[k] : p->events[i]->out[k - n_in];
            if (id == TENSOR_NONE || p->first[id] < 0)
                continue;
            bool stays = until >= 0 && p->halves->last_reader[id] >= until;
            delta[p->first[id]] += tensor_bytes(prog, id);
            delta[stays ? p->n_events : p->last[id] + 1] -= tensor_bytes(prog, id);
            p->first[id] = p->last[id] = -1;
        }
    int64_t alive = 0, most = 0;
    for (int i = 0; i < p->n_events; i++) {
        alive += delta[i];
        most = alive > most ? alive : most;
    }
    return most;
}

/* Marks what a block that keeps `keeps` has when its backward begins; returns the bytes kept. */
static int64_t set_kept(struct play *p, int block, const bool *keeps)
{
    const struct halves *h = p->halves;
    const struct forward_block *b = &h->blocks.list[block];
    tensor_id result = halves_result(h, block);
    int64_t bytes = 0;
    for (int i = b->begin; i < b->end; i++)
        for (int k = 0; k < h->prog->ops[i].n_out; k++) {
            tensor_id id = h->prog->ops[i].out[k];
            if (id == TENSOR_NONE)
                continue;
            bool kept = h->writer[id] < 0 || halves_keeps(h, block, keeps, id);
            p->maker.valid[id] = kept || id == result;
            p->held[id] = kept && id != result;
            if (p->held[id])
                bytes += tensor_bytes(h->prog, id);
        }
    if (b->input != TENSOR_NONE)
        p->maker.valid[b->input] = p->held[b->input] = true;
    return bytes;
}

static enum snug_status price(struct play *p, int block, const bool *keeps, int64_t *delta,
                              struct chain_option *option)
{
    const struct halves *h = p->halves;
    const struct forward_block *b = &h->blocks.list[block];
    *option = (struct chain_option){.what = keeps};
    set_kept(p, block, NULL); /* the work of making what is kept: from the input alone */
    tensor_id result = halves_result(h, block);
    p->n_events = 0;
    p->cost = 0;
    if (result != TENSOR_NONE)
        p->maker.valid[result] = false;
    for (int i = b->begin; i < b->end; i++)
        for (int k = 0; k < h->prog->ops[i].n_out; k++) {
            tensor_id id = h->prog->ops[i].out[k];
            if (id != TENSOR_NONE && h->writer[id] == i && halves_keeps(h, block, keeps, id))
                TRY(maker_provide(&p->maker, 1, &id));
        }
    option->again = p->cost;
    option->saved = set_kept(p, block, keeps);
    p->n_events = 0;
    p->cost = 0;
    TRY(maker_backward(&p->maker, block));
    option->cost = p->cost;
    option->working = peak_of_events(p, halves_backward_end(h, block), delta);
    return SNUG_OK;
}

/* Is a no better in anything? */
static bool is_beaten(const struct chain_option *a, const struct chain_option *by)
{
    return by->saved <= a->saved && by->saved + by->working <= a->saved + a->working &&
           by->cost <= a->cost;
}

static int drop_beaten(struct chain_option *options, int n)
{
    int n_left = 0;
    for (int i = 0; i < n; i++) {
        bool beaten = false;
        for (int j = 0; j < n && !beaten && i > 0; j++) /* of two that are equal, the first stays */
            beaten = j != i && is_beaten(&options[i], &options[j]) &&
                     (j < i || !is_beaten(&options[j], &options[i]));
        if (!beaten)
            options[n_left++] = options[i];
    }
    return n_left;
}

static int by_cost(const void *a, const void *b)
{
    const struct chain_option *x = a, *y = b;
    return x->cost < y->cost ? -1 : x->cost > y->cost;
}

/* The first, which keeps all, and as many more as there is room for, evenly over their costs. */
static int thin_out(struct chain_option *options, int n)
{
    qsort(options + 1, n > 1 ? (size_t)n - 1 : 0, sizeof *options, by_cost);
    if (n <= OPTIONS_MAX)
        return n;
    for (int i = 1; i < OPTIONS_MAX; i++)
        options[i] = options[1 + (i - 1) * (n - 2) / (OPTIONS_MAX - 2)];
    return OPTIONS_MAX;
}

/* The ops of a block with something to keep, the cheapest for its bytes first. */
struct candidate {
    int at; /* in the block */
    double price;
};

static int by_price(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->price < y->price || x->price > y->price)
        return x->price < y->price ? -1 : 1;
    return x->at - y->at;
}

static int list_candidates(const struct halves *h, int block, struct candidate *out)
{
    const struct forward_block *b = &h->blocks.list[block];
    tensor_id result = halves_result(h, block);
    int n = 0;
    for (int i = b->begin; i < b->end; i++) {
        const struct op *op = &h->prog->ops[i];
        int64_t bytes = 0;
        for (int k = 0; k < op->n_out; k++)
            if (op->out[k] != TENSOR_NONE && op->out[k] != result && h->writer[op->out[k]] == i &&
                h->saved[op->out[k]])
                bytes += tensor_bytes(h->prog, op->out[k]);
        if (bytes > 0)
            out[n++] = (struct candidate){i - b->begin, op_flops(h->prog, op) / (double)bytes};
    }
    qsort(out, (size_t)n, sizeof *out, by_price);
    return n;
}

/* Set i of the ops that are given up: all sets of a few, else the first i. */
static bool gives_up(int n_candidates, int set, int which)
{
    return n_candidates <= ALL_SETS_MAX ? (set >> which & 1) != 0 : which < set;
}

static enum snug_status list_options(struct play *p, int block, bool is_last, int64_t *delta,
                                     struct chain_block *out)
{
    const struct halves *h = p->halves;
    struct arena *scratch = h->env->scratch;
    size_t n_ops = (size_t)(h->blocks.list[block].end - h->blocks.list[block].begin);
    struct candidate *candidates = arena_zeros(scratch, n_ops, sizeof *candidates);
    if (candidates == NULL)
        return snug_fail(h->env->err, SNUG_NO_MEMORY, "checkpoint: out of memory");
    int n_candidates = is_last ? 0 : list_candidates(h, block, candidates);
    int n_sets = n_candidates <= ALL_SETS_MAX ? 1 << n_candidates : n_candidates + 1;
    struct chain_option *options = arena_zeros(scratch, (size_t)n_sets, sizeof *options);
    for (int set = 0; set < n_sets; set++) {
        bool *keeps = arena_alloc(scratch, n_ops);
        if (options == NULL || keeps == NULL)
            return snug_fail(h->env->err, SNUG_NO_MEMORY, "checkpoint: out of memory");
        memset(keeps, true, n_ops);
        for (int i = 0; i < n_candidates; i++)
            keeps[candidates[i].at] = !gives_up(n_candidates, set, i);
        TRY(price(p, block, keeps, delta, &options[set]));
    }
    out->n_options = thin_out(options, drop_beaten(options, n_sets));
    out->options = options;
    if (is_last)
        options[0].again = out->forward; /* it runs once, and at once */
    return SNUG_OK;
}

/* From its input to its result, nothing kept. */
static enum snug_status price_forward(struct play *p, int block, int64_t *delta,
                                      struct chain_block *out)
{
    const struct halves *h = p->halves;
    const struct forward_block *b = &h->blocks.list[block];
    set_kept(p, block, NULL);
    p->n_events = 0;
    p->cost = 0;
    for (int i = b->begin; i < b->end; i++)
        if (!op_has(&h->prog->ops[i], TRAIT_effect))
            TRY(run_again(&p->maker, i));
    out->forward = p->cost;
    out->passing = peak_of_events(p, -1, delta);
    return SNUG_OK;
}

static int64_t gradient_bytes(const struct halves *h, int block)
{
    int64_t bytes = 0;
    for (int i = halves_backward_begin(h, block); i < halves_backward_end(h, block); i++) {
        const struct op *op = &h->prog->ops[i];
        for (int k = 0; k < op->n_out; k++)
            if (op->out[k] != TENSOR_NONE && h->prog->tensors[op->out[k]].role == ROLE_gradient &&
                op->attrs.accumulate == ACC_no)
                bytes += tensor_bytes(h->prog, op->out[k]);
    }
    return bytes;
}

enum snug_status selective_chain(const struct halves *h, struct chain *chain)
{
    struct play play;
    TRY(play_init(&play, h));
    struct chain_block *blocks = arena_zeros(h->env->scratch, (size_t)h->blocks.n, sizeof *blocks);
    int64_t *delta = arena_alloc(h->env->scratch, ((size_t)play.capacity + 2) * sizeof *delta);
    if (blocks == NULL || delta == NULL)
        return snug_fail(h->env->err, SNUG_NO_MEMORY, "checkpoint: out of memory");
    for (int i = 0; i < h->blocks.n; i++) {
        tensor_id input = h->blocks.list[i].input;
        blocks[i].input = input == TENSOR_NONE ? 0 : tensor_bytes(h->prog, input);
        /* with several micro-batches all gradients are there from the start; used up in backward,
         * they do not stay */
        bool adds_up = h->env->config.n_micro == 1 && !h->env->config.in_backward;
        blocks[i].gradient = adds_up ? gradient_bytes(h, i) : 0;
        TRY(price_forward(&play, i, delta, &blocks[i]));
        TRY(list_options(&play, i, i == h->blocks.n - 1, delta, &blocks[i]));
    }
    *chain = (struct chain){h->blocks.n, blocks};
    return SNUG_OK;
}

/* Elementwise, or a norm, and everything that it reads is kept or cheap itself. */
static bool is_cheap(const struct halves *h, int block, int at, const bool *keeps)
{
    const struct forward_block *b = &h->blocks.list[block];
    const struct op *op = &h->prog->ops[at];
    if (op_is_gemm(op->kind))
        return false;
    for (int k = 0; k < op->n_in; k++) {
        tensor_id id = op->in[k];
        if (id == TENSOR_NONE || id == b->input || h->writer[id] < 0)
            continue;
        bool is_gone = !keeps[h->writer[id] - b->begin];
        if (!is_gone && !h->saved[id])
            return false;
    }
    return true;
}

enum snug_status selective_cheap(const struct halves *h, int block, const bool **out)
{
    const struct forward_block *b = &h->blocks.list[block];
    bool *keeps = arena_zeros(h->env->scratch, (size_t)(b->end - b->begin), sizeof *keeps);
    if (keeps == NULL)
        return snug_fail(h->env->err, SNUG_NO_MEMORY, "checkpoint: out of memory");
    for (int i = b->begin; i < b->end; i++)
        keeps[i - b->begin] = !is_cheap(h, block, i, keeps);
    *out = keeps;
    return SNUG_OK;
}
