/*
 * random_program.h -- programs that nobody would write, for code that must handle any program:
 * ragged sizes, two sections, repeated bodies, views, lanes, updates in place, workspaces,
 * left-out operands, unread results.
 */
#ifndef SNUG_TESTS_RANDOM_PROGRAM_H
#define SNUG_TESTS_RANDOM_PROGRAM_H

#include "ir/program.h"

struct dice { /* the same sequence for the same seed, on every machine */
    uint64_t seed, index;
};
int dice_roll(struct dice *dice, int n); /* 0 .. n-1 */

enum {
    RANDOM_LANES = 1, /* some tensors are in lanes 1 and 2 */
    RANDOM_VIEWS = 2  /* views are written and their base is read, and vice versa */
};

/* Draws about n_ops ops, or a few more.  Without views, program_verify accepts the program. */
enum snug_status random_program(struct program *prog, uint64_t seed, int n_ops, unsigned features,
                                struct snug_error *err);

#endif
