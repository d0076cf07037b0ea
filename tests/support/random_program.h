/*
 * random_program.h -- programs that nobody would write, for code that must handle any program:
 * ragged sizes, two sections, repeated bodies, views, updates in place, workspaces,
 * left-out operands, unread results.
 */
#ifndef SNUG_TESTS_RANDOM_PROGRAM_H
#define SNUG_TESTS_RANDOM_PROGRAM_H

#include "ir/program.h"

struct dice { /* the same sequence for the same seed, on every machine */
    uint64_t seed, index;
};
int dice_roll(struct dice *dice, int n); /* 0 .. n-1 */

/* Draws about n_ops ops, or a few more.  With views, some views are written and their base is read,
 * and vice versa.  Without, program_verify accepts the program. */
enum snug_status random_program(struct program *prog, uint64_t seed, int n_ops, bool with_views,
                                struct snug_error *err);

#endif
