/*
 * chain.c -- the least work for a chain of blocks within a memory budget, by dynamic programming.
 *
 * best[a][b][m] is the least work to get from "the input of block a is in memory" to "the backwards
 * of blocks b..a are done" with m bytes on top of that input.  There are three choices:
 *
 *     a = b          run block a and save an option; then run its backward
 *     save a         run block a and save an option; solve a+1..b in the remaining bytes; then run
 *                    a's backward
 *     skip to c      run a..c-1 and save only the input of c; solve c..b in the remaining bytes;
 *                    then solve a..c-1 from the start in all m bytes
 *
 * This is the algorithm for memory-persistent schedules of heterogeneous chains (Beaumont et al.,
 * "Optimal checkpointing for heterogeneous chains", 2019), extended with options inside a block and
 * with gradients that stay allocated.
 */
#include "pass/chain.h"

#include <math.h>
#include <string.h>

struct solver {
    const struct chain *chain;
    int64_t unit;
    int n_budgets;  /* budgets 0 .. budget / unit */
    double *best;   /* [pair of a, b][budget] */
    int64_t *after; /* per block: gradient bytes of the blocks after it, in units; n + 1 entries */
    struct chain_step *steps;
    int n_steps;
};

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static const struct chain_block *block_at(const struct chain *chain, int i)
{
    return &chain->blocks[i];
}

static int64_t input_of(const struct chain *chain, int i)
{
    return i > 0 && i < chain->n ? chain->blocks[i].input : 0;
}

int64_t chain_forward_bytes(const struct chain *chain, int block, int option)
{
    const struct chain_block *b = block_at(chain, block);
    int64_t saved = option < 0 ? 0 : b->options[option].saved + input_of(chain, block + 1);
    return larger(b->passing, saved);
}

static int64_t backward_bytes(const struct chain_block *b, int option)
{
    return b->options[option].saved + b->options[option].working;
}

int64_t chain_min_budget(const struct chain *chain)
{
    int64_t budget = 0, gradients = 0;
    for (int i = chain->n - 1; i >= 0; i--) {
        const struct chain_block *b = block_at(chain, i);
        int64_t least = INT64_MAX;
        /* when the block last runs without saving, the backward of i + 1 has yet to run */
        int64_t passing = b->passing + input_of(chain, i) + gradients;
        if (i + 1 < chain->n)
            passing -= chain->blocks[i + 1].gradient;
        for (int o = 0; o < b->n_options; o++) {
            int64_t here = larger(chain_forward_bytes(chain, i, o) + gradients,
                                  backward_bytes(b, o) + gradients + b->gradient);
            least = here < least ? here : least;
        }
        gradients += b->gradient;
        budget = larger(budget, larger(passing, least + input_of(chain, i)));
    }
    return budget;
}

int64_t chain_max_budget(const struct chain *chain)
{
    int64_t budget = 0, most = 0;
    for (int i = 0; i < chain->n; i++) {
        const struct chain_block *b = block_at(chain, i);
        budget += b->options[0].saved + input_of(chain, i) + b->gradient;
        most = larger(most, larger(b->options[0].working, b->passing));
    }
    return budget + most;
}

/* Rounds to nearest, so that errors tend to cancel; the plan has the exact bytes. */
static int64_t in_units(const struct solver *s, int64_t bytes)
{
    return (bytes + s->unit / 2) / s->unit;
}

static double *best_of(const struct solver *s, int a, int b)
{
    return s->best + ((size_t)b * ((size_t)b + 1) / 2 + (size_t)a) * (size_t)s->n_budgets;
}

/* The smallest budget to run block a with an option, and its backward, when the backwards after
 * block b are done.  It does not cover a+1..b. */
static int64_t option_needs(const struct solver *s, int a, int b, int option)
{
    const struct chain_block *block = block_at(s->chain, a);
    int64_t forward = in_units(s, chain_forward_bytes(s->chain, a, option)) + s->after[b];
    int64_t backward =
        in_units(s, backward_bytes(block, option)) + s->after[a] + in_units(s, block->gradient);
    return larger(forward, backward);
}

static double option_work(const struct solver *s, int a, int b, int option)
{
    const struct chain_block *block = block_at(s->chain, a);
    const struct chain_option *o = &block->options[option];
    return o->cost + (a == b ? o->save_cost : block->forward);
}

/* How much of the budget of a+1..b is used up if block a saves the option. */
static int64_t option_takes(const struct solver *s, int a, int option)
{
    return in_units(s, block_at(s->chain, a)->options[option].saved) +
           in_units(s, input_of(s->chain, a + 1));
}

/* The smallest budget to run block i of a..c-1 saving nothing, when the backwards after block b are
 * done. */
static int64_t pass_needs_at(const struct solver *s, int a, int b, int i)
{
    int64_t input = i > a ? in_units(s, input_of(s->chain, i)) : 0;
    return in_units(s, block_at(s->chain, i)->passing) + input + s->after[b];
}

static int64_t pass_needs(const struct solver *s, int a, int b, int c)
{
    int64_t needs = 0;
    for (int i = a; i < c; i++)
        needs = larger(needs, pass_needs_at(s, a, b, i));
    return needs;
}

static double pass_work(const struct solver *s, int a, int c)
{
    double work = 0;
    for (int i = a; i < c; i++)
        work += block_at(s->chain, i)->forward;
    return work;
}

static void try_options(struct solver *s, int a, int b)
{
    double *best = best_of(s, a, b);
    for (int o = 0; o < block_at(s->chain, a)->n_options; o++) {
        int64_t needs = option_needs(s, a, b, o), takes = a == b ? 0 : option_takes(s, a, o);
        const double *rest = a == b ? NULL : best_of(s, a + 1, b);
        double work = option_work(s, a, b, o);
        for (int64_t m = larger(needs, takes); m < s->n_budgets; m++) {
            double all = work + (rest == NULL ? 0 : rest[m - takes]);
            best[m] = all < best[m] ? all : best[m];
        }
    }
}

/* best[m] = the smaller of best[m] and work + rest[m] + start[m] */
static void take_smaller(double *restrict best, const double *restrict rest,
                         const double *restrict start, double work, int64_t n)
{
#pragma omp simd
    for (int64_t m = 0; m < n; m++) {
        double all = work + rest[m] + start[m];
        best[m] = all < best[m] ? all : best[m];
    }
}

static void try_passes(struct solver *s, int a, int b)
{
    double *best = best_of(s, a, b), work = 0;
    int64_t needs = 0;
    for (int c = a + 1; c <= b; c++) {
        int64_t takes = in_units(s, input_of(s->chain, c));
        work += block_at(s->chain, c - 1)->forward;
        needs = larger(needs, pass_needs_at(s, a, b, c - 1));
        int64_t least = larger(needs, takes);
        if (least < s->n_budgets)
            take_smaller(best + least, best_of(s, c, b) + least - takes,
                         best_of(s, a, c - 1) + least, work, s->n_budgets - least);
    }
}

static void add_step(struct solver *s, bool backward, int block, int option, bool keeps_input)
{
    s->steps[s->n_steps++] = (struct chain_step){backward, block, option, keeps_input};
}

/* Appends the steps of the choice that gave best[a][b][m]. */
static void trace(struct solver *s, int a, int b, int64_t m)
{
    double target = best_of(s, a, b)[m];
    for (int o = 0; o < block_at(s->chain, a)->n_options; o++) {
        int64_t takes = a == b ? 0 : option_takes(s, a, o);
        if (m < option_needs(s, a, b, o) || m < takes)
            continue;
        double rest = a == b ? 0 : best_of(s, a + 1, b)[m - takes];
        if (option_work(s, a, b, o) + rest > target)
            continue;
        add_step(s, false, a, o, true);
        if (a < b)
            trace(s, a + 1, b, m - takes);
        add_step(s, true, a, o, false);
        return;
    }
    for (int c = a + 1; c <= b; c++) {
        int64_t takes = in_units(s, input_of(s->chain, c));
        if (m < pass_needs(s, a, b, c) || m < takes ||
            pass_work(s, a, c) + best_of(s, c, b)[m - takes] + best_of(s, a, c - 1)[m] > target)
            continue;
        for (int i = a; i < c; i++)
            add_step(s, false, i, -1, i == a);
        trace(s, c, b, m - takes);
        trace(s, a, c - 1, m);
        return;
    }
}

enum snug_status chain_solve(const struct chain *chain, int64_t budget, int64_t unit,
                             struct arena *scratch, struct chain_step **steps, int *n_steps,
                             double *extra_work, struct snug_error *err)
{
    size_t n = (size_t)chain->n, n_pairs = n * (n + 1) / 2;
    struct solver s = {.chain = chain, .unit = unit, .n_budgets = (int)(budget / unit) + 1};
    size_t n_best = n_pairs * (size_t)s.n_budgets;
    s.best = arena_alloc(scratch, n_best * sizeof *s.best);
    s.after = arena_zeros(scratch, n + 1, sizeof *s.after);
    s.steps = arena_alloc(scratch, (n_pairs + 2 * n) * sizeof *s.steps);
    if (s.best == NULL || s.after == NULL || s.steps == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "checkpoint: no scratch for %d blocks", chain->n);
    for (size_t i = 0; i < n_best; i++)
        s.best[i] = INFINITY;
    for (int i = chain->n - 2; i >= 0; i--)
        s.after[i] = s.after[i + 1] + in_units(&s, chain->blocks[i + 1].gradient);
    for (int b = 0; b < chain->n; b++)
        for (int a = b; a >= 0; a--) {
            try_options(&s, a, b);
            try_passes(&s, a, b);
        }
    *extra_work = best_of(&s, 0, chain->n - 1)[s.n_budgets - 1] - pass_work(&s, 0, chain->n);
    if (isfinite(*extra_work))
        trace(&s, 0, chain->n - 1, s.n_budgets - 1);
    *steps = s.steps;
    *n_steps = s.n_steps;
    return SNUG_OK;
}
