/*
 * chain.h -- choose what to save of a chain of blocks so that the least work is recomputed.
 *
 * The interface is abstract: bytes and work, no ops or tensors.  Block i computes the input of
 * block i + 1.  Its backward runs after that of block i + 1 and needs the block's input plus the
 * inner tensors that one of its options saves.
 */
#ifndef SNUG_PASS_CHAIN_H
#define SNUG_PASS_CHAIN_H

#include "base/arena.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct chain_option {
    int64_t saved;    /* bytes of inner tensors saved for the backward */
    int64_t working;  /* peak bytes of the backward, on top of those and the input */
    double cost;      /* work to recompute, during the backward, what was not saved */
    double save_cost; /* work to compute the saved tensors alone, without the block's result */
    const void *what; /* the caller's data */
};

struct chain_block {
    int64_t input;    /* bytes of its input; ignored for block 0, whose input is always present */
    int64_t passing;  /* peak bytes of a forward that saves nothing, without its input */
    int64_t gradient; /* bytes that its backward allocates and that stay allocated */
    double forward;   /* work to compute its result */
    int n_options;
    const struct chain_option *options;
};

struct chain {
    int n;
    const struct chain_block *blocks;
};

/* A forward step runs block `block` on its input.  The tensors of `option` are saved until the
 * block's backward (-1: none), and so is its input if keeps_input (always true with an option).
 * The first forward over the chain is not extra work. */
struct chain_step {
    bool backward;
    int block, option;
    bool keeps_input;
};

/* Peak bytes of running the block forward with an option (-1: saves nothing), without its input. */
int64_t chain_forward_bytes(const struct chain *chain, int block, int option);

/* A budget that has a schedule, mostly the smallest; and one that saves everything (option 0). */
int64_t chain_min_budget(const struct chain *chain);
int64_t chain_max_budget(const struct chain *chain);

/* The schedule with the least work in which saved tensors stay until the backward of their block
 * and memory never exceeds `budget` bytes.  Sizes are rounded to multiples of `unit` (1: exact).
 * *steps is allocated in the arena; *n_steps is 0 if no schedule fits.  *extra_work is the work
 * beyond one forward.
 * cost:  O(n^2 (n + options) budget / unit) */
enum snug_status chain_solve(const struct chain *chain, int64_t budget, int64_t unit,
                             struct arena *scratch, struct chain_step **steps, int *n_steps,
                             double *extra_work, struct snug_error *err);

#endif
