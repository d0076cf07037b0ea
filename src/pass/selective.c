/*
 * selective.c -- which tensors of a block could be saved, and what each choice costs.
 *
 * A choice is a set of the block's ops whose results are saved for its backward.  If the ops are
 * few we try all subsets.  Otherwise we drop the ops one by one, fewest flops per byte first; the
 * flops are those of everything that has to run again.  The choices that no other dominates in
 * saved bytes, peak bytes and work become options of the chain.
 *
 * Each choice is simulated: the backward of the block, with what has to be recomputed before each
 * op, and the bytes alive at each op.  The simulation sees unfused ops and no in-place reuse, so
 * it overestimates the working bytes somewhat, about equally for all blocks.
 */
#include "pass/recompute.h"

#include <stdlib.h>
#include <string.h>

enum { ALL_SETS_MAX = 7, OPTIONS_MAX = 24 };

struct simulation {
    const struct halves *halves;
    struct recomputer recomputer;
    const struct op **events; /* the ops in the order they run */
    int *event_op;            /* their indices in the program */
    int n_events, capacity;
    int *first, *last;   /* per tensor: its first and last event, or -1 */
    int64_t *work_bytes; /* per op: its kernel's workspace */
    bool *held;          /* per tensor: counted elsewhere, not in the peak */
    double cost;         /* flops recomputed so far */
};

static enum snug_status add_event(struct recomputer *m, int at)
{
    struct simulation *p = m->user;
    if (p->n_events < p->capacity) {
        p->event_op[p->n_events] = at;
        p->events[p->n_events++] = &m->halves->prog->ops[at];
    }
    return SNUG_OK;
}

static enum snug_status recompute_op(struct recomputer *m, int at)
{
    struct simulation *p = m->user;
    p->cost += op_flops(m->halves->prog, &m->halves->prog->ops[at]);
    return add_event(m, at);
}

static enum snug_status simulation_init(struct simulation *p, const struct halves *h)
{
    struct arena *scratch = h->env->scratch;
    size_t n_tensors = (size_t)h->n_tensors + 1, n_ops = (size_t)h->prog->n_ops + 1;
    *p = (struct simulation){.halves = h, .capacity = 2 * h->prog->n_ops};
    p->recomputer = (struct recomputer){.run = recompute_op, .backward = add_event, .user = p};
    TRY(recomputer_init(&p->recomputer, h));
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

static bool is_counted(const struct simulation *p, tensor_id id)
{
    return id != TENSOR_NONE && p->halves->prog->tensors[id].role == ROLE_activation &&
           !p->halves->prog->tensors[id].persistent && !p->held[id];
}

static void touch(struct simulation *p, tensor_id id, int from, int to)
{
    if (!is_counted(p, id))
        return;
    if (p->first[id] < 0)
        p->first[id] = from;
    p->last[id] = to;
}

/* The peak bytes over the events; resets first and last.  A tensor that no event writes is alive
 * from the start.  A tensor read by op `until` or a later one stays to the end (-1: none does). */
static int64_t peak_of_events(struct simulation *p, int until, int64_t *delta)
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

/* Marks what is available when the backward of a block that saves `keeps` begins; returns the bytes
 * saved. */
static int64_t set_saved(struct simulation *p, int block, const bool *keeps)
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
            p->recomputer.valid[id] = kept || id == result;
            p->held[id] = kept && id != result;
            if (p->held[id])
                bytes += tensor_bytes(h->prog, id);
        }
    if (b->input != TENSOR_NONE)
        p->recomputer.valid[b->input] = p->held[b->input] = true;
    return bytes;
}

static enum snug_status price(struct simulation *p, int block, const bool *keeps, int64_t *delta,
                              struct chain_option *option)
{
    const struct halves *h = p->halves;
    const struct forward_block *b = &h->blocks.list[block];
    *option = (struct chain_option){.what = keeps};
    set_saved(p, block, NULL); /* save_cost: computing the saved tensors from the input alone */
    tensor_id result = halves_result(h, block);
    p->n_events = 0;
    p->cost = 0;
    if (result != TENSOR_NONE)
        p->recomputer.valid[result] = false;
    for (int i = b->begin; i < b->end; i++)
        for (int k = 0; k < h->prog->ops[i].n_out; k++) {
            tensor_id id = h->prog->ops[i].out[k];
            if (id != TENSOR_NONE && h->writer[id] == i && halves_keeps(h, block, keeps, id))
                TRY(recomputer_provide(&p->recomputer, 1, &id));
        }
    option->save_cost = p->cost;
    option->saved = set_saved(p, block, keeps);
    p->n_events = 0;
    p->cost = 0;
    TRY(recomputer_backward(&p->recomputer, block));
    option->cost = p->cost;
    option->working = peak_of_events(p, halves_backward_end(h, block), delta);
    return SNUG_OK;
}

/* Is `a` at least as bad as `by` in everything? */
static bool is_dominated(const struct chain_option *a, const struct chain_option *by)
{
    return by->saved <= a->saved && by->saved + by->working <= a->saved + a->working &&
           by->cost <= a->cost;
}

static int drop_dominated(struct chain_option *options, int n)
{
    int n_left = 0;
    for (int i = 0; i < n; i++) {
        bool dominated = false;
        for (int j = 0; j < n && !dominated && i > 0; j++) /* of equals, the first stays */
            dominated = j != i && is_dominated(&options[i], &options[j]) &&
                        (j < i || !is_dominated(&options[j], &options[i]));
        if (!dominated)
            options[n_left++] = options[i];
    }
    return n_left;
}

static int by_cost(const void *a, const void *b)
{
    const struct chain_option *x = a, *y = b;
    return x->cost < y->cost ? -1 : x->cost > y->cost;
}

/* Keeps option 0, which saves everything, and at most OPTIONS_MAX - 1 others, evenly over their
 * costs. */
static int sample_options(struct chain_option *options, int n)
{
    qsort(options + 1, n > 1 ? (size_t)n - 1 : 0, sizeof *options, by_cost);
    if (n <= OPTIONS_MAX)
        return n;
    for (int i = 1; i < OPTIONS_MAX; i++)
        options[i] = options[1 + (i - 1) * (n - 2) / (OPTIONS_MAX - 2)];
    return OPTIONS_MAX;
}

/* An op of a block with results to save. */
struct candidate {
    int at; /* index in the block */
    int64_t bytes;
    double price; /* flops to recompute it, per byte */
};

static int by_price(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->price < y->price || x->price > y->price)
        return x->price < y->price ? -1 : 1;
    return x->at - y->at;
}

/* Lists the candidates of a block. */
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
            out[n++] = (struct candidate){i - b->begin, bytes, 0};
    }
    return n;
}

/* Sorts candidates by price.  What an op reads may have to be recomputed too: dropping the sum of a
 * residual costs the projection before it.  So each candidate is simulated alone. */
static enum snug_status sort_candidates(struct simulation *p, int block, bool *keeps,
                                        int64_t *delta, int n, struct candidate *candidates)
{
    for (int i = 0; i < n; i++) {
        struct chain_option option;
        keeps[candidates[i].at] = false;
        TRY(price(p, block, keeps, delta, &option));
        keeps[candidates[i].at] = true;
        candidates[i].price = option.cost / (double)candidates[i].bytes;
    }
    qsort(candidates, (size_t)n, sizeof *candidates, by_price);
    return SNUG_OK;
}

/* Does choice `set` drop candidate `which`?  With few candidates `set` is a bit mask; otherwise the
 * first `set` candidates are dropped. */
static bool drops(int n_candidates, int set, int which)
{
    return n_candidates <= ALL_SETS_MAX ? (set >> which & 1) != 0 : which < set;
}

static enum snug_status list_options(struct simulation *p, int block, bool is_last, int64_t *delta,
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
    bool *keeps = arena_alloc(scratch, n_ops);
    if (options == NULL || keeps == NULL)
        return snug_fail(h->env->err, SNUG_NO_MEMORY, "checkpoint: out of memory");
    memset(keeps, true, n_ops);
    if (n_candidates > ALL_SETS_MAX)
        TRY(sort_candidates(p, block, keeps, delta, n_candidates, candidates));
    for (int set = 0; set < n_sets; set++) {
        keeps = arena_alloc(scratch, n_ops);
        if (keeps == NULL)
            return snug_fail(h->env->err, SNUG_NO_MEMORY, "checkpoint: out of memory");
        memset(keeps, true, n_ops);
        for (int i = 0; i < n_candidates; i++)
            keeps[candidates[i].at] = !drops(n_candidates, set, i);
        TRY(price(p, block, keeps, delta, &options[set]));
    }
    out->n_options = sample_options(options, drop_dominated(options, n_sets));
    out->options = options;
    if (is_last)
        options[0].save_cost = out->forward; /* the last block runs once, then its backward */
    return SNUG_OK;
}

/* Simulates a forward of the block that saves nothing. */
static enum snug_status price_forward(struct simulation *p, int block, int64_t *delta,
                                      struct chain_block *out)
{
    const struct halves *h = p->halves;
    const struct forward_block *b = &h->blocks.list[block];
    set_saved(p, block, NULL);
    p->n_events = 0;
    p->cost = 0;
    for (int i = b->begin; i < b->end; i++)
        if (!op_has(&h->prog->ops[i], TRAIT_effect))
            TRY(recompute_op(&p->recomputer, i));
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

/* Do the gradients of a block add to what is allocated after its backward?  With several
 * micro-batches all are allocated from the start.  With in-backward updates they are freed at once,
 * with ZeRO 2 and 3 as soon as their shards, which are small, are written. */
static bool gradients_stay(const struct pass_config *config)
{
    bool are_sharded = config->ranks.n_ranks > 1 && config->ranks.zero >= 2;
    return config->n_micro == 1 && !config->in_backward && !are_sharded;
}

enum snug_status selective_chain(const struct halves *h, struct chain *chain)
{
    struct simulation simulation;
    TRY(simulation_init(&simulation, h));
    struct chain_block *blocks = arena_zeros(h->env->scratch, (size_t)h->blocks.n, sizeof *blocks);
    int64_t *delta =
        arena_alloc(h->env->scratch, ((size_t)simulation.capacity + 2) * sizeof *delta);
    if (blocks == NULL || delta == NULL)
        return snug_fail(h->env->err, SNUG_NO_MEMORY, "checkpoint: out of memory");
    for (int i = 0; i < h->blocks.n; i++) {
        tensor_id input = h->blocks.list[i].input;
        blocks[i].input = input == TENSOR_NONE ? 0 : tensor_bytes(h->prog, input);
        blocks[i].gradient = gradients_stay(&h->env->config) ? gradient_bytes(h, i) : 0;
        TRY(price_forward(&simulation, i, delta, &blocks[i]));
        TRY(list_options(&simulation, i, i == h->blocks.n - 1, delta, &blocks[i]));
    }
    *chain = (struct chain){h->blocks.n, blocks};
    return SNUG_OK;
}

/* Is the op no gemm, and is each of its inputs saved or itself cheap to recompute? */
static bool is_cheap(const struct halves *h, int block, int at, const bool *keeps)
{
    const struct forward_block *b = &h->blocks.list[block];
    const struct op *op = &h->prog->ops[at];
    if (op_has(op, TRAIT_gemm))
        return false;
    for (int k = 0; k < op->n_in; k++) {
        tensor_id id = op->in[k];
        if (id == TENSOR_NONE || id == b->input || h->writer[id] < 0)
            continue;
        bool is_dropped = !keeps[h->writer[id] - b->begin];
        if (!is_dropped && !h->saved[id])
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
