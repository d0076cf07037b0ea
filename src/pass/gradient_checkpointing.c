/*
 * gradient_checkpointing.c -- save fewer activations and recompute them in the backward half.
 *
 * The forward half is a chain of blocks (blocks.c).  Each strategy is a list of steps over that
 * chain: run a block forward and save some of its tensors, or run its backward.
 *
 *     none      save everything
 *     cheap     recompute what is no matmul and reads only what is saved or recomputed: activation
 *               functions, norms, rope, swiglu, dropout; save the rest
 *     every:K   save the input of every K-th layer; recompute K layers before their backward
 *     sqrt      the same with about sqrt(layers) segments
 *     all       save nothing: recompute each layer from the inputs before its backward
 *     auto      the least work that fits the budget (chain.c), choosing single ops in a block
 *               (selective.c)
 *
 * The segment that ends in the loss is always saved, because its backward runs next.
 *
 * needs: autodiff just done    keeps: forward ops, ids, results bit for bit
 * breaks: results.backward_begin    leaves: results.checkpoint (auto)
 * cost:  O(ops added); auto: see chain.h
 */
#include "pass/recompute.h"

#include <math.h>
#include <string.h>

/* auto: the resolution of the budget for up to N_BLOCKS_FINE blocks, and less for more; the most
 * blocks to solve for (more are merged); by how many units rounding may make a budget too small. */
enum { BUDGET_UNITS = 500, N_BLOCKS_FINE = 64, N_BLOCKS_MAX = 160, ROUNDING_UNITS = 5 };

struct schedule {
    const struct halves *halves;
    struct step *list;
    int n, capacity;
    const bool *all; /* all true: saves every op's results, for any block */
};

static enum snug_status out_of_memory(const struct halves *h)
{
    return snug_fail(h->env->err, SNUG_NO_MEMORY, "checkpoint: no scratch for %d blocks",
                     h->blocks.n);
}

static enum snug_status steps_init(struct schedule *s, const struct halves *h)
{
    size_t n = (size_t)h->blocks.n;
    *s = (struct schedule){.halves = h, .capacity = (int)(n * (n + 1) / 2 + 3 * n)};
    bool *all = arena_alloc(h->env->scratch, (size_t)h->n_forward + 1);
    s->list = arena_alloc(h->env->scratch, (size_t)s->capacity * sizeof *s->list);
    if (all == NULL || s->list == NULL)
        return out_of_memory(h);
    memset(all, true, (size_t)h->n_forward + 1);
    s->all = all;
    return SNUG_OK;
}

static void add_forward(struct schedule *s, int block, const bool *keeps, bool keeps_input)
{
    s->list[s->n++] = (struct step){false, block, keeps, keeps_input};
}

static void add_backward(struct schedule *s, int block)
{
    s->list[s->n++] = (struct step){.backward = true, .block = block};
}

static void plan_none(struct schedule *s)
{
    int n = s->halves->blocks.n;
    for (int i = 0; i < n; i++)
        add_forward(s, i, s->all, true);
    for (int i = n - 1; i >= 0; i--)
        add_backward(s, i);
}

static enum snug_status plan_cheap(struct schedule *s)
{
    int n = s->halves->blocks.n;
    for (int i = 0; i < n; i++) {
        const bool *keeps = s->all;
        if (i < n - 1)
            TRY(selective_cheap(s->halves, i, &keeps));
        add_forward(s, i, keeps, true);
    }
    for (int i = n - 1; i >= 0; i--)
        add_backward(s, i);
    return SNUG_OK;
}

static void plan_all(struct schedule *s)
{
    int last = s->halves->blocks.n - 1;
    for (int i = 0; i <= last; i++)
        add_forward(s, i, i == last ? s->all : NULL, i == last);
    add_backward(s, last);
    for (int b = last - 1; b >= 0; b--) {
        for (int i = 0; i < b; i++)
            add_forward(s, i, NULL, false);
        add_forward(s, b, s->all, true);
        add_backward(s, b);
    }
}

/* Segments of `length` layers.  The block before the layers is a segment of its own; the block
 * after them belongs to the last segment. */
static void plan_segments(struct schedule *s, int64_t length)
{
    const struct blocks *blocks = &s->halves->blocks;
    int n = blocks->n, first = blocks->first_layer;
    int last = first + (int)((blocks->n_layers - 1) / length * length); /* last segment's begin */
    if (last == first) {
        plan_none(s);
        return;
    }
    for (int i = 0; i < n; i++)
        add_forward(s, i, i >= last ? s->all : NULL,
                    i >= last || i < first || (i - first) % length == 0);
    for (int i = n - 1; i >= last; i--)
        add_backward(s, i);
    for (int end = last; end > 0;) {
        int begin = end > first ? end - (int)length : 0;
        for (int i = begin; i < end; i++)
            add_forward(s, i, s->all, true);
        for (int i = end - 1; i >= begin; i--)
            add_backward(s, i);
        end = begin;
    }
}

/* Merges the blocks in pairs, except the last, which is always saved. */
static void merge_pairs(struct blocks *blocks)
{
    int n = 0;
    for (int i = 0; i < blocks->n; i++) {
        bool merges = n > 0 && i % 2 == 1 && i < blocks->n - 1;
        if (merges)
            blocks->list[n - 1].end = blocks->list[i].end;
        else
            blocks->list[n++] = blocks->list[i];
    }
    blocks->n = n;
}

/* About 1 / BUDGET_UNITS of the budget, chosen as a divisor or a multiple of the smallest block
 * input.  Most tensors of a block have that many elements too, so rounding errors do not
 * accumulate. */
static int64_t unit_for(const struct chain *chain, int64_t budget)
{
    int n_fine = chain->n > N_BLOCKS_FINE ? chain->n : N_BLOCKS_FINE;
    int64_t least = INT64_MAX, about = budget / (BUDGET_UNITS * N_BLOCKS_FINE / n_fine) + 1;
    for (int i = 1; i < chain->n; i++)
        if (chain->blocks[i].input > 0 && chain->blocks[i].input < least)
            least = chain->blocks[i].input;
    if (least == INT64_MAX)
        return about;
    return least >= about ? least / (least / about) : (about + least - 1) / least * least;
}

static enum snug_status plan_auto(struct schedule *s, struct pass_env *env)
{
    const struct checkpointing *c = &env->config.checkpoint;
    struct checkpoint_bounds *bounds = &env->results.checkpoint;
    struct chain chain;
    struct chain_step *steps = NULL;
    int n_steps = 0;
    double extra_work;
    TRY(selective_chain(s->halves, &chain));
    bounds->least_bytes = chain_min_budget(&chain);
    bounds->most_bytes = chain_max_budget(&chain);
    if (c->room_bytes >= bounds->most_bytes) {
        plan_none(s);
        return SNUG_OK;
    }
    int64_t unit = unit_for(&chain, c->room_bytes);
    for (int i = 0; i < ROUNDING_UNITS && n_steps == 0 && c->room_bytes >= bounds->least_bytes; i++)
        TRY(chain_solve(&chain, c->room_bytes + i * unit, unit, env->scratch, &steps, &n_steps,
                        &extra_work, env->err));
    if (n_steps == 0) /* the budget is too small: use the least memory */
        plan_all(s);
    for (int i = 0; i < n_steps; i++)
        if (steps[i].backward)
            add_backward(s, steps[i].block);
        else
            add_forward(s, steps[i].block,
                        steps[i].option < 0
                            ? NULL
                            : chain.blocks[steps[i].block].options[steps[i].option].what,
                        steps[i].keeps_input);
    return SNUG_OK;
}

static enum snug_status check_every(const struct halves *h)
{
    const struct pass_env *env = h->env;
    if (env->config.checkpoint.every <= h->blocks.n_layers)
        return SNUG_OK;
    return snug_fail(env->err, SNUG_BAD_ARGUMENT,
                     "--checkpoint every:%lld: %s has %d layer%s; use every:%d or less",
                     (long long)env->config.checkpoint.every, h->prog->name, h->blocks.n_layers,
                     h->blocks.n_layers == 1 ? "" : "s", h->blocks.n_layers);
}

enum snug_status pass_checkpoint(struct program *prog, struct pass_env *env)
{
    struct halves h;
    struct schedule s;
    if (prog->n_ops == 0) /* model states only */
        return SNUG_OK;
    TRY(halves_find(prog, env, &h));
    while (env->config.checkpoint.how == CHECKPOINT_auto && h.blocks.n > N_BLOCKS_MAX)
        merge_pairs(&h.blocks);
    TRY(steps_init(&s, &h));
    switch (env->config.checkpoint.how) {
    case CHECKPOINT_none:
        return SNUG_OK;
    case CHECKPOINT_cheap:
        TRY(plan_cheap(&s));
        break;
    case CHECKPOINT_all:
        plan_all(&s);
        break;
    case CHECKPOINT_sqrt: {
        double n_segments = round(sqrt((double)h.blocks.n_layers));
        plan_segments(&s, n_segments < 1 ? 1 : (int64_t)ceil(h.blocks.n_layers / n_segments));
        break;
    }
    case CHECKPOINT_every:
        TRY(check_every(&h));
        plan_segments(&s, env->config.checkpoint.every);
        break;
    case CHECKPOINT_auto:
        TRY(plan_auto(&s, env));
        break;
    }
    return recompute(&h, s.list, s.n);
}
