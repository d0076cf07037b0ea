/*
 * random_program.h -- programs that nobody would write, for whoever must cope with any of them:
 * ragged sizes, three sections, repeated bodies, views, lanes, updates in place, workspaces,
 * left-out operands, results that nobody reads.
 */
#ifndef SNUG_TESTS_RANDOM_PROGRAM_H
#define SNUG_TESTS_RANDOM_PROGRAM_H

#include "ir/program.h"

struct dice { /* the same throws for the same seed, everywhere */
    uint64_t seed, index;
};
int dice_roll(struct dice *dice, int n); /* 0 .. n-1 */

enum {
    RANDOM_LANES = 1, /* some tensors lie in lanes 1 and 2 */
    RANDOM_VIEWS = 2  /* parts are written and the whole is read, and the other way round */
};

/* n_ops is a wish; a little more may come out.  Without views, program_verify accepts it. */
enum snug_status random_program(struct program *prog, uint64_t seed, int n_ops, unsigned features,
                                struct snug_error *err);

#endif
