/*
 * gradient_checkpointing.c -- keep less of the forward half and make it again in the backward half.
 *
 * The forward half is a chain of blocks (blocks.c).  Each way of checkpointing is a list of steps over
 * that chain: run a block forward and keep so much of it, or do its backward.
 *
 *     none      everything is kept
 *     cheap     what is cheap to make again is not kept: activation functions, norms, dropout
 *     every:K   the input of every K-th layer is kept; before the backward of these K they run again
 *     sqrt      the same, with as many segments as each has layers
 *     all       nothing is kept: before its backward each layer is reached from the inputs anew
 *     auto      the least work that fits (chain.c), down to single ops inside a block (selective.c)
 *
 * The segment that ends in the loss is always kept: its backward comes at once.
 *
 * needs: autodiff just done    keeps: forward ops, ids, results to the last bit
 * breaks: nothing    leaves: results.checkpoint (auto)
 * cost:  O(ops that are added); auto: see chain.h
 */
#include "pass/recompute.h"

#include <math.h>
#include <string.h>

/* Rooms that auto tells apart, and blocks that it takes apart: more are joined. */
enum { N_ROOMS = 500, N_BLOCKS_MAX = 100 };

struct plan_of_steps {
    const struct halves *halves;
    struct step *list;
    int n, capacity;
    const bool *all; /* keeps everything, for any block */
};

static enum snug_status out_of_memory(const struct halves *h)
{
    return snug_fail(h->env->err, SNUG_NO_MEMORY, "checkpoint: no scratch for %d blocks",
                     h->blocks.n);
}

static enum snug_status steps_init(struct plan_of_steps *s, const struct halves *h)
{
    size_t n = (size_t)h->blocks.n;
    *s = (struct plan_of_steps){.halves = h, .capacity = (int)(n * (n + 1) / 2 + 3 * n)};
    bool *all = arena_alloc(h->env->scratch, (size_t)h->n_forward + 1);
    s->list = arena_alloc(h->env->scratch, (size_t)s->capacity * sizeof *s->list);
    if (all == NULL || s->list == NULL)
        return out_of_memory(h);
    memset(all, true, (size_t)h->n_forward + 1);
    s->all = all;
    return SNUG_OK;
}

static void forward(struct plan_of_steps *s, int block, const bool *keeps, bool keeps_input)
{
    s->list[s->n++] = (struct step){false, block, keeps, keeps_input};
}

static void backward(struct plan_of_steps *s, int block)
{
    s->list[s->n++] = (struct step){.backward = true, .block = block};
}

static void plan_none(struct plan_of_steps *s)
{
    int n = s->halves->blocks.n;
    for (int i = 0; i < n; i++)
        forward(s, i, s->all, true);
    for (int i = n - 1; i >= 0; i--)
        backward(s, i);
}

static enum snug_status plan_cheap(struct plan_of_steps *s)
{
    int n = s->halves->blocks.n;
    for (int i = 0; i < n; i++) {
        const bool *keeps = s->all;
        if (i < n - 1)
            TRY(selective_cheap(s->halves, i, &keeps));
        forward(s, i, keeps, true);
    }
    for (int i = n - 1; i >= 0; i--)
        backward(s, i);
    return SNUG_OK;
}

static void plan_all(struct plan_of_steps *s)
{
    int last = s->halves->blocks.n - 1;
    for (int i = 0; i <= last; i++)
        forward(s, i, i == last ? s->all : NULL, i == last);
    backward(s, last);
    for (int b = last - 1; b >= 0; b--) {
        for (int i = 0; i < b; i++)
            forward(s, i, NULL, false);
        forward(s, b, s->all, true);
        backward(s, b);
    }
}

/* Segments of `length` layers; what comes before the layers is one of its own, what comes after
 * belongs to the last. */
static void plan_segments(struct plan_of_steps *s, int64_t length)
{
    const struct blocks *blocks = &s->halves->blocks;
    int n = blocks->n, first = blocks->first_layer;
    int last = first + (int)((blocks->n_layers - 1) / length * length); /* of the last segment */
    if (last == first) {
        plan_none(s);
        return;
    }
    for (int i = 0; i < n; i++)
        forward(s, i, i >= last ? s->all : NULL,
                i >= last || i < first || (i - first) % length == 0);
    for (int i = n - 1; i >= last; i--)
        backward(s, i);
    for (int end = last; end > 0;) {
        int begin = end > first ? end - (int)length : 0;
        for (int i = begin; i < end; i++)
            forward(s, i, s->all, true);
        for (int i = end - 1; i >= begin; i--)
            backward(s, i);
        end = begin;
    }
}

/* Two blocks into one, pair by pair, but for the last: it is kept. */
static void join_pairs(struct blocks *blocks)
{
    int n = 0;
    for (int i = 0; i < blocks->n; i++) {
        bool joins = n > 0 && i % 2 == 1 && i < blocks->n - 1;
        if (joins)
            blocks->list[n - 1].end = blocks->list[i].end;
        else
            blocks->list[n++] = blocks->list[i];
    }
    blocks->n = n;
}

/* About room / N_ROOMS, and such that the inputs of blocks (and what has as many numbers, which is
 * most of a block) are whole multiples of it or it of them: roundings then do not add up. */
static int64_t unit_for(const struct chain *chain, int64_t room)
{
    int64_t least = INT64_MAX, about = room / N_ROOMS + 1;
    for (int i = 1; i < chain->n; i++)
        if (chain->blocks[i].input > 0 && chain->blocks[i].input < least)
            least = chain->blocks[i].input;
    if (least == INT64_MAX)
        return about;
    return least >= about ? least / (least / about) : (about + least - 1) / least * least;
}

static enum snug_status plan_auto(struct plan_of_steps *s, struct pass_env *env)
{
    const struct checkpointing *c = &env->config.checkpoint;
    struct checkpoint_bounds *bounds = &env->results.checkpoint;
    struct chain chain;
    struct chain_step *steps = NULL;
    int n_steps = 0;
    double twice;
    TRY(selective_chain(s->halves, &chain));
    bounds->least_bytes = chain_least_room(&chain);
    bounds->most_bytes = chain_most_room(&chain);
    if (c->room_bytes >= bounds->most_bytes) {
        plan_none(s);
        return SNUG_OK;
    }
    if (c->room_bytes >= bounds->least_bytes)
        TRY(chain_solve(&chain, c->room_bytes, unit_for(&chain, c->room_bytes), env->scratch,
                        &steps, &n_steps, &twice, env->err));
    if (n_steps == 0) /* too small, or by a rounding: what takes the least */
        plan_all(s);
    for (int i = 0; i < n_steps; i++)
        if (steps[i].backward)
            backward(s, steps[i].block);
        else
            forward(s, steps[i].block,
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
                     "--checkpoint every:%lld: %s has %d layer%s, so at most every:%d",
                     (long long)env->config.checkpoint.every, h->prog->name, h->blocks.n_layers,
                     h->blocks.n_layers == 1 ? "" : "s", h->blocks.n_layers);
}

enum snug_status pass_checkpoint(struct program *prog, struct pass_env *env)
{
    struct halves h;
    struct plan_of_steps s;
    if (prog->n_ops == 0) /* model states only */
        return SNUG_OK;
    TRY(halves_find(prog, env, &h));
    while (env->config.checkpoint.how == CHECKPOINT_auto && h.blocks.n > N_BLOCKS_MAX)
        join_pairs(&h.blocks);
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
