/*
 * test_chain.c -- the least work for a chain of blocks within given memory, against an exhaustive
 * search.
 *
 * The search does not know the recurrence.  It explores the states of a machine: which inputs are
 * saved, which blocks save which option, how far backward has come, whose input the last forward
 * has just computed.  From each state it tries every move and finds the cheapest path (Dijkstra).
 * The steps that chain_solve returns are run on the same machine: they must be legal, stay within
 * the memory and cost what it reports.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "pass/chain.h"

enum { MOST_BLOCKS = 4, MOST_OPTIONS = 3, N_CHAINS = 300, NONE = -1 };

struct random_chain {
    struct chain chain;
    struct chain_block blocks[MOST_BLOCKS];
    struct chain_option options[MOST_BLOCKS][MOST_OPTIONS];
};

struct dice {
    uint64_t seed, n_thrown;
};

static int64_t below(struct dice *dice, int64_t n)
{
    return (int64_t)(rng_u64(dice->seed, 0, dice->n_thrown++) % (uint64_t)n);
}

static void make_chain(struct random_chain *c, struct dice *dice)
{
    memset(c, 0, sizeof *c);
    c->chain = (struct chain){2 + (int)below(dice, MOST_BLOCKS - 1), c->blocks};
    for (int i = 0; i < c->chain.n; i++) {
        struct chain_block *b = &c->blocks[i];
        bool is_last = i == c->chain.n - 1;
        *b = (struct chain_block){.input = 1 + below(dice, 4),
                                  .passing = 1 + below(dice, 12),
                                  .gradient = below(dice, 3),
                                  .forward = (double)(1 + below(dice, 9)),
                                  .n_options = is_last ? 1 : 1 + (int)below(dice, MOST_OPTIONS),
                                  .options = c->options[i]};
        for (int o = 0; o < b->n_options; o++)
            c->options[i][o] =
                (struct chain_option){.saved = o == 0 ? 3 + below(dice, 8) : below(dice, 6),
                                      .working = below(dice, 5),
                                      .cost = o == 0 ? 0 : (double)(1 + below(dice, 6)),
                                      .save_cost = is_last ? b->forward : (double)below(dice, 9)};
    }
}

/* ---- the machine ----------------------------------------------------------------------------- */

struct state {
    int kept;                /* bit i: the input of block i stays until its backward */
    int option[MOST_BLOCKS]; /* kept of block i until its backward, or NONE */
    int made;                /* block whose input was just made and may be used, or NONE */
    int n_left;              /* blocks whose backward is to come */
};

static int64_t input_bytes(const struct chain *c, int i)
{
    return i > 0 && i < c->n ? c->blocks[i].input : 0;
}

static int64_t bytes_in(const struct chain *c, const struct state *s)
{
    int64_t bytes = 0;
    for (int i = 0; i < c->n; i++) {
        if (s->kept >> i & 1)
            bytes += input_bytes(c, i);
        if (s->option[i] != NONE)
            bytes += c->blocks[i].options[s->option[i]].saved;
        if (i >= s->n_left)
            bytes += c->blocks[i].gradient;
    }
    return bytes;
}

static bool has_input(const struct state *s, int block)
{
    return (s->kept >> block & 1) || s->made == block;
}

/* Block `block` runs forward; its input is kept or forgotten.  False: not now, or not in the room. */
static bool run_forward(const struct chain *c, struct state *s, int block, int option, bool keeps,
                        int64_t room, double *work)
{
    const struct chain_block *b = &c->blocks[block];
    bool was_kept = (s->kept >> block & 1) != 0;
    if (block >= s->n_left || !has_input(s, block) || s->option[block] != NONE ||
        (was_kept && !keeps) || (option != NONE && !keeps))
        return false;
    for (int i = block + 1; i < s->n_left; i++) /* what is made is for the next block alone */
        if ((s->kept >> i & 1) || s->option[i] != NONE)
            return false;
    int64_t peak = bytes_in(c, s) + (was_kept ? 0 : input_bytes(c, block)) +
                   chain_forward_bytes(c, block, option);
    if (peak > room)
        return false;
    if (keeps)
        s->kept |= 1 << block;
    s->option[block] = option;
    s->made = block + 1 < s->n_left ? block + 1 : NONE;
    *work = s->made != NONE ? b->forward : option == NONE ? INFINITY : b->options[option].save_cost;
    if (s->made != NONE && option != NONE)
        s->kept |= 1 << s->made; /* the next block begins here */
    return bytes_in(c, s) <= room;
}

static bool run_backward(const struct chain *c, struct state *s, int64_t room, double *work)
{
    int block = s->n_left - 1;
    const struct chain_block *b = &c->blocks[block];
    if (block < 0 || s->option[block] == NONE || (s->kept >> block & 1) == 0)
        return false;
    const struct chain_option *o = &b->options[s->option[block]];
    if (bytes_in(c, s) + o->working + b->gradient > room)
        return false;
    *work = o->cost;
    s->kept &= ~(1 << block);
    s->option[block] = NONE;
    s->made = NONE;
    s->n_left--;
    return true;
}

/* ---- everything that could be done -------------------------------------------------------------- */

enum {
    STATE_BITS = MOST_BLOCKS + 2 * MOST_BLOCKS + 3 + 3,
    N_STATES = 1 << STATE_BITS
}; /* what number_of gives */

static int number_of(const struct state *s)
{
    int n = s->kept;
    for (int i = 0; i < MOST_BLOCKS; i++)
        n = n << 2 | (s->option[i] + 1);
    return (n << 3 | (s->made + 1)) << 3 | s->n_left;
}

struct search {
    double *cost; /* per state; INFINITY: not seen */
    bool *done;
    struct state *states; /* those seen */
    int n_seen;
};

static void reach(struct search *x, const struct state *s, double cost)
{
    int at = number_of(s);
    if (cost >= x->cost[at])
        return;
    if (isinf(x->cost[at]))
        x->states[x->n_seen++] = *s;
    x->cost[at] = cost;
}

static int cheapest(const struct search *x)
{
    int best = -1;
    for (int i = 0; i < x->n_seen; i++) {
        int at = number_of(&x->states[i]);
        if (!x->done[at] && (best < 0 || x->cost[at] < x->cost[number_of(&x->states[best])]))
            best = i;
    }
    return best;
}

static double least_work(const struct chain *c, int64_t room, struct search *x)
{
    struct state start = {.kept = 1, .made = NONE, .n_left = c->n};
    for (int i = 0; i < MOST_BLOCKS; i++)
        start.option[i] = NONE;
    for (int i = 0; i < N_STATES; i++)
        x->cost[i] = INFINITY, x->done[i] = false;
    x->n_seen = 0;
    reach(x, &start, 0);
    for (int next; (next = cheapest(x)) >= 0;) {
        struct state s = x->states[next], to;
        double cost = x->cost[number_of(&s)], work;
        x->done[number_of(&s)] = true;
        if (s.n_left == 0)
            return cost;
        to = s;
        if (run_backward(c, &to, room, &work))
            reach(x, &to, cost + work);
        for (int block = 0; block < s.n_left; block++)
            for (int o = NONE; o < c->blocks[block].n_options; o++)
                for (int keeps = 0; keeps < 2; keeps++) {
                    to = s;
                    if (run_forward(c, &to, block, o, keeps, room, &work) && isfinite(work))
                        reach(x, &to, cost + work);
                }
    }
    return INFINITY;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static double play(const struct chain *c, const struct chain_step *steps, int n_steps, int64_t room,
                   uint64_t seed)
{
    struct state s = {.kept = 1, .made = NONE, .n_left = c->n};
    double all = 0, work = 0;
    for (int i = 0; i < MOST_BLOCKS; i++)
        s.option[i] = NONE;
    for (int i = 0; i < n_steps; i++) {
        bool ok = steps[i].backward
                      ? steps[i].block == s.n_left - 1 && run_backward(c, &s, room, &work)
                      : run_forward(c, &s, steps[i].block, steps[i].option, steps[i].keeps_input,
                                    room, &work);
        if (!ok)
            fail_msg("seed %llu: step %d (%s of block %d) cannot be taken in %lld bytes",
                     (unsigned long long)seed, i, steps[i].backward ? "backward" : "forward",
                     steps[i].block, (long long)room);
        all += work;
    }
    assert_int_equal(s.n_left, 0);
    return all;
}

static void compare(const struct random_chain *c, int64_t room, uint64_t seed, struct search *x)
{
    struct arena scratch = {0};
    struct snug_error err;
    struct chain_step *steps;
    int n_steps;
    double twice, once = 0;
    for (int i = 0; i < c->chain.n; i++)
        once += c->blocks[i].forward;
    assert_int_equal(chain_solve(&c->chain, room, 1, &scratch, &steps, &n_steps, &twice, &err),
                     SNUG_OK);
    double least = least_work(&c->chain, room, x);
    if (isinf(least) != (n_steps == 0) || (n_steps > 0 && twice + once != least))
        fail_msg("seed %llu, %d blocks in %lld: work %g, and %g would do", (unsigned long long)seed,
                 c->chain.n, (long long)room, twice + once, least);
    if (n_steps > 0 && play(&c->chain, steps, n_steps, room, seed) != least)
        fail_msg("seed %llu: the steps do not cost what they should", (unsigned long long)seed);
    if (isinf(least) && room >= chain_min_budget(&c->chain))
        fail_msg("seed %llu: there is no way in %lld bytes, but %lld are said to be enough",
                 (unsigned long long)seed, (long long)room, (long long)chain_min_budget(&c->chain));
    if (room >= chain_max_budget(&c->chain) && twice != 0)
        fail_msg("seed %llu: work is done twice where there is room for all",
                 (unsigned long long)seed);
    arena_free(&scratch);
}

static void test_least_work(void **state)
{
    (void)state;
    struct search x = {.cost = malloc(N_STATES * sizeof *x.cost),
                       .done = malloc(N_STATES * sizeof *x.done),
                       .states = malloc(N_STATES * sizeof *x.states)};
    assert_true(x.cost != NULL && x.done != NULL && x.states != NULL);
    for (uint64_t seed = 1; seed <= N_CHAINS; seed++) {
        struct random_chain c;
        struct dice dice = {.seed = seed};
        make_chain(&c, &dice);
        int64_t least = chain_min_budget(&c.chain), most = chain_max_budget(&c.chain);
        compare(&c, most, seed, &x);
        for (int64_t room = least > 5 ? least - 5 : 1; room < least + 3; room++)
            compare(&c, room, seed, &x);
        for (int64_t room = least + 3; room < most; room += 1 + (most - least) / 8)
            compare(&c, room, seed, &x);
    }
    free(x.cost);
    free(x.done);
    free(x.states);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_least_work)};
    return cmocka_run_group_tests_name("chain", tests, NULL, NULL);
}
