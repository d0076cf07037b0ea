/*
 * chain.h -- what to keep of a chain of blocks so that the least work is done twice.
 *
 * Numbers only: no ops, no tensors.  Block i turns its input into that of block i + 1 and has a
 * backward, which comes after that of block i + 1 and needs the block's input and, of its inside, what
 * one of its options keeps.
 */
#ifndef SNUG_PASS_CHAIN_H
#define SNUG_PASS_CHAIN_H

#include "base/arena.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct chain_option {
    int64_t saved;    /* bytes kept of the inside */
    int64_t working;  /* bytes that its backward takes beside these and the input */
    double cost;      /* work of that backward on what was not kept */
    double again;     /* work of making what is kept, where the block runs for nothing else */
    const void *what; /* the caller's */
};

struct chain_block {
    int64_t input;    /* bytes; block 0: not counted, it is always there */
    int64_t passing;  /* bytes while it runs forward, its result among them, its input not */
    int64_t gradient; /* bytes that its backward leaves behind for good */
    double forward;   /* work of making its result */
    int n_options;
    const struct chain_option *options;
};

struct chain {
    int n;
    const struct chain_block *blocks;
};

/* Forward: block `block` runs on its input; what `option` keeps stays until its backward (-1:
 * nothing), and its input as well if keeps_input (with an option it always does).  In the first pass
 * over the chain these are no work twice. */
struct chain_step {
    bool backward;
    int block, option;
    bool keeps_input;
};

/* What is on top of the block's input when the block runs forward with an option, with the result. */
int64_t chain_forward_bytes(const struct chain *chain, int block, int option);

/* A room with which there is a way, mostly the least; what is enough to keep everything (option 0). */
int64_t chain_least_room(const struct chain *chain);
int64_t chain_most_room(const struct chain *chain);

/* The steps with the least work of all in which whatever is kept stays until the backward of its block,
 * and never more than `room` bytes are there; sizes are rounded to multiples of `unit` (1: exact).
 * *steps is in the arena; *n_steps is 0 if there is no way.  *twice: the work beyond one forward.
 * cost:  O(n^2 (n + options) room / unit) */
enum snug_status chain_solve(const struct chain *chain, int64_t room, int64_t unit,
                             struct arena *scratch, struct chain_step **steps, int *n_steps,
                             double *twice, struct snug_error *err);

#endif
